//! Any store that a URL can name, as one type.

use std::time::Duration;

use slidegate::{
    Check, Clock, FeedVersion, MemoryStore, Operation, Policy, PostgresStore, RedisStore, Responses, Store,
    StoreError,
};

use slidegate_config::{MemoryConfig, StoreUrl};

/// One of the stores.
///
/// An enum, because [`Store`] has no `dyn` form: to box a future for each decision would cost more than a decision
/// in memory does.
#[derive(Debug)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey.
    Redis(RedisStore),
    /// In PostgreSQL.
    Postgres(PostgresStore),
}

impl AnyStore {
    /// Makes the store or connects to it, or says which one could not be reached and why. `memory` is how large it
    /// may become if it is in memory.
    pub async fn open(url: &StoreUrl, memory: MemoryConfig) -> Result<Self, String> {
        match url {
            StoreUrl::Memory => memory.build().map(Self::Memory).map_err(|error| error.to_string()),
            StoreUrl::Redis(redis) => {
                let connected = redis.builder().connect().await.map(Self::Redis);
                connected.map_err(|error| unreachable(url, &error))
            }
            StoreUrl::Postgres(postgres) => {
                let connected = postgres.builder().connect().await.map(Self::Postgres);
                connected.map_err(|error| unreachable(url, &error))
            }
        }
    }

    /// The same, each call taking no longer than `budget`. A store that cannot be reached now is connected to later: to
    /// start is possible without it, but not with a store that refuses.
    pub async fn open_at_last(
        url: &StoreUrl,
        memory: MemoryConfig,
        budget: Duration,
    ) -> Result<Self, String> {
        let later = |error: StoreError| {
            if !error.is_transient() {
                return Err(unreachable(url, &error));
            }
            tracing::warn!("{}; it is tried again in the background", unreachable(url, &error));
            Ok(())
        };
        match url {
            StoreUrl::Memory => Self::open(url, memory).await,
            StoreUrl::Redis(redis) => {
                let builder = redis.builder().budget(budget);
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::Redis(store)),
                    Err(error) => later(error).map(|()| Self::Redis(builder.connect_lazily())),
                }
            }
            StoreUrl::Postgres(postgres) => {
                let builder = postgres.builder().budget(budget);
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::Postgres(store)),
                    Err(error) => {
                        later(error)?;
                        let store = builder.connect_lazily().map_err(|error| unreachable(url, &error))?;
                        Ok(Self::Postgres(store))
                    }
                }
            }
        }
    }
}

fn unreachable(url: &StoreUrl, error: &StoreError) -> String {
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
