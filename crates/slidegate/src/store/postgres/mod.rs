//! The PostgreSQL store: decisions are made by functions in the database, by its time, in one statement.

mod answers;
mod batch;
mod clean;
mod failure;
mod gather;
mod migration;
mod pool;
mod record;
mod settings;
mod tls;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use slidegate_core::{Action, Decision, decide_matched};
use tokio::sync::{mpsc, oneshot};

pub use self::settings::{PostgresSettingsError, PostgresStoreBuilder, Synchronous};

use self::batch::{Answer, Name, Request};
use self::pool::Shared;
use super::identity::Identities;
use super::{Operation, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// Counts in PostgreSQL.
///
/// Each decision is one statement, which calls one function; checks that are made at the same time are gathered into one.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slidegate::{Limiter, Policy, PostgresStore};
///
/// let limiter = Limiter::new(PostgresStore::connect("postgres://app@localhost/app").await?);
/// let api = Policy::parse("api", ["10/1s", "1000/1h"])?;
/// let decision = limiter.check(api.key("user:1")).await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresStore {
    identities: Identities,
    queue: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    is_durable: bool,
    durability: HashMap<String, bool>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Sets up a store. To what PostgreSQL's own URLs can say, `postgres://user:password@host:5432/database`, it adds
    /// options: `schema`, `secret`, `durable`, `sync`, `budget_ms`, `connections`, `ca`.
    pub fn builder(url: &str) -> Result<PostgresStoreBuilder, PostgresSettingsError> {
        PostgresStoreBuilder::parse(url)
    }

    /// Connects with what the URL says.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let builder = Self::builder(url).map_err(|error| StoreError::permanent(error.to_string()))?;
        builder.connect().await
    }

    /// The SQL that makes what the store needs in `schema`, for those who run their migrations themselves. It may be run
    /// any number of times.
    pub fn migration(schema: &str) -> Result<String, PostgresSettingsError> {
        let builder = PostgresStoreBuilder::parse("postgres://localhost")?.schema(schema)?;
        Ok(builder.migration())
    }

    /// Removes what counts nothing any more, under whichever policy it was counted, a few pages at a time. Says how many
    /// keys went. Decisions do the same in passing; this is for what nobody asks for any more.
    pub async fn clean(&self) -> Result<u64, StoreError> {
        clean::clean(&self.shared).await
    }

    async fn start(builder: PostgresStoreBuilder) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::new(&builder)?);
        migration::ensure(&*shared.client().await?, &shared.schema).await?;
        let (queue, waiting) = mpsc::channel(builder.max_waiting);
        gather::start(waiting, Arc::clone(&shared));
        Ok(Self {
            identities: Identities::new(builder.secret.as_deref()),
            queue,
            shared,
            is_durable: builder.is_durable,
            durability: builder.durability,
            clock: builder.given_time.unwrap_or_else(|| Arc::new(SystemClock::default())),
        })
    }

    fn request(&self, operation: &Operation<'_>) -> (Request, oneshot::Receiver<Result<Answer, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let policy = operation.check.policy;
        let request = Request {
            name: Name(self.identities.of(policy, operation.check.key)),
            is_durable: self.durability.get(policy.name()).copied().unwrap_or(self.is_durable),
            verb: operation.verb,
            description: batch::describe(operation),
            reply,
        };
        (request, answer)
    }

    async fn decide_one(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let (request, answer) = self.request(&operation);
        match self.queue.try_send(request) {
            Ok(()) => read_answer(&operation, answer.await),
            Err(mpsc::error::TrySendError::Full(_)) => {
                let waiting = self.queue.max_capacity();
                Err(StoreError::transient(format!("postgres: {waiting} calls wait already")))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(gone()),
        }
    }

    fn late(&self) -> StoreError {
        StoreError::lost(format!("postgres: no answer within {:?}", self.shared.budget))
    }
}

impl Store for PostgresStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        match tokio::time::timeout(self.shared.budget, self.decide_one(operation)).await {
            Ok(decision) => decision,
            Err(_) => Err(self.late()),
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut answers = Vec::with_capacity(operations.len());
        let mut decisions = Vec::with_capacity(operations.len());
        let in_time = async {
            for operation in operations {
                let (request, answer) = self.request(operation);
                if let Err(mpsc::error::SendError(request)) = self.queue.send(request).await {
                    request.answer(Err(gone()));
                }
                answers.push(answer);
            }
            for (operation, answer) in operations.iter().zip(&mut answers) {
                decisions.push(read_answer(operation, answer.await));
            }
        };
        if tokio::time::timeout(self.shared.budget, in_time).await.is_err() {
            // What has arrived counts; what has not may have been counted.
            for (operation, answer) in operations.iter().zip(&mut answers).skip(decisions.len()) {
                decisions.push(match answer.try_recv() {
                    Ok(arrived) => read_answer(operation, Ok(arrived)),
                    Err(_) => Err(self.late()),
                });
            }
            decisions.resize_with(operations.len(), || Err(self.late()));
        }
        decisions
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

fn gone() -> StoreError {
    StoreError::transient("postgres: the store's task is gone")
}

/// Works out the decision from what the function decided from. It has spent; these are the numbers.
fn read_answer(
    operation: &Operation<'_>,
    answer: Result<Result<Answer, StoreError>, oneshot::error::RecvError>,
) -> Result<Decision, StoreError> {
    let lost = || StoreError::lost("postgres: the connection broke before the reply");
    let Answer { now_ms, is_allowed, before } = answer.map_err(|_| lost())??;
    let policy = operation.check.policy;
    let odd = |what| {
        StoreError::permanent(format!("postgres: {what}; is another version at work?")).perhaps_counted()
    };
    let mut states = record::read(&before, policy.quotas())
        .map_err(|record::Unreadable| odd("the record makes no sense"))?;
    let action = Action::new(operation.verb, now_ms, operation.check.cost);
    let (decision, _) = decide_matched(&mut states, policy, action);
    if decision.is_allowed() == is_allowed {
        Ok(decision)
    } else {
        Err(odd("the functions and the library disagree"))
    }
}
