//! `strict-window`: a log of at most S pairs that never admits more than the limit in any window.
//!
//! With more than S pairs, two neighbours are merged and the merged pair keeps the *newer* time. No unit therefore expires too
//! early, and the limit holds in every window. In return, some units expire late. The rules of
//! [`StrictWindow::cheapest_merge`] bound this delay.

use crate::counter::{CountBreakdown, Counter};
use crate::moment::{LogTime, Moment};
use crate::quota::Quota;

/// Maximum number of pairs by which the allocation grows at once.
const MAX_NEW_PAIRS: usize = 4;

/// Units that expire together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Time of the newest admission in the pair.
    pub newest_ms: u64,
    /// Number of units.
    pub count: u64,
}

/// A log of pairs, from the oldest to the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictWindow {
    pairs: Vec<Pair>,
    /// Window of the quota under which the units were counted. Identifies the quota after a change of the policy.
    window_ms: u64,
}

/// A strict window rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct StrictWindowView {
    /// The stamp of an admission, not before the newest pair.
    stamp_ms: u64,
    /// Grain of the clock, by which pairs can be live longer than a window.
    grain_ms: u64,
    /// Number of expired pairs, which are the oldest ones.
    expired: usize,
    used: u64,
    newest_ms: u64,
    /// The time of the oldest live pair.
    oldest_ms: Option<u64>,
    /// The clock stepped far back, so all units count as admitted now.
    is_rebased: bool,
    /// The log has live units of a quota with another window.
    is_changed: bool,
}

impl StrictWindow {
    /// Builds a strict window from the [`pairs`](Self::pairs) and the [`window_ms`](Self::window_ms) in a store.
    pub fn from_pairs(window_ms: u64, pairs: Vec<Pair>) -> Self {
        Self { pairs, window_ms }
    }

    /// The pairs, from the oldest to the newest.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The window of the quota under which the units were counted.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// Size of the heap allocation.
    pub fn heap_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<Pair>()
    }

    /// Bytes by which the heap allocation can grow if another pair is added.
    pub fn growth_bytes(&self) -> usize {
        let is_full = self.pairs.len() == self.pairs.capacity();
        if is_full { MAX_NEW_PAIRS * size_of::<Pair>() } else { 0 }
    }

    /// The times of the newest pair and of its expiry.
    pub(crate) fn newest_and_expiry_ms(&self) -> (u64, u64) {
        let newest = self.pairs.last().map(|newest| newest.newest_ms);
        newest.map_or((0, 0), |newest_ms| (newest_ms, newest_ms.saturating_add(self.window_ms)))
    }

    /// Adds `count` units with the stamp of the view, and merges pairs until they fit the slots.
    fn append(&mut self, quota: &Quota, view: &StrictWindowView, count: u64) {
        match self.pairs.last_mut() {
            Some(last) if last.newest_ms == view.stamp_ms => last.count += count,
            _ => {
                self.reserve_pair(quota);
                self.pairs.push(Pair { newest_ms: view.stamp_ms, count });
            }
        }
        let total = (view.used + count).max(quota.limit());
        while self.pairs.len() > usize::from(quota.slots()) {
            let left = self.cheapest_merge(quota, total, view.grain_ms);
            let merged = self.pairs[left].count + self.pairs[left + 1].count;
            self.pairs[left + 1].count = merged;
            self.pairs.remove(left);
        }
    }

    /// Ensures capacity for a pair. Grows by a few pairs at a time, up to the slots, because doubling would waste memory.
    fn reserve_pair(&mut self, quota: &Quota) {
        if self.pairs.len() == self.pairs.capacity() {
            let most = usize::from(quota.slots()) + 1;
            self.pairs.reserve_exact(most.saturating_sub(self.pairs.len()).clamp(1, MAX_NEW_PAIRS));
        }
    }

    /// Returns the position of the left one of two neighbours to merge: the merge that delays the fewest unit-milliseconds, among
    /// the merged pairs that span at most 4W/S and count at most ⌈4L/S⌉. Here W is the window plus the grain of the clock, and L
    /// is `total`: the limit, or the units of all pairs if charges have exceeded it.
    ///
    /// Such a pair exists. There are S+1 live pairs, hence S pairs of neighbours (i, i+1), i = 1..S. The units of pair i were
    /// admitted after `t(i−1)`, so the merged pair spans less than `t(i+1) − t(i−1)`, which is known for i ≥ 2. Summed over
    /// i = 2..S that telescopes to less than 2W, as all stamps lie within W. So fewer than S/2 of them exceed 4W/S. The merged
    /// counts sum to at most 2L, so fewer than S/2 exceed ⌈4L/S⌉. S is even: at most S/2 − 1 spans are too long, at most S/2 − 1
    /// counts are too large, and i = 1 is excluded because its left end is unknown. That excludes at most S − 1 of S candidates.
    ///
    /// The proof does not depend on the limit or window under which earlier pairs were merged, so it also holds after a change:
    /// at each append, all pairs are live in the present window and sum to at most `total`.
    fn cheapest_merge(&self, quota: &Quota, total: u64, grain_ms: u64) -> usize {
        let slots = u128::from(quota.slots());
        let most_count = total.saturating_mul(4).div_ceil(u64::from(quota.slots()));
        let window_ms = u128::from(quota.window_ms() + grain_ms);
        let cost = |left: usize| {
            let (a, b) = (self.pairs[left], self.pairs[left + 1]);
            u128::from(a.count) * u128::from(b.newest_ms - a.newest_ms)
        };
        let is_eligible = |left: &usize| {
            let span_ms = self.pairs[left + 1].newest_ms - self.pairs[left - 1].newest_ms;
            u128::from(span_ms) * slots <= 4 * window_ms
                && self.pairs[*left].count + self.pairs[left + 1].count <= most_count
        };
        let last = self.pairs.len() - 1;
        let cheapest = (1..last).filter(is_eligible).min_by_key(|left| cost(*left));
        debug_assert!(cheapest.is_some(), "no pair can be merged: {self:?} {quota:?}");
        cheapest.unwrap_or(last - 1)
    }
}

impl Counter for StrictWindow {
    type View = StrictWindowView;

    fn empty(quota: &Quota) -> Self {
        Self { pairs: Vec::new(), window_ms: quota.window_ms() }
    }

    fn view(&self, quota: &Quota, now: Moment) -> StrictWindowView {
        let newest_ms = self.pairs.last().map_or(0, |pair| pair.newest_ms);
        let grain_ms = now.grain_ms();
        let Some(LogTime { now_ms, stamp_ms }) = now.log_time(newest_ms, quota.window_ms()) else {
            // The clock stepped far back: all units count as admitted now.
            let used = self.pairs.iter().map(|pair| pair.count).sum();
            let newest_ms = now.latest_ms();
            return StrictWindowView {
                stamp_ms: newest_ms,
                grain_ms,
                expired: 0,
                used,
                newest_ms,
                oldest_ms: Some(newest_ms),
                is_rebased: true,
                is_changed: false,
            };
        };
        let is_over = |pair: &&Pair| pair.newest_ms + quota.window_ms() <= now_ms;
        let expired = self.pairs.iter().take_while(is_over).count();
        let live = &self.pairs[expired..];
        let used = live.iter().map(|pair| pair.count).sum();
        let oldest_ms = live.first().map(|pair| pair.newest_ms);
        let is_changed = used > 0 && self.window_ms != quota.window_ms();
        StrictWindowView {
            stamp_ms,
            grain_ms,
            expired,
            used,
            newest_ms,
            oldest_ms,
            is_rebased: false,
            is_changed,
        }
    }

    fn used(view: &StrictWindowView) -> u64 {
        view.used
    }

    fn breakdown(view: &StrictWindowView) -> CountBreakdown {
        CountBreakdown { previous: 0, current: view.used, oldest_ms: view.oldest_ms }
    }

    fn is_adjusted(view: &StrictWindowView) -> bool {
        view.is_rebased || view.is_changed
    }

    fn retry_at_ms(&self, view: &StrictWindowView, quota: &Quota, cost: u64) -> u64 {
        let mut used = view.used;
        let oldest_that_frees_enough = self.pairs[view.expired..].iter().find(|pair| {
            used -= pair.count;
            used <= quota.limit() - cost
        });
        match oldest_that_frees_enough {
            Some(pair) if !view.is_rebased => pair.newest_ms + quota.window_ms(),
            _ => view.newest_ms + quota.window_ms(),
        }
    }

    fn reset_at_ms(&self, view: &StrictWindowView, quota: &Quota, spent: u64) -> u64 {
        match (view.used, spent) {
            (0, 0) => 0,
            (_, 0) => view.newest_ms + quota.window_ms(),
            _ => view.stamp_ms + quota.window_ms(),
        }
    }

    fn commit(&mut self, view: &StrictWindowView, quota: &Quota, spent: u64) {
        self.window_ms = quota.window_ms();
        if view.is_rebased {
            self.pairs.clear();
            self.pairs.push(Pair { newest_ms: view.stamp_ms, count: view.used });
        }
        self.pairs.drain(..view.expired);
        if spent > 0 {
            self.append(quota, view, spent);
        }
    }

    /// Removes the oldest units first. The times of the refunded units are unknown. Removing the oldest ones keeps the later
    /// times, so that no outstanding unit expires too early.
    fn refund(&mut self, view: &StrictWindowView, quota: &Quota, amount: u64) {
        self.commit(view, quota, 0);
        let mut left = amount;
        self.pairs.retain_mut(|pair| {
            let back = left.min(pair.count);
            left -= back;
            pair.count -= back;
            pair.count > 0
        });
    }
}
