//! The Redis store: decisions are made by one script, in the server, by the server's time.

mod backoff;
mod call;
mod cluster;
mod description;
mod endpoint;
mod exchange;
mod failure;
mod key;
mod node;
mod record;
mod script;
mod sentinel;
mod settings;
mod skew;
mod url;

use std::fmt;
use std::sync::{Arc, Weak};

use slidegate_core::{Action, Counter, Decision, State, decide_matched};
use tokio::sync::oneshot;

pub use self::key::KeyStyle;
pub use self::settings::RedisStoreBuilder;
pub use self::url::UrlError;

use self::call::{Answer, Request};
use self::cluster::Cluster;
use self::description::Description;
use self::endpoint::{Access, Target};
use self::key::Names;
use self::node::{NodeHandle, Shared};
use self::skew::Skew;
use self::url::Topology;
use super::{Operation, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// How much longer than needed records live if the server's time is not what decides.
const GIVEN_TIME_SLACK_MS: u64 = 3_600_000;
/// The latest moment that a record can hold.
const LATEST_MS: u64 = 1 << 47;

/// Counts in Redis or Valkey: one server, one watched over by sentinels, or a cluster.
///
/// Any number of processes share their limits through it. Each decision is one run of one script on one key; checks
/// that are made at the same time are gathered into one call.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slidegate::{Limiter, Policy, RedisStore};
///
/// let limiter = Limiter::new(RedisStore::connect("redis://127.0.0.1:6379").await?);
/// let api = Policy::parse("api", ["10/1s", "1000/1h"])?;
/// let decision = limiter.check(api.key("user:1")).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisStore {
    names: Names,
    road: Road,
    shared: Arc<Shared>,
    slack_ms: u64,
    clock: Arc<dyn Clock>,
}

/// Who gets a request.
enum Road {
    One(NodeHandle),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Sets up a store. The URL says where the servers are: `redis://host`, `rediss://…` for TLS,
    /// `redis+unix:///path`, `redis+sentinel://a,b,c/name`, `redis+cluster://a,b,c`; each with `user:password@` and
    /// options behind a question mark: `prefix`, `secret`, `keys=plain`, `budget_ms`, `ca`, `sentinel_user`,
    /// `sentinel_password`.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        RedisStoreBuilder::parse(url)
    }

    /// Connects with what the URL says.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let builder = Self::builder(url).map_err(|error| StoreError::permanent(error.to_string()))?;
        builder.connect().await
    }

    /// By how many milliseconds the server's clock is ahead of this host's, as last measured; negative if it is
    /// behind. Limits follow the server's clock alone.
    pub fn server_ahead_ms(&self) -> Option<i64> {
        self.shared.skew.server_ahead_ms()
    }

    fn start(builder: RedisStoreBuilder) -> Self {
        let access = Access::new(&builder);
        let target = Target::new(&builder, &access);
        let shared = Arc::new(Shared {
            access,
            budget: builder.budget,
            max_waiting: builder.max_waiting,
            given_time: builder.given_time.clone(),
            skew: Skew::default(),
        });
        let road = match builder.url.topology {
            Topology::Cluster => {
                Road::Cluster(Cluster::start(builder.url.hosts.clone(), Arc::clone(&shared)))
            }
            _ => Road::One(node::start(target, Arc::clone(&shared), Weak::new())),
        };
        Self {
            names: builder.names(),
            road,
            slack_ms: if builder.given_time.is_some() { GIVEN_TIME_SLACK_MS } else { 0 },
            clock: builder.given_time.unwrap_or_else(|| Arc::new(SystemClock::default())),
            shared,
        }
    }

    async fn ready(&self) -> Result<(), StoreError> {
        match &self.road {
            Road::One(node) => node.ready().await,
            Road::Cluster(cluster) => cluster.ready().await,
        }
    }

    fn request(&self, operation: &Operation<'_>) -> (Request, oneshot::Receiver<Result<Answer, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let name = self.names.name(operation.check.policy, operation.check.key);
        let request = Request {
            slot: if matches!(self.road, Road::Cluster(_)) { key::slot(&name) } else { 0 },
            name,
            description: Description::new(operation, self.slack_ms),
            reply,
            hops: 0,
            is_asking: false,
            is_alone: false,
        };
        (request, answer)
    }

    async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        match &self.road {
            Road::One(node) => Ok(node.clone()),
            Road::Cluster(cluster) => cluster.node(slot).await,
        }
    }

    async fn decide_one(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let (request, answer) = self.request(&operation);
        match &self.road {
            Road::One(node) => node.send_now(request),
            Road::Cluster(_) => self.node(request.slot).await?.send_now(request),
        }
        read_answer(&operation, answer.await)
    }

    async fn decide_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut answers = Vec::with_capacity(operations.len());
        let mut decisions = Vec::with_capacity(operations.len());
        let in_time = async {
            for operation in operations {
                let (request, answer) = self.request(operation);
                match self.node(request.slot).await {
                    Ok(node) => node.send(request).await,
                    Err(error) => request.answer(Err(error)),
                }
                answers.push(answer);
            }
            for (operation, answer) in operations.iter().zip(&mut answers) {
                decisions.push(read_answer(operation, answer.await));
            }
        };
        let is_late = tokio::time::timeout(self.shared.budget, in_time).await.is_err();
        if is_late {
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

    fn late(&self) -> StoreError {
        StoreError::lost(format!("redis: no answer within {:?}", self.shared.budget))
    }
}

impl Store for RedisStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        match tokio::time::timeout(self.shared.budget, self.decide_one(operation)).await {
            Ok(decision) => decision,
            Err(_) => Err(self.late()),
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        self.decide_many(operations).await
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

/// Works out the decision from what the script decided from. The script has spent; these are the numbers.
fn read_answer(
    operation: &Operation<'_>,
    answer: Result<Result<Answer, StoreError>, oneshot::error::RecvError>,
) -> Result<Decision, StoreError> {
    let lost = || StoreError::lost("redis: the connection broke before the reply");
    let Answer { now_ms, is_allowed, before } = answer.map_err(|_| lost())??;
    let policy = operation.check.policy;
    // The script has run, whatever comes of its answer here.
    let odd =
        |what| StoreError::permanent(format!("redis: {what}; is another version at work?")).perhaps_counted();
    let mut states = match &before {
        None => policy.quotas().iter().map(State::empty).collect(),
        Some(before) => record::read(before, policy.quotas())
            .map_err(|record::Unreadable| odd("the record makes no sense"))?,
    };
    let action = Action::new(operation.verb, now_ms.min(LATEST_MS), operation.check.cost);
    let (decision, _) = decide_matched(&mut states, policy, action);
    if decision.is_allowed() == is_allowed {
        Ok(decision)
    } else {
        Err(odd("the script and the library disagree"))
    }
}
