//! Any store that a URL can name, as one type.

use std::time::Duration;

use slidegate::{Clock, Decision, MemoryStore, Operation, PostgresStore, RedisStore, Store, StoreError};

use crate::config::{MemoryConfig, StoreUrl};

/// One of the stores.
///
/// An enum, because [`Store`] has no `dyn` form: to box a future for each decision would cost more than a decision
/// in memory does.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process, and it is not moved about")]
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
    /// may become if it is in memory, `budget` how long a call may take if not as long as the URL says.
    pub async fn open(
        url: &StoreUrl,
        memory: MemoryConfig,
        budget: Option<Duration>,
    ) -> Result<Self, String> {
        match url {
            StoreUrl::Memory => memory.build().map(Self::Memory).map_err(|error| error.to_string()),
            StoreUrl::Redis(redis) => {
                let builder = redis.builder();
                let builder = if let Some(budget) = budget { builder.budget(budget) } else { builder };
                builder.connect().await.map(Self::Redis).map_err(|error| unreachable(url, &error))
            }
            StoreUrl::Postgres(postgres) => {
                let builder = postgres.builder();
                let builder = if let Some(budget) = budget { builder.budget(budget) } else { builder };
                builder.connect().await.map(Self::Postgres).map_err(|error| unreachable(url, &error))
            }
        }
    }
}

fn unreachable(url: &StoreUrl, error: &StoreError) -> String {
    format!("cannot connect to the store {url}: {error}")
}

impl Store for AnyStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.execute_now(operation),
            Self::Redis(store) => store.execute(operation).await,
            Self::Postgres(store) => store.execute(operation).await,
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        match self {
            Self::Memory(store) => store.execute_many_now(operations),
            Self::Redis(store) => store.execute_many(operations).await,
            Self::Postgres(store) => store.execute_many(operations).await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        match self {
            Self::Memory(store) => store.clock(),
            Self::Redis(store) => store.clock(),
            Self::Postgres(store) => store.clock(),
        }
    }
}
