//! Stores of all kinds that a store URL can name, as one type.

use std::time::Duration;

use slidegate::{
    Check, Clock, FeedVersion, MemoryStore, Operation, Policy, PostgresStore, RedisStore, Responses, Store,
    StoreError,
};

use slidegate_config::{MemoryConfig, StoreUrl};

/// A store of any kind.
///
/// [`Store`] is not dyn-compatible: a boxed future per call would cost more than a decision in memory. Hence an enum.
#[derive(Debug)]
pub enum AnyStore {
    /// Memory of this process.
    Memory(MemoryStore),
    /// Redis or Valkey.
    Redis(RedisStore),
    /// PostgreSQL.
    Postgres(PostgresStore),
}

impl AnyStore {
    /// Builds the store or connects to it. `memory` has the settings of the memory store.
    pub async fn open(url: &StoreUrl, memory: MemoryConfig) -> Result<Self, String> {
        match url {
            StoreUrl::Memory => memory.build().map(Self::Memory).map_err(|error| error.to_string()),
            StoreUrl::Redis(redis) => {
                let connected = redis.builder().connect().await.map(Self::Redis);
                connected.map_err(|error| connect_error(url, &error))
            }
            StoreUrl::Postgres(postgres) => {
                let connected = postgres.builder().connect().await.map(Self::Postgres);
                connected.map_err(|error| connect_error(url, &error))
            }
        }
    }

    /// Opens the store with a time limit of `budget` per call. If a remote store is unreachable, the store connects in the
    /// background. Permanent errors, such as a wrong password, are returned.
    pub async fn open_or_retry(
        url: &StoreUrl,
        memory: MemoryConfig,
        budget: Duration,
    ) -> Result<Self, String> {
        let check_transient = |error: StoreError| {
            if !error.is_transient() {
                return Err(connect_error(url, &error));
            }
            tracing::warn!("{}; retrying in the background", connect_error(url, &error));
            Ok(())
        };
        match url {
            StoreUrl::Memory => Self::open(url, memory).await,
            StoreUrl::Redis(redis) => {
                let builder = redis.builder().budget(budget);
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::Redis(store)),
                    Err(error) => check_transient(error).map(|()| Self::Redis(builder.connect_lazily())),
                }
            }
            StoreUrl::Postgres(postgres) => {
                let builder = postgres.builder().budget(budget);
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::Postgres(store)),
                    Err(error) => {
                        check_transient(error)?;
                        let store = builder.connect_lazily().map_err(|error| connect_error(url, &error))?;
                        Ok(Self::Postgres(store))
                    }
                }
            }
        }
    }
}

fn connect_error(url: &StoreUrl, error: &StoreError) -> String {
    format!("cannot connect to the store {url}: {error}")
}

impl Store for AnyStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        match self {
            Self::Memory(store) => store.execute(operations).await,
            Self::Redis(store) => store.execute(operations).await,
            Self::Postgres(store) => store.execute(operations).await,
        }
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match self {
            Self::Memory(store) => store.forget(policy).await,
            Self::Redis(store) => store.forget(policy).await,
            Self::Postgres(store) => store.forget(policy).await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        match self {
            Self::Memory(store) => store.clock(),
            Self::Redis(store) => store.clock(),
            Self::Postgres(store) => store.clock(),
        }
    }

    fn is_immediate(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_immediate(),
            Self::Redis(store) => store.is_immediate(),
            Self::Postgres(store) => store.is_immediate(),
        }
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match self {
            Self::Memory(store) => store.feed_version(check),
            Self::Redis(store) => store.feed_version(check),
            Self::Postgres(store) => store.feed_version(check),
        }
    }
}
