//! The Redis store: decisions are made by one script, in the server, by the server's time.

mod call;
mod cluster;
mod description;
mod endpoint;
mod exchange;
mod failure;
mod forget;
mod invalidation;
mod key;
mod node;
mod record;
mod script;
mod sentinel;
mod settings;
mod shared_document;
mod skew;
mod staggered;
mod url;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use slidegate_core::{Check, Decision, Moment, Policy, Verb};

pub use self::key::KeyStyle;
pub use self::settings::RedisStoreBuilder;
pub use self::url::UrlError;

use self::call::{Answer, Before, Request};
use self::cluster::Cluster;
use self::description::Description;
use self::endpoint::{Access, Target};
use self::key::Names;
use self::node::{MAX_WEIGHT, MOST_REPEATED, NodeHandle, Shared};
use self::shared_document::DocumentLink;
use self::url::Topology;
use super::invalidation::FeedVersion;
use super::remote::{self, Known, Pending, Remote};
use super::{Operation, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// How much longer than needed records live if the server's time is not what decides.
const GIVEN_TIME_SLACK_MS: u64 = 3_600_000;
/// Among so many keys are some of each server of a cluster.
const MOST_PROBES: usize = 1000;
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
    target: Target,
    document: DocumentLink,
    shared: Arc<Shared>,
    /// Of the time that decides.
    grain_ms: u64,
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
    /// options behind a question mark: `prefix`, `secret`, `keys=plain`, `budget_ms`, `ca`, `cert`, `key`, `database`, `sentinel_user`,
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
            _ => Road::One(node::start(target.clone(), Arc::clone(&shared), Weak::new())),
        };
        Self {
            names: builder.names(),
            road,
            target,
            document: builder.document(),
            grain_ms: u64::from(builder.given_time.is_none()),
            slack_ms: if builder.given_time.is_some() { GIVEN_TIME_SLACK_MS } else { 0 },
            clock: builder.given_time.unwrap_or_else(|| Arc::new(SystemClock::default())),
            shared,
        }
    }

    /// Waits until the servers can be reached, and sees that they do as they are asked: permissions, the prefix, the script,
    /// and whether it is a replica are better known now than with the first request.
    async fn ready(&self) -> Result<(), StoreError> {
        let policy =
            Policy::parse("slidegate", ["9/1m"]).map_err(|error| StoreError::permanent(error.to_string()))?;
        let key = |number: usize| format!("probe {number}");
        let keys = match &self.road {
            Road::One(node) => {
                node.ready().await?;
                vec![key(0)]
            }
            Road::Cluster(cluster) => {
                cluster.acquainted().await?;
                let slot = |number| key::slot(&self.names.name(&policy, key(number).as_bytes()));
                cluster.one_of_each((0..MOST_PROBES).map(slot)).into_iter().map(key).collect()
            }
        };
        let mut answers = Vec::new();
        for key in &keys {
            let probe = |verb| Operation { verb, check: policy.key(key) };
            // One is written, the next counts on, and both are read at once. A reset is told to those who listen, too.
            let mut all = self.execute_many(&[probe(Verb::Check), probe(Verb::Check)]).await;
            all.push(self.execute(probe(Verb::Reset)).await);
            // One that is full still denies.
            let failed = all.into_iter().filter_map(Result::err).find(|error| !error.is_full());
            answers.push(failed.map_or(Ok(()), Err));
        }
        // With one server of a cluster away the others serve; but who may not do something must know.
        let is_served = answers.iter().any(Result::is_ok);
        answers
            .into_iter()
            .filter(|answer| !is_served || answer.as_ref().is_err_and(|error| !error.is_transient()))
            .collect()
    }

    async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        match &self.road {
            Road::One(node) => Ok(node.clone()),
            Road::Cluster(cluster) => cluster.node(slot).await,
        }
    }
}

impl Remote for RedisStore {
    type Request = Request;
    type Answer = Answer;

    const NAME: &'static str = "redis";

    fn budget(&self) -> Duration {
        self.shared.budget
    }

    fn max_waiting(&self) -> usize {
        self.shared.max_waiting
    }

    fn request(&self, operation: &Operation<'_>) -> (Request, Pending<Answer>) {
        let (reply, pending) = remote::channel();
        let name = self.names.name(operation.check.policy, operation.check.key);
        let request = Request {
            slot: if matches!(self.road, Road::Cluster(_)) { key::slot(&name) } else { 0 },
            name,
            description: Description::new(operation, self.slack_ms, matches!(self.road, Road::One(_))),
            reply,
            weight: description::weight(operation.check.policy.quotas()),
            is_spending: matches!(operation.verb, Verb::Check | Verb::Charge) && operation.check.cost > 0,
            hops: 0,
            is_asking: false,
            is_alone: false,
        };
        (request, pending)
    }

    /// A call that is refused as a whole is sent again, and those that were sent behind it may have been executed. So what
    /// is asked of one key is in one call, or waits until the call before has been answered.
    fn most_together(operations: &[Operation<'_>]) -> usize {
        /// Even if all of them walk long logs it is some milliseconds of the server's time.
        const MOST_WEIGHT: usize = 16 * MAX_WEIGHT;
        let mut seen = HashSet::with_capacity(operations.len());
        let mut weight = 0;
        for (count, Operation { check, .. }) in operations.iter().enumerate() {
            let is_new = seen.insert((check.policy.name(), check.key));
            if !is_new && (count >= MOST_REPEATED || weight >= MOST_WEIGHT) {
                return count;
            }
            weight += description::weight(check.policy.quotas());
        }
        operations.len()
    }

    async fn send_now(&self, request: Request) {
        match &self.road {
            Road::One(node) => node.queue.send_now(request),
            Road::Cluster(cluster) => match cluster.node(request.slot).await {
                Ok(node) => node.queue.send_now(request),
                Err(error) => request.answer(Err(error)),
            },
        }
    }

    async fn send_together(&self, requests: Vec<Request>) {
        let mut by_node: Vec<(NodeHandle, Vec<Request>)> = Vec::new();
        // Once for each slot: who has it may change meanwhile, and what is asked of one key stays together.
        let mut places: HashMap<u16, usize> = HashMap::new();
        for request in requests {
            if let Some(place) = places.get(&request.slot) {
                by_node[*place].1.push(request);
                continue;
            }
            let slot = request.slot;
            match self.node(slot).await {
                Ok(node) => {
                    let known = by_node.iter().position(|(other, _)| other.queue.is_same(&node.queue));
                    let place = known.unwrap_or_else(|| {
                        by_node.push((node, Vec::new()));
                        by_node.len() - 1
                    });
                    by_node[place].1.push(request);
                    places.insert(slot, place);
                }
                Err(error) => request.answer(Err(error)),
            }
        }
        // At the same time, so that one whose queue is full holds up no other.
        let sending = by_node.into_iter().map(|(node, requests)| async move {
            node.queue.send_together(requests).await;
        });
        join_all(sending).await;
    }

    fn read(&self, operation: &Operation<'_>, answer: Answer) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let known = match &answer.before {
            Before::Nothing => Some(Known::empty(policy)),
            // It says no more than that there was something to forget.
            _ if operation.verb == Verb::Reset => Some(Known { is_found: true, ..Known::empty(policy) }),
            Before::Number(number) => record::read_number(*number, policy.quotas()).ok(),
            Before::Record(record) => record::read(record, policy.quotas()).ok(),
        };
        let now = Moment::within(answer.now_ms.min(LATEST_MS), self.grain_ms);
        remote::work_out::<Self>(operation, now, answer.is_allowed, known)
    }
}

impl Store for RedisStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        remote::execute(self, &operation).await
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        remote::execute_many(self, operations).await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.forget_policy(policy).await.map(Some)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match &self.road {
            Road::One(_) => {
                Some(self.shared.access.subscriber().version(&self.names.name(check.policy, check.key)))
            }
            // Keys move from one server to another, and what is said on the way reaches nobody for sure.
            Road::Cluster(_) => None,
        }
    }
}
