//! What a connection waits for, as those who answer on it tell those who read from it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use slidegate::{Clock, SystemClock};

use super::streams::Streams;

/// Instead of the moment since which a request is awaited: one is under way.
const UNDER_WAY: u64 = u64::MAX;

/// Since when a connection waits for the head of a request.
///
/// A deadline for each head would have to be set and taken back for every request, although hardly any is ever met. So
/// whoever answers only says when, and whoever reads looks at it now and then while nothing comes.
#[derive(Debug)]
pub(super) struct Activity {
    clock: SystemClock,
    waits_since_ms: AtomicU64,
    /// Instead of that, with HTTP/2; and for large answers.
    streams: OnceLock<Arc<Streams>>,
    is_http2: AtomicBool,
    lingers: AtomicBool,
}

impl Activity {
    /// Of a connection that begins now.
    pub(super) fn new() -> Self {
        let clock = SystemClock::default();
        let waits_since_ms = AtomicU64::new(clock.now_ms());
        Self {
            clock,
            waits_since_ms,
            streams: OnceLock::new(),
            is_http2: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
        }
    }

    /// What is under way on a connection with HTTP/2, and the large answers on any.
    pub(super) fn streams(&self) -> &Arc<Streams> {
        self.streams.get_or_init(|| Arc::new(Streams::new()))
    }

    /// The connection has begun with HTTP/2.
    pub(super) fn begin_http2(&self) -> &Arc<Streams> {
        self.is_http2.store(true, Ordering::Relaxed);
        self.streams()
    }

    pub(super) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Has what the client may still send be read when the connection ends.
    pub(super) fn linger_on_close(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    pub(super) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// The head of a request is there.
    pub(super) fn begin(&self) {
        self.waits_since_ms.store(UNDER_WAY, Ordering::Relaxed);
    }

    /// It is answered, and the next one may come.
    pub(super) fn end(&self) {
        self.waits_since_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    /// How much of `patience` is left with whoever has to take a large answer.
    pub(super) fn left_to_take(&self, patience: Duration) -> Duration {
        self.streams.get().map_or(patience, |streams| streams.left_to_take(patience))
    }

    /// How much of `patience` with the next head is left: all of it while a request is under way.
    pub(super) fn left(&self, patience: Duration) -> Duration {
        match self.waits_since_ms.load(Ordering::Relaxed) {
            UNDER_WAY => patience,
            since_ms => {
                let waited_ms = self.clock.now_ms().saturating_sub(since_ms);
                patience.saturating_sub(Duration::from_millis(waited_ms))
            }
        }
    }
}
