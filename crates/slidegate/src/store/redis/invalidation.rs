//! Subscription to the invalidations that other nodes cause.
//!
//! Before the script lowers the count of a key, it publishes the key's name; subscribers receive the message once the
//! script has ended. Replies and messages share one connection: when a reply arrives, all messages before it have arrived,
//! and they are from the server that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::key;
use crate::clock::{Clock, SystemClock};
use crate::store::invalidation::{FeedVersion, InvalidationFeed, VERSION_LIFE_MS};
use crate::store::supervise::supervise;

/// Partitions of the feed: one per cluster slot, because the slot of a name is its partition.
const PARTITIONS: u16 = 16_384;
/// Interval of the commands whose replies confirm the feed.
const CONFIRM_INTERVAL_MS: u64 = 200;
/// Timeout of such a command.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(700);
/// Pause before the next attempt after the server has rejected the subscription.
const SUBSCRIBE_RETRY_MS: u64 = 60_000;

/// Invalidation feed of a store, fed by the subscription on its connection.
#[derive(Clone)]
pub(super) struct Subscriber {
    channel: Arc<str>,
    feed: Arc<InvalidationFeed>,
    demand: Arc<Demand>,
}

/// Demand for versions of the feed.
#[derive(Default)]
struct Demand {
    /// Time of the last version; 0 before the first.
    last_ms: AtomicU64,
    resumed: Notify,
}

impl Subscriber {
    pub(super) fn new(prefix: &str) -> Self {
        let channel = format!("{prefix}:news").into();
        Self { channel, feed: Arc::new(InvalidationFeed::new(PARTITIONS)), demand: Arc::default() }
    }

    /// Returns the channel on which invalidations are published.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Returns the present version for a name. The first call starts the subscription.
    pub(super) fn version(&self, name: &[u8]) -> FeedVersion {
        let now_ms = self.feed.now_ms();
        if !is_in_demand(self.demand.last_ms.swap(now_ms, Relaxed), now_ms) {
            self.demand.resumed.notify_one();
        }
        self.feed.version(key::slot(name))
    }

    /// Records the invalidations of a push message.
    pub(super) fn receive(&self, push: &PushInfo) {
        if let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, push.data.as_slice()) {
            match partitions(message) {
                Some(partitions) => partitions.for_each(|partition| self.feed.record(partition)),
                None => self.feed.record(key::slot(message)),
            }
        }
    }

    /// Subscribes on a connection, until the connection breaks or the returned subscription is dropped.
    pub(super) fn subscribe(&self, connection: MultiplexedConnection) -> Subscription {
        let subscriber = self.clone();
        let task = move || subscriber.clone().run(connection.clone());
        Subscription(supervise("redis subscription task", task))
    }

    async fn run(self, mut connection: MultiplexedConnection) {
        let clock = SystemClock::default();
        self.wait_for_demand().await;
        while let Err(error) = connection.subscribe(&*self.channel).await {
            if is_disconnected(&error) {
                return;
            }
            let channel = self.channel();
            tracing::warn!(
                %error, channel,
                "cannot subscribe to the invalidations of redis; cached denials expire sooner"
            );
            clock.sleep(SUBSCRIBE_RETRY_MS).await;
        }
        // Messages before the subscription were missed.
        self.feed.record_gap();
        loop {
            self.wait_for_demand().await;
            let sent_ms = self.feed.now_ms();
            let time = redis::cmd("TIME");
            match tokio::time::timeout(CONFIRM_TIMEOUT, time.query_async::<Value>(&mut connection)).await {
                Ok(Ok(_)) => self.feed.confirm(sent_ms),
                Ok(Err(error)) if is_disconnected(&error) => return,
                // A busy server or a late reply: the next command may confirm.
                Ok(Err(_)) | Err(_) => {}
            }
            clock.sleep(CONFIRM_INTERVAL_MS).await;
        }
    }

    /// Waits until versions are in demand. Without demand no commands are sent; messages are received nevertheless.
    async fn wait_for_demand(&self) {
        while !is_in_demand(self.demand.last_ms.load(Relaxed), self.feed.now_ms()) {
            self.demand.resumed.notified().await;
        }
    }
}

/// First byte of a message that lists partitions. No name begins with it.
const PARTITIONS_TAG: u8 = 0;

/// Encodes the invalidation of many names as the list of their partitions.
pub(super) fn message(names: &[Vec<u8>]) -> Vec<u8> {
    let partitions = names.iter().flat_map(|name| key::slot(name).to_be_bytes());
    std::iter::once(PARTITIONS_TAG).chain(partitions).collect()
}

/// Decodes a message that lists partitions; `None` for the name of a key.
fn partitions(message: &[u8]) -> Option<impl Iterator<Item = u16>> {
    let partitions = message.strip_prefix(&[PARTITIONS_TAG])?;
    Some(partitions.as_chunks::<2>().0.iter().map(|partition| u16::from_be_bytes(*partition)))
}

/// Returns whether a version that was taken at `last_ms` may still be in use.
fn is_in_demand(last_ms: u64, now_ms: u64) -> bool {
    last_ms > 0 && now_ms.saturating_sub(last_ms) <= VERSION_LIFE_MS
}

/// Returns whether the connection is broken, as opposed to a command that failed.
fn is_disconnected(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Subscription, which ends when it is dropped.
pub(super) struct Subscription(JoinHandle<()>);

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}
