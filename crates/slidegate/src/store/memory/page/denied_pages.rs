//! Index of the pages in which every key is denied, so that a search for a victim skips them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Time, for each page, until which all of its keys are denied; 0 if unknown.
///
/// An entry is set under the page's lock after a scan of all keys of the page. It is cleared or shortened, also under
/// the lock, when a counter of the page changes so that its key becomes evictable sooner: by a refund, a new key, or a
/// repair after the clock stepped back. Changes without the lock only add to counts, so they never make a key
/// evictable.
#[derive(Default)]
pub(in super::super) struct DeniedPages {
    until_ms: Box<[AtomicU64]>,
    /// Time of the last eviction attempt.
    last_ms: AtomicU64,
    /// Page in which the last search for a victim in another page stopped.
    hand: AtomicUsize,
    /// Counter for [`next_start`](Self::next_start).
    next_start: AtomicUsize,
}

impl DeniedPages {
    pub(in super::super) const BYTES_PER_PAGE: usize = size_of::<AtomicU64>();

    pub(in super::super) fn new(pages: usize) -> Self {
        let until_ms = (0..pages).map(|_| AtomicU64::new(0)).collect();
        Self { until_ms, ..Self::default() }
    }

    /// Returns whether all keys of this page are known to be denied at `now_ms`.
    pub(in super::super) fn contains(&self, page: usize, now_ms: u64) -> bool {
        self.until_ms[page].load(Ordering::Relaxed) > now_ms
    }

    pub(in super::super) fn set(&self, page: usize, until_ms: u64) {
        self.until_ms[page].store(until_ms, Ordering::Relaxed);
    }

    /// Clears all entries if the clock has stepped back since the last call, because denials may then end sooner.
    /// Threads may differ by a second in their reading of the clock.
    pub(in super::super) fn clear_if_clock_stepped_back(&self, now_ms: u64) {
        const SLACK_MS: u64 = 1000;
        let last_ms = self.last_ms.load(Ordering::Relaxed);
        if now_ms > last_ms {
            self.last_ms.store(now_ms, Ordering::Relaxed);
        } else if now_ms + SLACK_MS < last_ms {
            self.last_ms.store(now_ms, Ordering::Relaxed);
            self.until_ms.iter().for_each(|until| until.store(0, Ordering::Relaxed));
        }
    }

    /// Shortens the entry of a page to `until_ms` if it is longer.
    pub(in super::super) fn shorten_to(&self, page: usize, until_ms: u64) {
        let until = &self.until_ms[page];
        until.store(until.load(Ordering::Relaxed).min(until_ms), Ordering::Relaxed);
    }

    /// Returns the pages that may hold an evictable key, in a circle that begins where the last search stopped.
    pub(in super::super) fn possible_pages(&self, now_ms: u64) -> impl Iterator<Item = usize> {
        let first = self.hand.load(Ordering::Relaxed);
        let pages = (first..self.until_ms.len()).chain(0..first);
        pages.filter(move |page| !self.contains(*page, now_ms))
    }

    /// Makes the next [`possible_pages`](Self::possible_pages) begin at this page.
    pub(in super::super) fn start_next_search_at(&self, page: usize) {
        self.hand.store(page, Ordering::Relaxed);
    }

    /// Returns the next page in rotation.
    pub(in super::super) fn next_start(&self) -> usize {
        self.next_start.fetch_add(1, Ordering::Relaxed) % self.until_ms.len()
    }
}
