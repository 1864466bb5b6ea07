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
mod supervise;
mod url;

use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::sync::{Arc, Weak};

use slidegate_core::{Action, Counter, Decision, Policy, State, Verb, decide_matched};
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
    /// behind. Of a cluster, that of the server that is furthest off. Limits follow the server's clock alone.
    pub fn server_ahead_ms(&self) -> Option<i64> {
        match &self.road {
            Road::One(node) => node.skew.server_ahead_ms(),
            Road::Cluster(cluster) => cluster.server_ahead_ms(),
        }
    }

    fn start(builder: RedisStoreBuilder) -> Self {
        let access = Access::new(&builder);
        let target = Target::new(&builder, &access);
        let shared = Arc::new(Shared {
            access,
            budget: builder.budget,
            max_waiting: builder.max_waiting,
            given_time: builder.given_time.clone(),
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

    /// Waits until the servers can be reached, and sees that they do as they are asked.
    async fn ready(&self) -> Result<(), StoreError> {
        match &self.road {
            Road::One(node) => node.ready().await?,
            Road::Cluster(cluster) => cluster.ready().await?,
        }
        // Permissions, the prefix and the script: better known now than with the first request.
        let policy =
            Policy::parse("slidegate", ["1/1s"]).map_err(|error| StoreError::permanent(error.to_string()))?;
        let probe = Operation { verb: Verb::Peek, check: policy.key("probe") };
        self.execute(probe).await.map(drop)
    }

    fn request(&self, operation: &Operation<'_>) -> (Request, Pending) {
        let (reply, answer) = oneshot::channel();
        let has_left = Arc::new(AtomicBool::new(false));
        let name = self.names.name(operation.check.policy, operation.check.key);
        let request = Request {
            slot: if matches!(self.road, Road::Cluster(_)) { key::slot(&name) } else { 0 },
            name,
            description: Description::new(operation, self.slack_ms),
            reply,
            has_left: Arc::clone(&has_left),
            weight: description::weight(operation.check.policy.quotas()),
            hops: 0,
            is_asking: false,
            is_alone: false,
        };
        (request, Pending { answer, has_left })
    }

    async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        match &self.road {
            Road::One(node) => Ok(node.clone()),
            Road::Cluster(cluster) => cluster.node(slot).await,
        }
    }

    async fn send_now(&self, request: Request) {
        match &self.road {
            Road::One(node) => node.send_now(request),
            Road::Cluster(cluster) => match cluster.node(request.slot).await {
                Ok(node) => node.send_now(request),
                Err(error) => request.answer(Err(error)),
            },
        }
    }

    async fn send(&self, request: Request) {
        match self.node(request.slot).await {
            Ok(node) => node.send(request).await,
            Err(error) => request.answer(Err(error)),
        }
    }

    /// What to tell a caller whose time is over.
    fn late(&self, pending: &mut Pending) -> Result<Answer, StoreError> {
        pending.answer.close();
        if let Ok(arrived) = pending.answer.try_recv() {
            return arrived;
        }
        fence(SeqCst);
        let message = format!("redis: no answer within {:?}", self.shared.budget);
        let has_left = pending.has_left.load(Relaxed);
        Err(if has_left { StoreError::lost(message) } else { StoreError::transient(message) })
    }
}

/// A request under way, as its caller sees it.
struct Pending {
    answer: oneshot::Receiver<Result<Answer, StoreError>>,
    /// Whether it may have been counted.
    has_left: Arc<AtomicBool>,
}

impl Pending {
    async fn wait(&mut self) -> Result<Answer, StoreError> {
        let lost = |_| StoreError::lost("redis: the connection broke before the reply");
        (&mut self.answer).await.map_err(lost)?
    }
}

impl Store for RedisStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let (request, mut pending) = self.request(&operation);
        let in_time = async {
            self.send_now(request).await;
            pending.wait().await
        };
        let answer = match tokio::time::timeout(self.shared.budget, in_time).await {
            Ok(answer) => answer,
            Err(_) => self.late(&mut pending),
        };
        read_answer(&operation, answer)
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut pending: Vec<Pending> = Vec::with_capacity(operations.len());
        let mut answers = Vec::with_capacity(operations.len());
        // No batch, however large, takes the queue from everybody else.
        let most = (self.shared.max_waiting / 8).max(1);
        let in_time = async {
            for operation in operations {
                if pending.len() - answers.len() >= most {
                    let oldest = answers.len();
                    answers.push(pending[oldest].wait().await);
                }
                let (request, one) = self.request(operation);
                pending.push(one);
                self.send(request).await;
            }
            while answers.len() < pending.len() {
                let oldest = answers.len();
                answers.push(pending[oldest].wait().await);
            }
        };
        if tokio::time::timeout(self.shared.budget, in_time).await.is_err() {
            for one in pending.iter_mut().skip(answers.len()) {
                answers.push(self.late(one));
            }
            let unsent = format!("redis: not sent within {:?}", self.shared.budget);
            answers.resize_with(operations.len(), || Err(StoreError::transient(unsent.clone())));
        }
        operations.iter().zip(answers).map(|(operation, answer)| read_answer(operation, answer)).collect()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

/// Works out the decision from what the script decided from. The script has spent; these are the numbers.
fn read_answer(
    operation: &Operation<'_>,
    answer: Result<Answer, StoreError>,
) -> Result<Decision, StoreError> {
    let Answer { now_ms, is_allowed, before } = answer?;
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
