//! Interface of a remote store and its server in the fault suite.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slidegate::store::{Store, StoreLimiter};
use slidegate::{Clock, Sleep, StoreError};

/// A server, and the store that counts in it.
pub(crate) trait Backend: Sized {
    type Store: Store + 'static;

    /// Name of the store in messages.
    const NAME: &'static str;
    /// Numbers of bytes that are shorter than the reply to one request.
    const PARTS_OF_REPLY: [usize; 4];
    /// Number of bytes of the replies to 1,000 requests that contains some replies, but not all.
    const PART_OF_REPLIES: usize;
    /// Largest number of requests that are queued or in flight if the queue holds four and the server does not respond.
    const MAX_ACCEPTED: usize;

    fn start() -> Self;

    fn address(&self) -> SocketAddr;

    /// Returns the URL of such a server at another address, which may be a proxy's.
    fn url_at(address: SocketAddr) -> String;

    /// Returns the URLs of all topologies, each with servers at `address` only.
    fn urls_of_topologies(address: SocketAddr) -> Vec<String> {
        vec![Self::url_at(address)]
    }

    /// Stops the server: connections stay open without responses.
    fn stop(&self);

    fn resume(&self);

    fn kill(&self);

    fn restart(&self);

    /// Returns the number of keys that the server counts.
    fn keys(&self) -> usize;

    fn clear(&self);

    fn connect(url: &str, settings: Settings) -> impl Future<Output = Result<Self::Store, StoreError>>;

    fn connect_lazily(url: &str, settings: Settings) -> Self::Store;

    fn url(&self) -> String {
        Self::url_at(self.address())
    }
}

/// Settings of a store.
pub(crate) struct Settings {
    pub(crate) budget: Duration,
    pub(crate) max_waiting: Option<usize>,
    /// Number of connections of a store that has several.
    pub(crate) connections: usize,
    pub(crate) clock: FrozenClock,
}

impl Default for Settings {
    /// The budget suffices for busy machines.
    fn default() -> Self {
        let budget = Duration::from_secs(20);
        Self { budget, max_waiting: None, connections: 2, clock: FrozenClock::default() }
    }
}

/// A clock that stands still, so that nothing expires.
#[derive(Clone, Default)]
pub(crate) struct FrozenClock {
    is_faulty: Arc<AtomicBool>,
}

impl FrozenClock {
    /// Lets the next reading panic, as a defect within the store's own task.
    pub(crate) fn panic_once(&self) {
        self.is_faulty.store(true, Relaxed);
    }
}

impl Clock for FrozenClock {
    fn now_ms(&self) -> u64 {
        assert!(!self.is_faulty.swap(false, Relaxed), "a defect");
        1_800_000_000_000
    }

    fn grain_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, _: u64) -> Sleep<'_> {
        Box::pin(std::future::ready(()))
    }
}

/// Connects a limiter with the default settings.
pub(crate) async fn connect<B: Backend>(url: &str) -> StoreLimiter<B::Store> {
    connect_with::<B>(url, Settings::default()).await
}

pub(crate) async fn connect_within<B: Backend>(budget: Duration, url: &str) -> StoreLimiter<B::Store> {
    connect_with::<B>(url, Settings { budget, ..Settings::default() }).await
}

pub(crate) async fn connect_with<B: Backend>(url: &str, settings: Settings) -> StoreLimiter<B::Store> {
    StoreLimiter::new(B::connect(url, settings).await.unwrap())
}
