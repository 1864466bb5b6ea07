//! Polling of the invalidations that all nodes cause.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::failure::statement_error;
use super::migration::TABLE_NAMES;
use super::name::Name;
use super::shared::Shared;
use super::statement::{UnexpectedFormat, numbers, query};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::invalidation::{FeedVersion, InvalidationFeed, VERSION_LIFE_MS};
use crate::store::supervise::supervise;

/// Partitions of the feed. The last byte of a name is its partition; the first bytes depend on the policy only.
const PARTITIONS: u16 = 256;
/// Interval of the statements that read the versions. Each confirms the feed.
const CONFIRM_INTERVAL_MS: u64 = 200;
/// Timeout of such a statement.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(700);
/// Pause before the next attempt after the server has rejected the statement.
const REJECTED_RETRY_MS: u64 = 60_000;

/// Invalidation feed of one table, and the task that polls the table's versions.
pub(super) struct Subscriber {
    table: &'static str,
    feed: Arc<InvalidationFeed>,
    /// Time of the last version that was taken. Without demand the task ends, so that an idle database gets no statements.
    last_ms: AtomicU64,
    is_polling: AtomicBool,
}

impl Subscriber {
    /// Creates a subscriber per table.
    pub(super) fn per_table() -> [Arc<Self>; 2] {
        TABLE_NAMES.map(|table| {
            Arc::new(Self {
                table,
                feed: Arc::new(InvalidationFeed::new(PARTITIONS)),
                last_ms: AtomicU64::new(0),
                is_polling: AtomicBool::new(false),
            })
        })
    }

    /// Returns the present version for a name. Starts the task if it does not run.
    pub(super) fn version(self: &Arc<Self>, shared: &Arc<Shared>, name: Name) -> FeedVersion {
        self.last_ms.store(self.feed.now_ms(), SeqCst);
        if !self.is_polling.swap(true, SeqCst) {
            let (subscriber, shared) = (Arc::clone(self), Arc::downgrade(shared));
            supervise("postgres invalidation task", move || Arc::clone(&subscriber).run(shared.clone()));
        }
        self.feed.version(u16::from(name.0[15]))
    }

    /// Returns whether a version may still be in use.
    fn is_in_demand(&self) -> bool {
        self.feed.now_ms().saturating_sub(self.last_ms.load(SeqCst)) <= VERSION_LIFE_MS
    }

    /// Polls until the store is dropped or no version is in use.
    async fn run(self: Arc<Self>, shared: Weak<Shared>) {
        while self.poll_while_in_demand(&shared).await {
            self.is_polling.store(false, SeqCst);
            // A caller that took a version before the flag was cleared has not started a task: this one goes on.
            if !self.is_in_demand() || self.is_polling.swap(true, SeqCst) {
                return;
            }
        }
    }

    /// Returns `false` once the store is dropped.
    async fn poll_while_in_demand(&self, shared: &Weak<Shared>) -> bool {
        let clock = SystemClock::default();
        let mut known = Versions::new();
        let mut is_rejection_logged = false;
        // Invalidations before the first statement were missed.
        self.feed.record_gap();
        while self.is_in_demand() {
            let Some(store) = shared.upgrade() else { return false };
            let sent_ms = self.feed.now_ms();
            let reply = tokio::time::timeout(CONFIRM_TIMEOUT, read_versions(&store, self.table)).await;
            drop(store);
            let mut pause_ms = CONFIRM_INTERVAL_MS;
            match reply {
                Ok(Ok(versions)) => {
                    self.record_changes(&known, &versions);
                    known = versions;
                    self.feed.confirm(sent_ms);
                }
                Ok(Err(error)) if !error.is_transient() => {
                    if !std::mem::replace(&mut is_rejection_logged, true) {
                        tracing::warn!(
                            %error,
                            "cannot read the invalidations of postgres; cached denials expire sooner"
                        );
                    }
                    pause_ms = REJECTED_RETRY_MS;
                }
                // The database is unavailable, so no node can invalidate anything.
                Ok(Err(_)) | Err(_) => {}
            }
            clock.sleep(pause_ms).await;
        }
        true
    }

    fn record_changes(&self, known: &Versions, versions: &Versions) {
        if known.get(&WHOLE_TABLE) != versions.get(&WHOLE_TABLE) {
            return self.feed.record_gap();
        }
        for partition in 0..PARTITIONS {
            let of = |versions: &Versions| versions.get(&i32::from(partition)).copied();
            if of(known) != of(versions) {
                self.feed.record(partition);
            }
        }
    }
}

/// Version of each partition that has one.
type Versions = HashMap<i32, i64>;

/// Partition whose version identifies the table itself.
const WHOLE_TABLE: i32 = -1;

async fn read_versions(shared: &Shared, table: &str) -> Result<Versions, StoreError> {
    let mut connection = shared.connection().await?;
    let text = format!("SELECT * FROM {}.invalidation_versions_{table}()", shared.schema);
    let reply = query(connection.client(), &text, CONFIRM_TIMEOUT).await;
    connection.is_reusable = true;
    let row = reply.map_err(|error| statement_error(&error))?.ok_or(UnexpectedFormat)?;
    let partitions = numbers::<i32>(&row, "partitions")?.unwrap_or_default();
    let versions = numbers::<i64>(&row, "versions")?.unwrap_or_default();
    Ok(partitions.into_iter().zip(versions).collect())
}
