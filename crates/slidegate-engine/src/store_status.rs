//! Status of a store, for readiness and metrics.

use slidegate::resilience::{Failure, Fallback};
use slidegate::store::MemoryStore;

use crate::store_stack::StoreStack;

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
        if let Some(memory) = self.base().memory() {
            return memory.status();
        }
        StoreStatus {
            breaker: self.fallback().map(|fallback| fallback.breaker_state().name()),
            failure: self.fallback().and_then(Fallback::failure),
            memory: None,
        }
    }
}

/// Counter of errors of the store, which the library counts.
pub const STORE_ERRORS: &str = "slidegate_store_errors_total";
