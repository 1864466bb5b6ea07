//! Hears from the server what is given back to keys, by whomever.
//!
//! The script publishes the key's name whenever it gives something back, before it does so; whoever listens gets it when
//! the script is over. Calls and messages share one connection, so that an answer means that all messages before it have
//! been read, and whoever counts with one server also listens to that one.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::key;
use crate::clock::{Clock, SystemClock};
use crate::store::news::{Mark, News};

/// How often it is asked whether there was anything else.
const PAUSE_MS: u64 = 200;
/// Without an answer for longer than this, nobody relies on having heard everything.
const PATIENCE: Duration = Duration::from_millis(700);

/// What is heard, and whether anybody wants to know.
#[derive(Clone)]
pub(super) struct Ears {
    channel: Arc<str>,
    news: Arc<News>,
    is_wanted: watch::Sender<bool>,
}

impl Ears {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            channel: format!("{prefix}:news").into(),
            news: Arc::default(),
            is_wanted: watch::Sender::new(false),
        }
    }

    /// What is known about a name now. From the first time on, it is listened to.
    pub(super) fn mark(&self, name: &[u8]) -> Mark {
        self.is_wanted.send_if_modified(|is_wanted| !std::mem::replace(is_wanted, true));
        self.news.mark(part(name))
    }

    /// Takes what a server says without being asked.
    pub(super) fn hear(&self, push: &PushInfo) {
        if let (PushKind::Message, [_, Value::BulkString(name)]) = (&push.kind, push.data.as_slice()) {
            self.news.tell(part(name));
        }
    }

    /// Listens on a connection until it breaks, or what is returned is dropped.
    pub(super) fn listen(&self, connection: MultiplexedConnection) -> Listening {
        Listening(tokio::spawn(self.clone().listen_on(connection)))
    }

    async fn listen_on(self, mut connection: MultiplexedConnection) {
        if self.is_wanted.subscribe().wait_for(|is_wanted| *is_wanted).await.is_err() {
            return;
        }
        if let Err(error) = connection.subscribe(&*self.channel).await {
            let channel = &*self.channel;
            tracing::warn!(%error, channel, "redis does not tell what is given back; denials are remembered for less time");
            return;
        }
        // What was said until now has been missed.
        self.news.tell_all();
        loop {
            let sent_ms = self.news.now_ms();
            let time = redis::cmd("TIME");
            match tokio::time::timeout(PATIENCE, time.query_async::<Value>(&mut connection)).await {
                Ok(Ok(_)) => self.news.confirm(sent_ms),
                Ok(Err(_)) => return,
                Err(_) => {}
            }
            SystemClock::default().sleep(PAUSE_MS).await;
        }
    }
}

/// Which part of all keys a name belongs to.
fn part(name: &[u8]) -> u8 {
    key::slot(name) as u8
}

/// Ends with whoever holds it.
pub(super) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}
