//! The store that a URL names, as one type.

use std::sync::Arc;
use std::time::Duration;

use slidegate_core::{Check, Policy};

#[cfg(any(feature = "redis", feature = "postgres"))]
use super::StoreUrl;
use super::memory::{MemoryStore, MemoryStoreBuilder};
use super::{FeedVersion, Operation, Responses, Store};
use crate::clock::{AnyClock, Clock};
use crate::error::{BuildError, StoreError};

/// One of the stores.
///
/// An enum, because [`Store`] has no `dyn` form: a boxed future for each decision would cost more than a decision in
/// memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// In this process.
    Memory(Arc<MemoryStore<AnyClock>>),
    /// In Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(Box<super::RedisStore>),
    /// In PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(Box<super::PostgresStore>),
}

/// Calls the same method of the store.
macro_rules! each {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Redis($store) => $call,
            #[cfg(feature = "postgres")]
            AnyStore::Postgres($store) => $call,
        }
    };
}

impl AnyStore {
    /// Connects to the store at `url`, or builds it from `memory` if it is in memory. `budget` limits the time of each call.
    /// With `retries`, a store that is temporarily unreachable is logged and connected to in the background.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) async fn connect(
        url: &StoreUrl,
        memory: MemoryStoreBuilder<AnyClock>,
        budget: Option<Duration>,
        retries: bool,
    ) -> Result<Self, BuildError> {
        let retry = |error: StoreError| {
            let is_transient = error.is_transient();
            let error = failure(url, error);
            if !retries || !is_transient {
                return Err(error);
            }
            tracing::warn!("{error}; retrying in the background");
            Ok(())
        };
        match url {
            StoreUrl::Memory => Self::in_memory(memory),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(redis) => {
                let builder = match budget {
                    Some(budget) => redis.builder().budget(budget),
                    None => redis.builder(),
                };
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::redis(store)),
                    Err(error) => retry(error).map(|()| Self::redis(builder.connect_lazily())),
                }
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(postgres) => {
                let builder = match budget {
                    Some(budget) => postgres.builder().budget(budget),
                    None => postgres.builder(),
                };
                match builder.clone().connect().await {
                    Ok(store) => Ok(Self::postgres(store)),
                    Err(error) => {
                        retry(error)?;
                        builder.connect_lazily().map(Self::postgres).map_err(|error| failure(url, error))
                    }
                }
            }
        }
    }

    #[cfg(feature = "redis")]
    fn redis(store: super::RedisStore) -> Self {
        Self::Redis(Box::new(store))
    }

    #[cfg(feature = "postgres")]
    fn postgres(store: super::PostgresStore) -> Self {
        Self::Postgres(Box::new(store))
    }

    /// Builds a memory store.
    pub(crate) fn in_memory(memory: MemoryStoreBuilder<AnyClock>) -> Result<Self, BuildError> {
        Ok(Self::Memory(Arc::new(memory.build()?)))
    }

    /// Returns the store if it is in memory.
    pub fn memory(&self) -> Option<&Arc<MemoryStore<AnyClock>>> {
        match self {
            Self::Memory(store) => Some(store),
            #[cfg(any(feature = "redis", feature = "postgres"))]
            _ => None,
        }
    }
}

#[cfg(any(feature = "redis", feature = "postgres"))]
fn failure(url: &StoreUrl, error: StoreError) -> BuildError {
    BuildError::Connect { url: url.to_string(), error }
}

impl Store for AnyStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        each!(self, store => store.execute(operations).await)
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        each!(self, store => store.execute_within(operations, budget).await)
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        each!(self, store => store.forget(policy).await)
    }

    fn clock(&self) -> &dyn Clock {
        each!(self, store => store.clock())
    }

    fn is_immediate(&self) -> bool {
        each!(self, store => store.is_immediate())
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        each!(self, store => store.feed_version(check))
    }
}

/// Keeps documents in a remote store. A memory store shares none: it reads no document and writes none.
#[cfg(any(feature = "redis", feature = "postgres"))]
impl super::SharedDocuments for AnyStore {
    async fn read_document(&self, known: u64) -> Result<Option<super::SharedDocument>, StoreError> {
        match self {
            Self::Memory(_) => Ok(None),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.read_document(known).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.read_document(known).await,
        }
    }

    async fn write_document(&self, known: u64, document: &super::SharedDocument) -> Result<bool, StoreError> {
        match self {
            Self::Memory(_) => Ok(false),
            #[cfg(feature = "redis")]
            Self::Redis(store) => store.write_document(known, document).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.write_document(known, document).await,
        }
    }
}
