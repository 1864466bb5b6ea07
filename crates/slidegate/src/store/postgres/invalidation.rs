//! Asks the database now and then what was given back to keys, by whomever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::batch::Name;
use super::failure::statement_error;
use super::migration::TABLE_NAMES;
use super::pool::{Cancelling, Shared};
use super::statement::{Unreadable, numbers, query};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::invalidation::{FeedVersion, InvalidationFeed, VERSION_LIFE_MS};
use crate::store::supervise::supervise;

/// Keys of a table are assigned to parts by the last byte of their names; the first bytes are those of the policy.
const PARTS: u16 = 256;
/// How often it is asked.
const PAUSE_MS: u64 = 200;
/// Without an answer for longer than this, nobody relies on having heard everything.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long to leave it at that when the database does not let us ask.
const LONG_PAUSE_MS: u64 = 60_000;

/// What is heard about the keys of one table, and whether anybody wants to know.
pub(super) struct Subscriber {
    table: &'static str,
    feed: Arc<InvalidationFeed>,
    /// When a version was taken last. While none is of use any more, nobody asks, so that a database may go to sleep.
    wanted_ms: AtomicU64,
    is_asked: AtomicBool,
}

impl Subscriber {
    /// Those of each table.
    pub(super) fn of_tables() -> [Arc<Self>; 2] {
        TABLE_NAMES.map(|table| {
            Arc::new(Self {
                table,
                feed: Arc::new(InvalidationFeed::new(PARTS)),
                wanted_ms: AtomicU64::new(0),
                is_asked: AtomicBool::new(false),
            })
        })
    }

    /// What is known about a name now. From the first time on, the database is asked.
    pub(super) fn version(self: &Arc<Self>, shared: &Arc<Shared>, name: Name) -> FeedVersion {
        self.wanted_ms.store(self.feed.now_ms(), SeqCst);
        if !self.is_asked.swap(true, SeqCst) {
            let (subscriber, shared) = (Arc::clone(self), Arc::downgrade(shared));
            supervise("listening to postgres", move || Arc::clone(&subscriber).listen(shared.clone()));
        }
        self.feed.version(u16::from(name.0[15]))
    }

    fn is_wanted(&self) -> bool {
        self.feed.now_ms().saturating_sub(self.wanted_ms.load(SeqCst)) <= VERSION_LIFE_MS
    }

    /// Asks for as long as there is a store, and somebody who wants to know.
    async fn listen(self: Arc<Self>, shared: Weak<Shared>) {
        while self.listen_while_wanted(&shared).await {
            self.is_asked.store(false, SeqCst);
            // Who has taken a version since has not seen that; who takes one now asks.
            if !self.is_wanted() || self.is_asked.swap(true, SeqCst) {
                return;
            }
        }
    }

    /// `false` if there is no store any more.
    async fn listen_while_wanted(&self, shared: &Weak<Shared>) -> bool {
        let clock = SystemClock::default();
        let mut known = Versions::new();
        let mut has_warned = false;
        // What was said until now has been missed.
        self.feed.record_gap();
        while self.is_wanted() {
            let Some(store) = shared.upgrade() else { return false };
            let sent_ms = self.feed.now_ms();
            let answer = tokio::time::timeout(PATIENCE, ask(&store, self.table)).await;
            drop(store);
            let mut pause_ms = PAUSE_MS;
            match answer {
                Ok(Ok(versions)) => {
                    self.compare(&known, &versions);
                    known = versions;
                    self.feed.confirm(sent_ms);
                }
                Ok(Err(error)) if !error.is_transient() => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(
                            %error,
                            "postgres does not tell what is given back; denials are remembered for less time"
                        );
                    }
                    pause_ms = LONG_PAUSE_MS;
                }
                // The database is away, and so is everybody who might give something back.
                Ok(Err(_)) | Err(_) => {}
            }
            clock.sleep(pause_ms).await;
        }
        true
    }

    fn compare(&self, known: &Versions, versions: &Versions) {
        if known.get(&TABLE) != versions.get(&TABLE) {
            return self.feed.record_gap();
        }
        for part in 0..PARTS {
            let of = |versions: &Versions| versions.get(&i32::from(part)).copied();
            if of(known) != of(versions) {
                self.feed.record(part);
            }
        }
    }
}

/// The version of each part, as far as there is one.
type Versions = HashMap<i32, i64>;

/// The part that stands for the table itself.
const TABLE: i32 = -1;

async fn ask(shared: &Shared, table: &str) -> Result<Versions, StoreError> {
    let mut client = Cancelling::get(shared).await?;
    let text = format!("SELECT * FROM {}.news_of_{table}()", shared.schema);
    let answer = query(client.client(), &text, PATIENCE).await;
    client.is_done = true;
    let row = answer.map_err(|error| statement_error(&error))?;
    let odd = |Unreadable| StoreError::permanent("postgres: the answer has an unknown shape");
    let row = row.ok_or(Unreadable).map_err(odd)?;
    let parts = numbers::<i32>(&row, "parts").map_err(odd)?.unwrap_or_default();
    let versions = numbers::<i64>(&row, "versions").map_err(odd)?.unwrap_or_default();
    Ok(parts.into_iter().zip(versions).collect())
}
