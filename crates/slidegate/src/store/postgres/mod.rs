//! PostgreSQL store: functions in the database make the decisions, by its time, in one statement.

mod batch;
mod batcher;
mod call;
mod clean;
mod encoded_operation;
mod failure;
mod forget;
mod invalidation;
mod migration;
mod name;
mod pool;
mod record;
mod scheduler;
mod settings;
mod shared;
mod shared_document;
mod start;
mod statement;
mod tls;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use slidegate_core::{Check, Decision, Moment, Policy, Verb};

pub use self::settings::{PostgresStoreBuilder, Synchronous};

use self::batch::{KeyedOperation, Response};
use self::encoded_operation::EncodedOperation;
use self::invalidation::Subscriber;
use self::name::Name;
use self::shared::Shared;
use super::invalidation::FeedVersion;
use super::key_hash::KeyHasher;
use super::remote::{self, PriorState, QueueSender, RemoteSettings, RemoteStore, Request};
use super::{Operation, Responses, Store};
use crate::clock::Clock;
use crate::error::{SettingsError, StoreError};

/// Store in PostgreSQL.
///
/// Each decision is one statement, which calls one function. Concurrent checks share a statement.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slidegate::Policy;
/// use slidegate::store::{PostgresStore, StoreLimiter};
///
/// let limiter = StoreLimiter::new(PostgresStore::connect("postgres://app@localhost/app").await?);
/// let api = Policy::parse("api", ["10/1s", "1000/1h"])?;
/// let decision = limiter.check(api.key("user:1")).await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresStore {
    key_hasher: KeyHasher,
    queue: QueueSender<Self>,
    shared: Arc<Shared>,
    /// Subscriber of each table.
    subscribers: [Arc<Subscriber>; 2],
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
    /// Creates a builder from a URL of PostgreSQL, such as `postgres://user:password@host:5432/database`. Besides
    /// PostgreSQL's own options it may have these: `schema`, `secret`, `durable`, `sync`, `budget_ms`, `connections`, `ca`.
    pub fn builder(url: &str) -> Result<PostgresStoreBuilder, SettingsError> {
        PostgresStoreBuilder::parse(url)
    }

    /// Connects with the settings of the URL, see [`builder`](Self::builder).
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let builder = Self::builder(url).map_err(|error| StoreError::permanent(error.to_string()))?;
        builder.connect().await
    }

    /// Returns the SQL that creates the store's tables and functions in `schema`, for deployments that run migrations
    /// separately. It may be run any number of times.
    pub fn migration(schema: &str) -> Result<String, SettingsError> {
        let builder = PostgresStoreBuilder::parse("postgres://localhost")?.schema(schema)?;
        Ok(builder.migration())
    }

    /// Removes the expired keys of all policies, a few pages at a time, and returns their number. Decisions also remove some
    /// expired keys; this is for schemas that are no longer in use.
    pub async fn clean(&self) -> Result<u64, StoreError> {
        clean::clean(&self.shared).await
    }

    fn is_durable(&self, policy: &Policy) -> bool {
        self.durability.get(policy.name()).copied().unwrap_or(self.is_durable)
    }
}

impl RemoteStore for PostgresStore {
    type KeyedOperation = KeyedOperation;
    type Response = Response;

    const NAME: &'static str = "postgres";

    fn settings(&self) -> &RemoteSettings {
        &self.shared.settings
    }

    fn encode(&self, operation: &Operation<'_>) -> KeyedOperation {
        let policy = operation.check.policy;
        KeyedOperation {
            name: Name(self.key_hasher.hash(policy, operation.check.key)),
            is_durable: self.is_durable(policy),
            verb: operation.verb,
            encoded: EncodedOperation::new(operation),
        }
    }

    async fn enqueue(&self, request: Request<Self>) {
        self.queue.try_send(request);
    }

    async fn enqueue_group(&self, requests: Vec<Request<Self>>) {
        self.queue.send_group(requests).await;
    }

    fn decode(&self, operation: &Operation<'_>, response: Response) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let prior = match operation.verb {
            // A reset returns only whether it removed anything.
            Verb::Reset => {
                Some(PriorState { is_found: !response.prior.is_empty(), ..PriorState::empty(policy) })
            }
            _ => record::read(&response.prior, policy).ok(),
        };
        let now = Moment::with_grain(response.now_ms, self.settings().grain_ms());
        remote::compute_decision::<Self>(operation, now, response.is_allowed, prior)
    }
}

impl Store for PostgresStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        remote::execute(self, operations).await
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        remote::execute_within(self, operations, budget).await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        forget::forget(&self.shared, &self.key_hasher.range(policy)).await.map(Some)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        let subscriber = &self.subscribers[usize::from(self.is_durable(check.policy))];
        Some(subscriber.version(&self.shared, Name(self.key_hasher.hash(check.policy, check.key))))
    }
}
