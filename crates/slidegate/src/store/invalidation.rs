//! Invalidation feed: shows caches of decisions which keys were refunded, reset or given other limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, SystemClock};

/// Age beyond which a confirmation no longer counts. A refund takes effect on all nodes within a second; the remaining
/// 100 ms are for the transport.
const FRESH_MS: u64 = 900;

/// Lifetime of a version: no cached denial is kept longer than this after its version was taken.
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) const VERSION_LIFE_MS: u64 = 10_000;

/// Counts invalidations (refunds, resets, changed limits) per partition of the keys, whichever node caused them.
///
/// A store that receives invalidations owns one feed: it [`record`](Self::record)s the partition of each, and
/// [`confirm`](Self::confirm)s that it has received everything up to some moment. A cache takes a [`FeedVersion`] before
/// it sends a request. An invalidation of one key invalidates all keys of its partition.
pub struct InvalidationFeed {
    counts: Box<[AtomicU64]>,
    /// Number of times that invalidations may have been missed.
    gaps: AtomicU64,
    /// All invalidations before this moment have been recorded. Zero: none are known.
    confirmed_ms: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl InvalidationFeed {
    /// Creates a feed with this number of partitions, at least one.
    pub fn new(partitions: u16) -> Self {
        Self::by(SystemClock::default(), partitions)
    }

    /// Creates a feed that reads the given clock.
    pub fn by(clock: impl Clock, partitions: u16) -> Self {
        Self {
            counts: (0..partitions.max(1)).map(|_| AtomicU64::new(0)).collect(),
            gaps: AtomicU64::new(0),
            confirmed_ms: AtomicU64::new(0),
            clock: Arc::new(clock),
        }
    }

    /// Returns the time of the feed's clock, for [`confirm`](Self::confirm).
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Records an invalidation of a key of this partition.
    pub fn record(&self, partition: u16) {
        self.count(partition).fetch_add(1, Ordering::AcqRel);
    }

    /// Records that invalidations may have been missed. Versions taken before are no longer current, but they are not
    /// known to be outdated.
    pub fn record_gap(&self) {
        self.gaps.fetch_add(1, Ordering::AcqRel);
    }

    /// Confirms that all invalidations before `until_ms` have been recorded.
    pub fn confirm(&self, until_ms: u64) {
        self.confirmed_ms.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// Returns the present version of a partition.
    pub fn version(self: &Arc<Self>, partition: u16) -> FeedVersion {
        let gaps = self.gaps.load(Ordering::Acquire);
        let count = self.count(partition).load(Ordering::Acquire);
        FeedVersion { feed: Arc::clone(self), partition, count, gaps }
    }

    /// Partitions beyond the last wrap around.
    fn count(&self, partition: u16) -> &AtomicU64 {
        &self.counts[usize::from(partition) % self.counts.len()]
    }
}

impl fmt::Debug for InvalidationFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidationFeed").field("confirmed_ms", &self.confirmed_ms).finish_non_exhaustive()
    }
}

/// State of one partition of an [`InvalidationFeed`] at one moment.
#[derive(Clone, Debug)]
pub struct FeedVersion {
    feed: Arc<InvalidationFeed>,
    partition: u16,
    count: u64,
    gaps: u64,
}

impl FeedVersion {
    /// Returns whether a key of the partition was invalidated since this version was taken.
    pub fn is_outdated(&self) -> bool {
        self.feed.count(self.partition).load(Ordering::Acquire) != self.count
    }

    /// Returns whether the partition is known to be unchanged since this version was taken, up to about a second ago.
    pub fn is_current(&self) -> bool {
        // The confirmation is read first: an invalidation recorded before it is then visible below.
        let confirmed_ms = self.feed.confirmed_ms.load(Ordering::Acquire);
        self.feed.clock.now_ms().saturating_sub(confirmed_ms) <= FRESH_MS
            && self.feed.gaps.load(Ordering::Acquire) == self.gaps
            && !self.is_outdated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_version_is_current_while_its_partition_is_confirmed_to_be_unchanged() {
        let clock = ManualClock::at(1_000_000);
        let feed = Arc::new(InvalidationFeed::by(clock.clone(), 16));
        let version = feed.version(7);
        assert!(!version.is_current() && !version.is_outdated(), "no confirmation yet");
        feed.confirm(feed.now_ms());
        clock.advance(FRESH_MS);
        assert!(version.is_current());
        clock.advance(1);
        assert!(!version.is_current() && !version.is_outdated(), "the confirmation is too old");
        feed.confirm(feed.now_ms());
        assert!(version.is_current(), "a later confirmation covers the time between");
        feed.record(8);
        assert!(version.is_current(), "another partition");
        feed.record(7);
        assert!(!version.is_current() && version.is_outdated());
        let next = feed.version(7);
        assert!(next.is_current());
        feed.record_gap();
        assert!(!next.is_current() && !next.is_outdated(), "after a gap neither is known");
        assert!(feed.version(7).is_current());
    }

    #[test]
    fn a_late_confirmation_of_an_earlier_time_changes_nothing() {
        let clock = ManualClock::at(1_000_000);
        let feed = Arc::new(InvalidationFeed::by(clock.clone(), 16));
        feed.confirm(1_000_000);
        feed.confirm(900_000);
        assert!(feed.version(0).is_current());
    }
}
