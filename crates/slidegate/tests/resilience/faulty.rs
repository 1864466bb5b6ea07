//! A store that fails on demand, on a clock that only the test advances.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::store::{MemoryStore, Operation, Responses, Store};
use slidegate::{Clock, Decision, Policy, Sleep, StoreError};
use tokio::time::Instant;

/// The time of a paused tokio runtime. It advances only while all tasks are idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualClock(Instant);

impl VirtualClock {
    #[allow(clippy::disallowed_methods, reason = "the runtime's paused time belongs to the test")]
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for VirtualClock {
    fn now_ms(&self) -> u64 {
        1_800_000_000_000 + self.0.elapsed().as_millis() as u64
    }

    fn grain_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        Box::pin(sleep(ms))
    }
}

#[allow(clippy::disallowed_methods, reason = "virtual time")]
pub(crate) async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// An immediate error.
    Down,
    /// No response, and nothing is counted.
    BlackHole,
    /// The request is counted, but the response never arrives.
    Lost,
    /// Milliseconds until the request arrives. The response takes half of that.
    Slow(u64),
    /// An immediate permanent error.
    Permanent,
    /// An immediate error because the store is full.
    Full,
    /// The request is a mistake of its caller.
    Usage,
}

/// A memory store with an injected fault.
#[derive(Clone)]
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<Mutex<Arc<MemoryStore<VirtualClock>>>>,
    pub(crate) fault: Arc<dyn Fn() -> Fault + Send + Sync>,
    clock: VirtualClock,
    /// Arrival times of the requests.
    pub(crate) arrivals_ms: Arc<Mutex<Vec<u64>>>,
}

impl FaultyStore {
    pub(crate) fn new(clock: VirtualClock, fault: impl Fn() -> Fault + Send + Sync + 'static) -> Self {
        let inner = Arc::new(Mutex::new(empty_store(clock)));
        Self { inner, fault: Arc::new(fault), clock, arrivals_ms: Arc::default() }
    }

    /// Discards all counts, as a restart does.
    pub(crate) fn restart(&self) {
        *self.inner.lock().unwrap() = empty_store(self.clock);
    }

    fn inner(&self) -> Arc<MemoryStore<VirtualClock>> {
        Arc::clone(&self.inner.lock().unwrap())
    }
}

fn empty_store(clock: VirtualClock) -> Arc<MemoryStore<VirtualClock>> {
    Arc::new(MemoryStore::builder().max_keys(1000).clock(clock).build().unwrap())
}

impl FaultyStore {
    async fn execute_one(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        self.arrivals_ms.lock().unwrap().push(self.clock.now_ms());
        match (self.fault)() {
            Fault::None => self.inner().execute_now(operation),
            Fault::Down => Err(StoreError::transient("down")),
            Fault::Permanent => Err(StoreError::permanent("rejected")),
            Fault::Full => Err(StoreError::full("full")),
            Fault::Usage => Err(StoreError::usage("the key is too long")),
            Fault::BlackHole => std::future::pending().await,
            Fault::Lost => {
                let _ = self.inner().execute_now(operation);
                std::future::pending().await
            }
            Fault::Slow(ms) => {
                sleep(ms).await;
                let response = self.inner().execute_now(operation);
                sleep(ms / 2).await;
                response
            }
        }
    }
}

impl Store for FaultyStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        let mut responses = Vec::new();
        for operation in operations {
            responses.push(self.execute_one(*operation).await);
        }
        responses.into_iter().collect()
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match (self.fault)() {
            Fault::Slow(ms) => sleep(ms).await,
            Fault::None => {}
            _ => return Err(StoreError::transient("down")),
        }
        self.inner().forget_now(policy)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}
