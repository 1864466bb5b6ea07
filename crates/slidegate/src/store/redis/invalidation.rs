//! Hears from the server what is given back to keys, by whomever.
//!
//! The script publishes the key's name whenever it gives something back, before it does so; whoever listens gets it when
//! the script is over. Calls and messages share one connection, so that an answer means that all messages before it have
//! been read, and whoever counts with one server also listens to that one.

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

/// A part for each slot of a cluster, which is what the names are told apart by.
const PARTS: u16 = 16_384;
/// How often it is asked whether there was anything else.
const PAUSE_MS: u64 = 200;
/// Without an answer for longer than this, nobody relies on having heard everything.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long to leave it at that when the server does not let us listen.
const LONG_PAUSE_MS: u64 = 60_000;

/// What is heard, and whether anybody wants to know.
#[derive(Clone)]
pub(super) struct Subscriber {
    channel: Arc<str>,
    feed: Arc<InvalidationFeed>,
    wanted: Arc<Wanted>,
}

#[derive(Default)]
struct Wanted {
    /// When a version was taken last.
    last_ms: AtomicU64,
    again: Notify,
}

impl Subscriber {
    pub(super) fn new(prefix: &str) -> Self {
        let channel = format!("{prefix}:news").into();
        Self { channel, feed: Arc::new(InvalidationFeed::new(PARTS)), wanted: Arc::default() }
    }

    /// Where it is published what is given back.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// What is known about a name now. From the first time on, it is listened to.
    pub(super) fn version(&self, name: &[u8]) -> FeedVersion {
        let now_ms = self.feed.now_ms();
        if !is_wanted(self.wanted.last_ms.swap(now_ms, Relaxed), now_ms) {
            self.wanted.again.notify_one();
        }
        self.feed.version(key::slot(name))
    }

    /// Takes what a server says without being asked.
    pub(super) fn hear(&self, push: &PushInfo) {
        if let (PushKind::Message, [_, Value::BulkString(name)]) = (&push.kind, push.data.as_slice()) {
            match parts(name) {
                Some(parts) => parts.for_each(|part| self.feed.record(part)),
                None => self.feed.record(key::slot(name)),
            }
        }
    }

    /// Listens on a connection until it breaks, or what is returned is dropped.
    pub(super) fn listen(&self, connection: MultiplexedConnection) -> Listening {
        let subscriber = self.clone();
        Listening(supervise("listening to redis", move || subscriber.clone().listen_on(connection.clone())))
    }

    async fn listen_on(self, mut connection: MultiplexedConnection) {
        let clock = SystemClock::default();
        self.until_wanted().await;
        while let Err(error) = connection.subscribe(&*self.channel).await {
            if is_over(&error) {
                return;
            }
            let channel = self.channel();
            tracing::warn!(
                %error, channel,
                "redis does not tell what is given back; denials are remembered for less time"
            );
            clock.sleep(LONG_PAUSE_MS).await;
        }
        // What was said until now has been missed.
        self.feed.record_gap();
        loop {
            self.until_wanted().await;
            let sent_ms = self.feed.now_ms();
            let time = redis::cmd("TIME");
            match tokio::time::timeout(PATIENCE, time.query_async::<Value>(&mut connection)).await {
                Ok(Ok(_)) => self.feed.confirm(sent_ms),
                Ok(Err(error)) if is_over(&error) => return,
                // It is busy, or says nothing: not now.
                Ok(Err(_)) | Err(_) => {}
            }
            clock.sleep(PAUSE_MS).await;
        }
    }

    /// While nobody remembers anything, nothing is asked. What is said is heard all the same.
    async fn until_wanted(&self) {
        while !is_wanted(self.wanted.last_ms.load(Relaxed), self.feed.now_ms()) {
            self.wanted.again.notified().await;
        }
    }
}

/// What no name begins with.
const OF_PARTS: u8 = 0;

/// A message about many names at once: the parts that they belong to.
pub(super) fn message(names: &[Vec<u8>]) -> Vec<u8> {
    let parts = names.iter().flat_map(|name| key::slot(name).to_be_bytes());
    std::iter::once(OF_PARTS).chain(parts).collect()
}

/// The parts that such a message is about.
fn parts(message: &[u8]) -> Option<impl Iterator<Item = u16>> {
    let parts = message.strip_prefix(&[OF_PARTS])?;
    Some(parts.as_chunks::<2>().0.iter().map(|part| u16::from_be_bytes(*part)))
}

/// Whether a version that was taken at `last_ms` may be of use to anybody.
fn is_wanted(last_ms: u64, now_ms: u64) -> bool {
    last_ms > 0 && now_ms.saturating_sub(last_ms) <= VERSION_LIFE_MS
}

/// Whether the connection is of no use any more, as opposed to what the server was asked.
fn is_over(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Ends with whoever holds it.
pub(super) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}
