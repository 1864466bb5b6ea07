//! Redis store: one script decides, in the server, by the server's time.

mod batch;
mod batcher;
mod cluster;
mod connector;
mod encoded_operation;
mod endpoint;
mod exchange;
mod failure;
mod forget;
mod invalidation;
mod key;
mod node;
mod node_handle;
mod outage;
mod record;
mod script;
mod sentinel;
mod settings;
mod shared;
mod shared_document;
mod skew;
mod staggered_race;
mod url;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use slidegate_core::{Check, Decision, Moment, Policy, Verb};

pub use self::key::KeyStyle;
pub use self::settings::RedisStoreBuilder;

use self::batch::{GROUP_REPEAT_RANGE, KeyedOperation, PriorRecord, Response};
use self::cluster::Cluster;
use self::connector::Connector;
use self::encoded_operation::EncodedOperation;
use self::endpoint::Endpoint;
use self::key::KeyNames;
use self::node_handle::NodeHandle;
use self::shared::Shared;
use self::shared_document::DocumentLink;
use self::url::Topology;
use super::invalidation::FeedVersion;
use super::remote::{self, FULL_BATCH, PriorState, RemoteSettings, RemoteStore, Request};
use super::{Operation, Responses, Store};
use crate::clock::Clock;
use crate::error::{SettingsError, StoreError};

/// Extension of a record's time to live if a given clock decides in place of the server's.
const GIVEN_TIME_SLACK_MS: u64 = 3_600_000;
/// Number of keys among which each server of a cluster has one.
const MAX_PROBES: usize = 1000;
/// Attempts of each probe before a server that does not respond in time counts as unavailable.
const MAX_PROBE_ATTEMPTS: usize = 5;
/// Latest time that a record can hold.
const LATEST_MS: u64 = 1 << 47;

/// Store that counts in Redis or Valkey: one server, a primary behind sentinels, or a cluster.
///
/// Any number of processes share their limits through it. A script decides in the server; concurrent checks are sent in
/// one script call.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slidegate::Policy;
/// use slidegate::store::{RedisStore, StoreLimiter};
///
/// let limiter = StoreLimiter::new(RedisStore::connect("redis://127.0.0.1:6379").await?);
/// let api = Policy::parse("api", ["10/1s", "1000/1h"])?;
/// let decision = limiter.check(api.key("user:1")).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisStore {
    names: KeyNames,
    route: Route,
    endpoint: Endpoint,
    document: DocumentLink,
    shared: Arc<Shared>,
    /// Extension of a record's time to live.
    slack_ms: u64,
    clock: Arc<dyn Clock>,
}

/// Route of a request to its server.
enum Route {
    Single(NodeHandle),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Returns a builder with the settings of a URL: `redis://host`, `rediss://…` for TLS, `redis+unix:///path`,
    /// `redis+sentinel://a,b,c/name` or `redis+cluster://a,b,c`. Each form accepts `user:password@`, and options after a
    /// question mark: `prefix`, `secret`, `keys=plain`, `budget_ms`, `ca`, `cert`, `key`, `database`, `sentinel_user`,
    /// `sentinel_password`.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, SettingsError> {
        RedisStoreBuilder::parse(url)
    }

    /// Connects with the settings of a URL.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let builder = Self::builder(url).map_err(|error| StoreError::permanent(error.to_string()))?;
        builder.connect().await
    }

    /// Returns by how many milliseconds the server's clock is ahead of this host's, as last measured; negative if it is
    /// behind. For a cluster, returns the largest skew of any server. Only the server's clock affects limits.
    pub fn server_ahead_ms(&self) -> Option<i64> {
        match &self.route {
            Route::Single(node) => node.skew.server_ahead_ms(),
            Route::Cluster(cluster) => cluster.server_ahead_ms(),
        }
    }

    fn start(builder: &RedisStoreBuilder) -> Self {
        let connector = Connector::new(builder);
        let endpoint = Endpoint::new(builder, &connector);
        let shared = Arc::new(Shared { connector, settings: builder.remote.clone() });
        let route = match builder.url.topology {
            Topology::Cluster => {
                Route::Cluster(Cluster::start(builder.url.hosts.clone(), Arc::clone(&shared), node::start))
            }
            _ => Route::Single(node::start(endpoint.clone(), Arc::clone(&shared), Weak::new())),
        };
        Self {
            names: builder.names(),
            route,
            endpoint,
            document: DocumentLink::new(&builder.prefix),
            slack_ms: if builder.remote.given_time.is_some() { GIVEN_TIME_SLACK_MS } else { 0 },
            clock: builder.remote.clock(),
            shared,
        }
    }

    /// Waits for the connections, and executes each kind of operation on a probe key of each server. Missing permissions,
    /// a rejected prefix or script, and a replica are thereby reported before the first request.
    async fn ready(&self) -> Result<(), StoreError> {
        let policy =
            Policy::parse("slidegate", ["9/1m"]).map_err(|error| StoreError::permanent(error.to_string()))?;
        let key = |number: usize| format!("probe {number}");
        let keys = match &self.route {
            Route::Single(node) => {
                node.ready().await?;
                vec![key(0)]
            }
            Route::Cluster(cluster) => {
                cluster.nodes_ready().await?;
                let slot = |number| key::slot(&self.names.name(&policy, key(number).as_bytes()));
                cluster.first_on_each_node((0..MAX_PROBES).map(slot)).into_iter().map(key).collect()
            }
        };
        let mut results = Vec::new();
        for key in &keys {
            let probe = |verb| Operation::new(verb, policy.key(key));
            // The first check writes a record and the second changes it. Both are read by one MGET. The reset also publishes.
            let checks = self.execute_probe(&[probe(Verb::Check), probe(Verb::Check)]).await;
            let reset = self.execute_probe(&[probe(Verb::Reset)]).await;
            // A full server still denies.
            let mut errors = checks.into_iter().chain(reset).filter_map(Result::err);
            let failure = errors.find(|error| !error.is_full());
            results.push(failure.map_or(Ok(()), Err));
        }
        // An unavailable server of a cluster is tolerated while others serve. A permanent error is not.
        let is_served = results.iter().any(Result::is_ok);
        results
            .into_iter()
            .filter(|result| !is_served || result.as_ref().is_err_and(|error| !error.is_transient()))
            .collect()
    }

    /// Executes operations on a probe key, again after each timeout: a busy server may need longer than a request's budget
    /// to load the script, and counts of a probe key have no effect.
    async fn execute_probe(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut attempts = 1;
        loop {
            let responses: Vec<_> = self.execute(operations).await.into_iter().collect();
            let is_late = responses.iter().any(|response| response.as_ref().is_err_and(StoreError::is_late));
            if !is_late || attempts == MAX_PROBE_ATTEMPTS {
                return responses;
            }
            attempts += 1;
        }
    }

    async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        match &self.route {
            Route::Single(node) => Ok(node.clone()),
            Route::Cluster(cluster) => cluster.node(slot).await,
        }
    }
}

impl RemoteStore for RedisStore {
    type KeyedOperation = KeyedOperation;
    type Response = Response;

    const NAME: &'static str = "redis";

    fn settings(&self) -> &RemoteSettings {
        &self.shared.settings
    }

    fn encode(&self, operation: &Operation<'_>) -> KeyedOperation {
        let name = self.names.name(operation.check.policy, operation.check.key);
        let is_single = matches!(self.route, Route::Single(_));
        KeyedOperation {
            slot: if is_single { 0 } else { key::slot(&name) },
            name,
            encoded: EncodedOperation::new(operation, self.slack_ms, is_single),
            weight: encoded_operation::weight(operation.check.policy.quotas()),
            is_spending: operation.verb.spends() && operation.check.cost > 0,
            redirects: 0,
            is_importing: false,
            is_unbatched: false,
        }
    }

    /// A script call that is rejected as a whole is sent again, after later calls that may have been executed. The requests
    /// of one key in a group therefore share a call, or the later ones wait for the response to the earlier ones.
    fn group_len(operations: &[Operation<'_>]) -> usize {
        /// Weight of the requests before a repeated key. Even for long logs it is a few milliseconds of server time.
        const MAX_WEIGHT: usize = 16 * FULL_BATCH;
        let mut seen = HashSet::with_capacity(operations.len());
        let mut weight = 0;
        for (count, Operation { check, .. }) in operations.iter().enumerate() {
            let is_new = seen.insert((check.policy.name(), check.key));
            if !is_new && (count >= GROUP_REPEAT_RANGE || weight >= MAX_WEIGHT) {
                return count;
            }
            weight += encoded_operation::weight(check.policy.quotas());
        }
        operations.len()
    }

    async fn enqueue(&self, request: Request<Self>) {
        match &self.route {
            Route::Single(node) => node.queue.try_send(request),
            Route::Cluster(cluster) => match cluster.node(request.operation.slot).await {
                Ok(node) => node.queue.try_send(request),
                Err(error) => request.respond(Err(error)),
            },
        }
    }

    async fn enqueue_group(&self, requests: Vec<Request<Self>>) {
        let mut by_node: Vec<(NodeHandle, Vec<Request<Self>>)> = Vec::new();
        // One lookup per slot: its owner may change meanwhile, and the requests of one key must go to one server.
        let mut index_by_slot: HashMap<u16, usize> = HashMap::new();
        for request in requests {
            if let Some(index) = index_by_slot.get(&request.operation.slot) {
                by_node[*index].1.push(request);
                continue;
            }
            let slot = request.operation.slot;
            match self.node(slot).await {
                Ok(node) => {
                    let known = by_node.iter().position(|(other, _)| other.queue.is_same_queue(&node.queue));
                    let index = known.unwrap_or_else(|| {
                        by_node.push((node, Vec::new()));
                        by_node.len() - 1
                    });
                    by_node[index].1.push(request);
                    index_by_slot.insert(slot, index);
                }
                Err(error) => request.respond(Err(error)),
            }
        }
        // Concurrently, so that a full queue delays only its own group.
        let sending = by_node.into_iter().map(|(node, requests)| async move {
            node.queue.send_group(requests).await;
        });
        join_all(sending).await;
    }

    fn decode(&self, operation: &Operation<'_>, response: Response) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let prior = match &response.prior {
            PriorRecord::Absent => Some(PriorState::empty(policy)),
            // The response to a reset contains no record, only whether there was one.
            _ if operation.verb == Verb::Reset => {
                Some(PriorState { is_found: true, ..PriorState::empty(policy) })
            }
            PriorRecord::Number(number) => record::decode_number(*number, policy.quotas()).ok(),
            PriorRecord::Bytes(record) => record::decode(record, policy.quotas()).ok(),
        };
        let now = Moment::with_grain(response.now_ms.min(LATEST_MS), self.settings().grain_ms());
        remote::compute_decision::<Self>(operation, now, response.is_allowed, prior)
    }
}

impl Store for RedisStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        remote::execute(self, operations).await
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        remote::execute_within(self, operations, budget).await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.forget_policy(policy).await.map(Some)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match &self.route {
            Route::Single(_) => {
                Some(self.shared.connector.subscriber().version(&self.names.name(check.policy, check.key)))
            }
            // Invalidations are not delivered reliably while a key moves from one server to another.
            Route::Cluster(_) => None,
        }
    }
}
