//! A store that fails on demand, in a time that only tests move on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::{Clock, Decision, MemoryStore, Operation, Policy, Sleep, Store, StoreError};
use tokio::time::Instant;

/// The runtime's time, which stands still while anybody has something to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualClock(Instant);

impl VirtualClock {
    #[allow(clippy::disallowed_methods, reason = "the runtime's time is a test's own")]
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

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// An error at once.
    Down,
    /// No answer, ever, and nothing is counted.
    BlackHole,
    /// It is counted, and the answer never comes.
    Lost,
    /// It takes this long to get there, and half of that back.
    Slow(u64),
    /// An error at once that will not pass.
    Refused,
    /// An error at once, for want of room.
    Full,
}

/// A store in memory, and what is wrong with it.
#[derive(Clone)]
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<Mutex<Arc<MemoryStore<VirtualClock>>>>,
    pub(crate) fault: Arc<dyn Fn() -> Fault + Send + Sync>,
    clock: VirtualClock,
    /// When it was asked.
    pub(crate) asked_ms: Arc<Mutex<Vec<u64>>>,
}

impl FaultyStore {
    pub(crate) fn new(clock: VirtualClock, fault: impl Fn() -> Fault + Send + Sync + 'static) -> Self {
        let inner = Arc::new(Mutex::new(fresh(clock)));
        Self { inner, fault: Arc::new(fault), clock, asked_ms: Arc::default() }
    }

    /// Starts again with nothing counted.
    pub(crate) fn restart(&self) {
        *self.inner.lock().unwrap() = fresh(self.clock);
    }

    fn inner(&self) -> Arc<MemoryStore<VirtualClock>> {
        Arc::clone(&self.inner.lock().unwrap())
    }
}

fn fresh(clock: VirtualClock) -> Arc<MemoryStore<VirtualClock>> {
    Arc::new(MemoryStore::builder().max_keys(1000).clock(clock).build().unwrap())
}

impl Store for FaultyStore {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        self.asked_ms.lock().unwrap().push(self.clock.now_ms());
        match (self.fault)() {
            Fault::None => self.inner().execute_now(operation),
            Fault::Down => Err(StoreError::transient("down")),
            Fault::Refused => Err(StoreError::permanent("refused")),
            Fault::Full => Err(StoreError::full("full")),
            Fault::BlackHole => std::future::pending().await,
            Fault::Lost => {
                let _ = self.inner().execute_now(operation);
                std::future::pending().await
            }
            Fault::Slow(ms) => {
                sleep(ms).await;
                let answer = self.inner().execute_now(operation);
                sleep(ms / 2).await;
                answer
            }
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut answers = Vec::new();
        for operation in operations {
            answers.push(self.execute(*operation).await);
        }
        answers
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match (self.fault)() {
            Fault::Slow(ms) => sleep(ms).await,
            Fault::None => {}
            _ => return Err(StoreError::transient("down")),
        }
        self.inner().forget_now(policy).map(|()| None)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}
