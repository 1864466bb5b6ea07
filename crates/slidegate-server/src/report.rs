//! How a store is doing.

use slidegate::MemoryStore;
use slidegate::resilience::Failure;

use crate::served::{Served, Switched};
use crate::store::AnyStore;

/// How a store is doing.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is done with requests to it; nothing if it cannot fail.
    pub breaker: Option<&'static str>,
    /// Why it did not decide when it was last asked, if it did not.
    pub failure: Option<Failure>,
    /// How full it is, if it is in this process.
    pub memory: Option<MemoryReport>,
}

/// How full a memory store is.
#[derive(Clone, Copy, Debug)]
pub struct MemoryReport {
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
pub trait Reporting {
    /// How it is doing.
    fn report(&self) -> Report;
}

impl<C: slidegate::Clock> Reporting for MemoryStore<C> {
    fn report(&self) -> Report {
        let memory = MemoryReport {
            keys: self.len() as u64,
            max_keys: self.max_keys() as u64,
            bytes: self.bytes() as u64,
            evicted: self.evicted(),
        };
        Report { memory: Some(memory), ..Report::default() }
    }
}

impl Reporting for Switched {
    fn report(&self) -> Report {
        let fallback = match self.store().store() {
            Served::Here(AnyStore::Memory(store)) => return store.report(),
            Served::Here(_) => return Report::default(),
            Served::Elsewhere(fallback) => fallback,
            Served::Cached(cache) => cache.store(),
        };
        Report { breaker: Some(fallback.breaker_state().name()), failure: fallback.failure(), memory: None }
    }
}
