//! Status of a store, for readiness and metrics.

use metrics::counter;
use slidegate::resilience::Failure;
use slidegate::{MemoryStore, StoreError};

use crate::store::AnyStore;
use crate::store_stack::{ProtectedStore, StoreStack};

/// Status of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreStatus {
    /// State of the circuit breaker; `None` for a local store, which has none.
    pub breaker: Option<&'static str>,
    /// Failure of the latest request, if it failed.
    pub failure: Option<Failure>,
    /// Fill level of a memory store.
    pub memory: Option<MemoryStatus>,
}

/// Fill level of a memory store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStatus {
    /// Number of keys.
    pub keys: u64,
    /// Maximum number of keys.
    pub max_keys: u64,
    /// Memory that the store may have touched, in bytes.
    pub bytes: u64,
    /// Number of keys that were evicted although they had counts.
    pub evicted: u64,
}

/// A store that reports its status.
pub trait StatusSource {
    /// Returns the current status.
    fn status(&self) -> StoreStatus;
}

impl<C: slidegate::Clock> StatusSource for MemoryStore<C> {
    fn status(&self) -> StoreStatus {
        let memory = MemoryStatus {
            keys: self.len() as u64,
            max_keys: self.max_keys() as u64,
            bytes: self.bytes() as u64,
            evicted: self.evicted(),
        };
        StoreStatus { memory: Some(memory), ..StoreStatus::default() }
    }
}

impl StatusSource for StoreStack {
    fn status(&self) -> StoreStatus {
        let fallback = match self.store().store() {
            ProtectedStore::Local(AnyStore::Memory(store)) => return store.status(),
            ProtectedStore::Local(_) => return StoreStatus::default(),
            ProtectedStore::Remote(fallback) => fallback,
            ProtectedStore::Cached(cache) => cache.store(),
        };
        StoreStatus {
            breaker: Some(fallback.breaker_state().name()),
            failure: fallback.failure(),
            memory: None,
        }
    }
}

/// Name of the counter of [`count_store_error`].
pub const STORE_ERRORS: &str = "slidegate_store_errors_total";

/// Counts an error of a store.
#[cold]
pub(crate) fn count_store_error(error: &StoreError) {
    counter!(STORE_ERRORS, "kind" => error.kind()).increment(1);
}
