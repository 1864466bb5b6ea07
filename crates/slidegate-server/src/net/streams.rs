//! The requests of one HTTP/2 connection, of which many are under way at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tokio::sync::Notify;

use super::limits::LARGE_ANSWERS;

/// What is under way on a connection, and since when nothing more has come of it.
///
/// Whoever only answers pings is there, but wants nothing; and whoever opens no window for answers has us keep them.
#[derive(Debug)]
pub(super) struct Streams {
    clock: SystemClock,
    /// How many requests wait for us.
    at_work: AtomicUsize,
    /// When one last did.
    last_ms: AtomicU64,
    /// Large answers that wait to be taken, by their number, and since when.
    waiting: Mutex<HashMap<u64, u64>>,
    numbers: AtomicU64,
    has_room: Notify,
}

impl Streams {
    pub(super) fn new() -> Self {
        let clock = SystemClock::default();
        Self {
            clock,
            at_work: AtomicUsize::new(0),
            last_ms: AtomicU64::new(clock.now_ms()),
            waiting: Mutex::default(),
            numbers: AtomicU64::new(0),
            has_room: Notify::new(),
        }
    }

    /// A request is there. It is not answered before there is room for a large answer.
    pub(super) async fn begin(self: &Arc<Self>) -> Work {
        if self.is_full() {
            Box::pin(self.room()).await;
        }
        Work::new(self)
    }

    async fn room(&self) {
        loop {
            let freed = self.has_room.notified();
            if !self.is_full() {
                return;
            }
            freed.await;
        }
    }

    fn is_full(&self) -> bool {
        self.waiting().len() >= LARGE_ANSWERS
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of `patience` is left with whoever has to ask for something, or to take what was asked for.
    pub(super) fn left(&self, patience: Duration) -> Duration {
        let is_idle = self.at_work.load(Ordering::Acquire) == 0;
        let idle_since = is_idle.then(|| self.last_ms.load(Ordering::Relaxed));
        let idle_left = idle_since.map_or(patience, |since_ms| self.left_since(since_ms, patience));
        idle_left.min(self.left_to_take(patience))
    }

    /// How much of `patience` is left with whoever has to take a large answer. All of it has to be taken by then: one that is
    /// taken byte by byte would be kept for ever.
    pub(super) fn left_to_take(&self, patience: Duration) -> Duration {
        let oldest = self.waiting().values().min().copied();
        oldest.map_or(patience, |since_ms| self.left_since(since_ms, patience))
    }

    fn left_since(&self, since_ms: u64, patience: Duration) -> Duration {
        let waited_ms = self.clock.now_ms().saturating_sub(since_ms);
        patience.saturating_sub(Duration::from_millis(waited_ms))
    }
}

/// That a request waits for us.
#[derive(Debug)]
pub(super) struct Work(Arc<Streams>);

impl Work {
    pub(super) fn new(streams: &Arc<Streams>) -> Self {
        streams.at_work.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(streams))
    }

    pub(super) fn streams(&self) -> &Arc<Streams> {
        &self.0
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.last_ms.store(self.0.clock.now_ms(), Ordering::Relaxed);
        self.0.at_work.fetch_sub(1, Ordering::Release);
    }
}

/// That a large answer waits to be taken.
#[derive(Debug)]
pub(super) struct Waiting {
    streams: Arc<Streams>,
    number: u64,
}

impl Waiting {
    pub(super) fn new(streams: &Arc<Streams>) -> Self {
        let number = streams.numbers.fetch_add(1, Ordering::Relaxed);
        streams.waiting().insert(number, streams.clock.now_ms());
        Self { streams: Arc::clone(streams), number }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.streams.waiting().remove(&self.number);
        self.streams.has_room.notify_waiters();
    }
}
