//! Request activity of a connection, shared by the stream and the service.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use slidegate::{Clock, SystemClock};

use super::streams::Streams;

/// Value of `idle_since_ms` while a request is in progress.
const IN_PROGRESS: u64 = u64::MAX;

/// Records since when a connection waits for a request head.
///
/// A timer for each head would be set and cancelled with every request, and hardly ever fire. So the service only records
/// the time, and the stream checks it with one timer that spans many requests.
#[derive(Debug)]
pub(crate) struct Activity {
    clock: SystemClock,
    /// Read with HTTP/1 only.
    idle_since_ms: AtomicU64,
    /// Used with HTTP/2, and for large responses of HTTP/1.
    streams: OnceLock<Arc<Streams>>,
    is_http2: AtomicBool,
    needs_lingering_close: AtomicBool,
}

impl Activity {
    /// Returns the activity of a connection that begins now.
    pub(crate) fn new() -> Self {
        let clock = SystemClock::default();
        let idle_since_ms = AtomicU64::new(clock.now_ms());
        Self {
            clock,
            idle_since_ms,
            streams: OnceLock::new(),
            is_http2: AtomicBool::new(false),
            needs_lingering_close: AtomicBool::new(false),
        }
    }

    /// Returns the streams of an HTTP/2 connection, or the large responses of an HTTP/1 connection.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        self.streams.get_or_init(|| Arc::new(Streams::new()))
    }

    /// Records that the connection uses HTTP/2.
    pub(crate) fn begin_http2(&self) -> &Arc<Streams> {
        self.is_http2.store(true, Ordering::Relaxed);
        self.streams()
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Requests a lingering close: further input is read and discarded when the connection ends.
    pub(crate) fn request_lingering_close(&self) {
        self.needs_lingering_close.store(true, Ordering::Relaxed);
    }

    pub(crate) fn needs_lingering_close(&self) -> bool {
        self.needs_lingering_close.load(Ordering::Relaxed)
    }

    /// Records that a request head is complete.
    pub(crate) fn begin_request(&self) {
        self.idle_since_ms.store(IN_PROGRESS, Ordering::Relaxed);
    }

    /// Records that the response is ready, which starts the timeout of the next head.
    pub(crate) fn end_request(&self) {
        self.idle_since_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    /// Returns the time left for the client to read its large responses.
    pub(crate) fn time_left_to_read(&self, timeout: Duration) -> Duration {
        self.streams.get().map_or(timeout, |streams| streams.time_left_to_read(timeout))
    }

    /// Returns the time left for the next head; all of it while a request is in progress.
    pub(crate) fn time_left(&self, timeout: Duration) -> Duration {
        match self.idle_since_ms.load(Ordering::Relaxed) {
            IN_PROGRESS => timeout,
            since_ms => {
                let idle_ms = self.clock.now_ms().saturating_sub(since_ms);
                timeout.saturating_sub(Duration::from_millis(idle_ms))
            }
        }
    }
}
