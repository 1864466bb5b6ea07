//! Concurrent requests and unread responses of a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tokio::sync::Notify;

/// Number of large unread responses of an HTTP/2 connection that suspends further requests.
const MAX_UNREAD_RESPONSES: usize = 8;

/// Requests in progress and large unread responses of a connection.
///
/// A client that replies to pings but sends no request would hold an HTTP/2 connection forever, and so would a client that
/// opens no window for its responses. Both time out.
#[derive(Debug)]
pub(crate) struct Streams {
    clock: SystemClock,
    /// Number of requests that the service works on.
    in_progress: AtomicUsize,
    /// Time at which the latest of them ended.
    last_ended_ms: AtomicU64,
    /// Large unread responses by number, with the time since which each waits.
    unread: Mutex<HashMap<u64, u64>>,
    next_number: AtomicU64,
    /// Notified when a large response was read.
    response_read: Notify,
}

impl Streams {
    pub(crate) fn new() -> Self {
        let clock = SystemClock::default();
        Self {
            clock,
            in_progress: AtomicUsize::new(0),
            last_ended_ms: AtomicU64::new(clock.now_ms()),
            unread: Mutex::default(),
            next_number: AtomicU64::new(0),
            response_read: Notify::new(),
        }
    }

    /// Begins a request. Waits while the client has too many large unread responses.
    pub(crate) async fn begin_request(self: &Arc<Self>) -> RequestInProgress {
        if self.is_full() {
            Box::pin(self.wait_for_capacity()).await;
        }
        RequestInProgress::new(self)
    }

    async fn wait_for_capacity(&self) {
        loop {
            let response_read = self.response_read.notified();
            if !self.is_full() {
                return;
            }
            response_read.await;
        }
    }

    fn is_full(&self) -> bool {
        self.unread().len() >= MAX_UNREAD_RESPONSES
    }

    fn unread(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time left for the client to send a request or to read its large responses, whichever ends first.
    pub(crate) fn time_left(&self, timeout: Duration) -> Duration {
        let is_idle = self.in_progress.load(Ordering::Acquire) == 0;
        let idle_since = is_idle.then(|| self.last_ended_ms.load(Ordering::Relaxed));
        let idle_left = idle_since.map_or(timeout, |since_ms| self.time_left_since(since_ms, timeout));
        idle_left.min(self.time_left_to_read(timeout))
    }

    /// Returns the time left for the client to read its oldest large response. The timeout covers the whole response:
    /// otherwise a client that reads byte by byte would hold it forever.
    pub(crate) fn time_left_to_read(&self, timeout: Duration) -> Duration {
        let oldest = self.unread().values().min().copied();
        oldest.map_or(timeout, |since_ms| self.time_left_since(since_ms, timeout))
    }

    fn time_left_since(&self, since_ms: u64, timeout: Duration) -> Duration {
        let elapsed_ms = self.clock.now_ms().saturating_sub(since_ms);
        timeout.saturating_sub(Duration::from_millis(elapsed_ms))
    }
}

/// Guard of a request that the service works on.
#[derive(Debug)]
pub(crate) struct RequestInProgress(Arc<Streams>);

impl RequestInProgress {
    pub(crate) fn new(streams: &Arc<Streams>) -> Self {
        streams.in_progress.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(streams))
    }

    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.0
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.last_ended_ms.store(self.0.clock.now_ms(), Ordering::Relaxed);
        self.0.in_progress.fetch_sub(1, Ordering::Release);
    }
}

/// Guard of a large response that the client has not read completely.
#[derive(Debug)]
pub(crate) struct UnreadResponse {
    streams: Arc<Streams>,
    number: u64,
}

impl UnreadResponse {
    pub(crate) fn new(streams: &Arc<Streams>) -> Self {
        let number = streams.next_number.fetch_add(1, Ordering::Relaxed);
        streams.unread().insert(number, streams.clock.now_ms());
        Self { streams: Arc::clone(streams), number }
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.streams.unread().remove(&self.number);
        self.streams.response_read.notify_waiters();
    }
}
