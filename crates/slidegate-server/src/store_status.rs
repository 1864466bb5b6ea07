//! How a store is doing.

use slidegate::resilience::{Failure, Fallback};
use slidegate::store::MemoryStore;

use crate::store_stack::StoreStack;

/// How a store is doing.
#[derive(Clone, Debug, Default)]
pub struct StoreStatus {
    /// What is done with requests to it; nothing if it cannot fail.
    pub breaker: Option<&'static str>,
    /// Why it did not decide when it was last asked, if it did not.
    pub failure: Option<Failure>,
    /// How full it is, if it is in this process.
    pub memory: Option<MemoryStatus>,
}

/// How full a memory store is.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStatus {
    /// Keys that it holds.
    pub keys: u64,
    /// The most that it will hold.
    pub max_keys: u64,
    /// The memory that it may have touched.
    pub bytes: u64,
    /// Keys that had to go for others although they counted something.
    pub evicted: u64,
}

/// A store that can be asked how it is doing.
pub trait StatusSource {
    /// How it is doing.
    fn report(&self) -> StoreStatus;
}

impl<C: slidegate::Clock> StatusSource for MemoryStore<C> {
    fn report(&self) -> StoreStatus {
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
    fn report(&self) -> StoreStatus {
        if let Some(memory) = self.base().memory() {
            return memory.report();
        }
        StoreStatus {
            breaker: self.fallback().map(|fallback| fallback.breaker_state().name()),
            failure: self.fallback().and_then(Fallback::failure),
            memory: None,
        }
    }
}
