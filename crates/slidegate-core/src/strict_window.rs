//! `strict-window`: a log of at most S pairs that never admits more than the limit in any window.
//!
//! When there are more pairs than S, two neighbours are merged and the merged pair keeps the *newer* time.
//! No unit is therefore ever forgotten too early, and the limit holds in every window; the price is that some
//! units are forgotten a little late. How late is bounded by what may be merged, see [`StrictWindow::append`].

use crate::counter::{Counter, Parts};
use crate::moment::{Moment, Passed};
use crate::quota::Quota;

/// It grows by so many at the most.
const MOST_NEW_PAIRS: usize = 4;

/// Units that are forgotten together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// When the newest of them was admitted.
    pub newest_ms: u64,
    /// How many they are.
    pub count: u64,
}

/// Pairs from the oldest to the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictWindow {
    pairs: Vec<Pair>,
    /// The window under which it was counted, to know it again when a policy's quotas change.
    window_ms: u64,
}

/// A strict window rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct StrictWindowView {
    /// The stamp of an admission, not before the newest pair.
    stamp_ms: u64,
    /// Of the clock: by so much longer pairs may be live.
    grain_ms: u64,
    /// How many of the oldest pairs are over.
    expired: usize,
    used: u64,
    newest_ms: u64,
    /// The time of the oldest pair that is live.
    oldest_ms: Option<u64>,
    /// Everything counts as admitted now, for the clock stepped far back.
    is_rebased: bool,
    /// Something is counted, and under another window than before.
    is_changed: bool,
}

impl StrictWindow {
    /// A strict window that was kept elsewhere: what [`pairs`](Self::pairs) and [`window_ms`](Self::window_ms) said.
    pub fn from_pairs(window_ms: u64, pairs: Vec<Pair>) -> Self {
        Self { pairs, window_ms }
    }

    /// The pairs that are kept, from the oldest to the newest.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The window under which it was counted.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// The memory that it holds besides itself.
    pub fn heap_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<Pair>()
    }

    /// By how much that may grow with the next pair.
    pub fn growth_bytes(&self) -> usize {
        let is_full = self.pairs.len() == self.pairs.capacity();
        if is_full { MOST_NEW_PAIRS * size_of::<Pair>() } else { 0 }
    }

    /// When the newest pair was counted, and when it no longer is.
    pub(crate) fn newest_and_until_ms(&self) -> (u64, u64) {
        let newest = self.pairs.last().map(|newest| newest.newest_ms);
        newest.map_or((0, 0), |newest_ms| (newest_ms, newest_ms.saturating_add(self.window_ms)))
    }

    /// Adds `count` units as the view stamps them, and merges until there are no more pairs than slots.
    fn append(&mut self, quota: &Quota, view: &StrictWindowView, count: u64) {
        match self.pairs.last_mut() {
            Some(last) if last.newest_ms == view.stamp_ms => last.count += count,
            _ => {
                self.make_room(quota);
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

    /// Grows by a few pairs at a time and not beyond what it will ever hold: doubling would waste half of it.
    fn make_room(&mut self, quota: &Quota) {
        if self.pairs.len() == self.pairs.capacity() {
            let most = usize::from(quota.slots()) + 1;
            self.pairs.reserve_exact(most.saturating_sub(self.pairs.len()).clamp(1, MOST_NEW_PAIRS));
        }
    }

    /// The left one of the two neighbours to merge: those whose merging delays the fewest unit-milliseconds,
    /// among those whose merged pair spans at most 4W/S and counts at most ⌈4L/S⌉. Here W is the window and the clock's
    /// grain, and L is the limit, or `total`, the units of all pairs, if charges have gone beyond it.
    ///
    /// Such a pair exists. There are S+1 live pairs, hence S neighbourhoods (i, i+1), i = 1..S. The units of
    /// pair i were admitted after `t(i−1)`, so the merged pair spans less than `t(i+1) − t(i−1)`, which is known
    /// for i ≥ 2. Summed over i = 2..S that telescopes to less than 2W, as all stamps lie within W; so
    /// fewer than S/2 of them exceed 4W/S. The merged counts sum to at most 2L, so fewer than S/2 exceed ⌈4L/S⌉.
    /// S is even: at most S/2 − 1 are too long, at most S/2 − 1 too many, and i = 1 is left out because its
    /// left end is unknown. That makes S − 1 at the most, and one of the S remains.
    ///
    /// None of this asks under which limit or window the pairs were merged, so it holds after a change as well:
    /// when something is appended, all pairs are live in the present window and sum to `total` at most.
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
        debug_assert!(cheapest.is_some(), "the pigeonhole is full: {self:?} {quota:?}");
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
        let Some(Passed { now_ms, stamp_ms }) = now.after(newest_ms, quota.window_ms()) else {
            // The clock stepped far back: everything counts as admitted now.
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

    fn parts(view: &StrictWindowView) -> Parts {
        Parts { previous: 0, current: view.used, oldest_ms: view.oldest_ms }
    }

    fn is_mended(view: &StrictWindowView) -> bool {
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

    /// The oldest first. Which units come back is not known, and taking the oldest leaves the later times in
    /// place, so that those still outstanding are never forgotten too early.
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
