//! The PostgreSQL store: decisions are made by functions in the database, by its time, in one statement.

mod answers;
mod batch;
mod call;
mod clean;
mod failure;
mod forget;
mod gather;
mod invalidation;
mod migration;
mod pool;
mod record;
mod settings;
mod shared_document;
mod statement;
mod tls;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use slidegate_core::{Check, Decision, Moment, Policy, Verb};

pub use self::settings::{PostgresSettingsError, PostgresStoreBuilder, Synchronous};

use self::batch::{Answer, Name, Request};
use self::pool::Shared;
use super::invalidation::FeedVersion;
use super::key_hash::KeyHasher;
use super::remote::{self, PendingResponse, PriorState, QueueSender, RemoteStore};
use super::supervise::supervise;
use super::{Operation, Responses, Store};
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
    key_hasher: KeyHasher,
    queue: QueueSender<Request>,
    shared: Arc<Shared>,
    is_durable: bool,
    durability: HashMap<String, bool>,
    /// Of the time that decides.
    grain_ms: u64,
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

    fn is_durable(&self, policy: &Policy) -> bool {
        self.durability.get(policy.name()).copied().unwrap_or(self.is_durable)
    }

    async fn start(builder: PostgresStoreBuilder) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::new(&builder)?);
        shared.prepare().await?;
        Ok(Self::over(shared, builder))
    }

    fn start_lazily(builder: PostgresStoreBuilder) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::new(&builder)?);
        shared.set_unprepared(Some(StoreError::transient(format!(
            "postgres at {}: not seen yet",
            shared.place
        ))));
        let prepared = Arc::downgrade(&shared);
        supervise("preparing postgres", move || pool::prepare_at_last(prepared.clone()));
        Ok(Self::over(shared, builder))
    }

    fn over(shared: Arc<Shared>, builder: PostgresStoreBuilder) -> Self {
        let (queue, waiting) = remote::queue(Self::NAME, builder.max_waiting);
        gather::start(waiting, Arc::clone(&shared));
        Self {
            key_hasher: KeyHasher::new(builder.secret.as_deref()),
            queue,
            shared,
            is_durable: builder.is_durable,
            durability: builder.durability,
            grain_ms: u64::from(builder.given_time.is_none()),
            clock: builder.given_time.unwrap_or_else(|| Arc::new(SystemClock::default())),
        }
    }
}

impl RemoteStore for PostgresStore {
    type Request = Request;
    type Response = Answer;

    const NAME: &'static str = "postgres";

    fn budget(&self) -> Duration {
        self.shared.budget
    }

    fn max_waiting(&self) -> usize {
        self.queue.max_waiting()
    }

    fn request(&self, operation: &Operation<'_>) -> (Request, PendingResponse<Answer>) {
        let (reply, pending) = remote::response_channel();
        let policy = operation.check.policy;
        let request = Request {
            name: Name(self.key_hasher.hash(policy, operation.check.key)),
            is_durable: self.is_durable(policy),
            verb: operation.verb,
            description: batch::describe(operation),
            reply,
        };
        (request, pending)
    }

    async fn enqueue(&self, request: Request) {
        self.queue.try_send(request);
    }

    async fn enqueue_group(&self, requests: Vec<Request>) {
        self.queue.send_group(requests).await;
    }

    fn decode(&self, operation: &Operation<'_>, answer: Answer) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let known = match operation.verb {
            // It says no more than whether there was something to forget.
            Verb::Reset => {
                Some(PriorState { is_found: !answer.before.is_empty(), ..PriorState::empty(policy) })
            }
            _ => record::read(&answer.before, policy).ok(),
        };
        let now = Moment::within(answer.now_ms, self.grain_ms);
        remote::compute_decision::<Self>(operation, now, answer.is_allowed, known)
    }
}

impl Store for PostgresStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        remote::execute(self, operations).await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        forget::forget(&self.shared, &self.key_hasher.range(policy)).await.map(Some)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        let subscriber = &self.shared.subscriber[usize::from(self.is_durable(check.policy))];
        Some(subscriber.version(&self.shared, Name(self.key_hasher.hash(check.policy, check.key))))
    }
}
