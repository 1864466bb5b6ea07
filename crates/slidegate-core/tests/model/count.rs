//! Naive count of one quota: evaluates every formula at the given time, and searches for every wait.

use std::time::Duration;

use slidegate_core::{Algorithm, Anchor, Quota};

/// Count of one quota, and the quota that it was counted for.
#[derive(Clone, Debug)]
pub(super) struct Count {
    algorithm: Algorithm,
    window: u128,
    /// Rate and capacity, which identify token buckets only.
    limit: u128,
    capacity: u128,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// State of a sliding window, or of a fixed window with `prev` 0.
    Windows { start: u128, prev: u128, cur: u128 },
    /// Times and units of a strict window or a log, the oldest first.
    Entries(Vec<(u128, u128)>),
    /// State of a token bucket; the debt is in tokens times window.
    Debt { debt: u128, at: u128 },
}

/// Similarity of a count to a quota, the most similar first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Similarity {
    Same,
    SameWindow,
    /// Same algorithm with another window; the number is the difference of the windows.
    SameAlgorithm(u128),
}

impl Count {
    /// Returns a count of 0.
    pub(super) fn empty(quota: &Quota, now: u128) -> Self {
        let state = match quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => {
                State::Windows { start: window_start(quota, now, window(quota)), prev: 0, cur: 0 }
            }
            Algorithm::StrictWindow | Algorithm::SlidingLog => State::Entries(Vec::new()),
            Algorithm::TokenBucket => State::Debt { debt: 0, at: now },
            other => panic!("the oracle has no rules for {other}"),
        };
        Self {
            algorithm: quota.algorithm(),
            window: window(quota),
            limit: quota.limit().into(),
            capacity: quota.capacity().into(),
            state,
        }
    }

    pub(super) fn similarity(&self, quota: &Quota) -> Option<Similarity> {
        if self.algorithm != quota.algorithm() {
            return None;
        }
        let is_same_bucket = (self.limit, self.capacity) == (quota.limit().into(), quota.capacity().into());
        Some(match self.window.abs_diff(window(quota)) {
            0 if self.algorithm != Algorithm::TokenBucket || is_same_bucket => Similarity::Same,
            0 => Similarity::SameWindow,
            difference => Similarity::SameAlgorithm(difference),
        })
    }

    /// Returns the units that count at `now`, which never precedes an update of this count.
    pub(super) fn used(&self, now: u128) -> u128 {
        match &self.state {
            State::Windows { start, prev, cur } => {
                let since = now.saturating_sub(*start);
                let overlap = self.window - since % self.window;
                match (since / self.window, self.algorithm) {
                    (0, Algorithm::SlidingWindow) => (prev * overlap).div_ceil(self.window) + cur,
                    (1, Algorithm::SlidingWindow) => (cur * overlap).div_ceil(self.window),
                    (0, _) => *cur,
                    _ => 0,
                }
            }
            State::Entries(entries) => {
                let now = now.max(newest(entries));
                entries.iter().filter(|(at, _)| at + self.window > now).map(|(_, units)| units).sum()
            }
            State::Debt { debt, at } => {
                debt.saturating_sub(self.rate() * now.saturating_sub(*at)).div_ceil(self.window)
            }
        }
    }

    /// Debt that a token bucket pays off in each millisecond.
    fn rate(&self) -> u128 {
        self.limit.max(1)
    }

    /// Whether the stored time is more than a window ahead.
    pub(super) fn is_far_ahead(&self, now: u128) -> bool {
        self.at() > now + self.window
    }

    /// Whether a reset finds the count.
    pub(super) fn can_be_found(&self, now: u128) -> bool {
        self.used(now) > 0 && !self.is_far_ahead(now)
    }

    /// Returns the window of a count of the same algorithm.
    pub(super) fn window_of_related(&self, other: &Self) -> Option<u128> {
        (self.algorithm == other.algorithm).then_some(other.window)
    }

    /// Returns the window of a quota of the same algorithm.
    pub(super) fn window_of_related_quota(&self, quota: &Quota) -> Option<u128> {
        self.has_algorithm_of(quota).then(|| window(quota))
    }

    /// Whether two windows, of `longest` or its own, have not passed since the stored time.
    pub(super) fn is_recent(&self, now: u128, longest: u128) -> bool {
        now < self.at() + 2 * longest.max(self.window)
    }

    /// Whether both counts have the same quota.
    pub(super) fn has_same_quota_as(&self, other: &Self) -> bool {
        let key = |count: &Self| (count.algorithm, count.window, count.limit, count.capacity);
        let is_bucket = self.algorithm == Algorithm::TokenBucket;
        if is_bucket { key(self) == key(other) } else { self.window == other.window }
    }

    /// Returns the stored time.
    fn at(&self) -> u128 {
        match &self.state {
            State::Windows { start, .. } => *start,
            State::Entries(entries) => newest(entries),
            State::Debt { at, .. } => *at,
        }
    }

    /// Returns the count for `quota` at `now`, and whether it was adjusted to another window or to a clock that stepped far back.
    pub(super) fn view(&self, quota: &Quota, now: u128) -> (Self, bool) {
        let (mut view, is_adjusted) = match &self.state {
            State::Windows { start, prev, cur } => self.view_windows((*start, *prev, *cur), quota, now),
            State::Entries(entries) => self.view_entries(entries, quota, now),
            State::Debt { debt, at } => self.view_debt(*debt, *at, quota, now),
        };
        let is_capped = is_adjusted && matches!(self.state, State::Debt { .. });
        if view.used(now) == 0 && !is_capped {
            return (Self::empty(quota, now), false);
        }
        (view.limit, view.capacity) = (quota.limit().into(), quota.capacity().into());
        (view, is_adjusted)
    }

    fn view_windows(
        &self,
        (mut start, mut prev, mut cur): (u128, u128, u128),
        quota: &Quota,
        now: u128,
    ) -> (Self, bool) {
        let is_far_ahead = start > now + self.window;
        if is_far_ahead {
            start = window_start(quota, now, self.window);
        }
        let windows = now.saturating_sub(start) / self.window;
        if windows > 0 {
            let is_next = windows == 1 && self.algorithm == Algorithm::SlidingWindow;
            (start, prev, cur) = (start + windows * self.window, if is_next { cur } else { 0 }, 0);
        }
        let rolled = Self { state: State::Windows { start, prev, cur }, ..self.clone() };
        if self.window <= window(quota) {
            // A shorter window continues until units are spent.
            return (rolled, is_far_ahead);
        }
        let state = State::Windows { start: now, prev: 0, cur: rolled.used(now) };
        (Self { state, window: window(quota), ..rolled }, true)
    }

    fn view_entries(&self, entries: &[(u128, u128)], quota: &Quota, now: u128) -> (Self, bool) {
        let is_far_ahead = newest(entries) > now + window(quota);
        let state = if is_far_ahead {
            vec![(now, entries.iter().map(|(_, units)| units).sum())]
        } else {
            let now = now.max(newest(entries));
            entries.iter().copied().filter(|(at, _)| at + window(quota) > now).collect()
        };
        let is_adjusted = is_far_ahead || self.window != window(quota);
        (Self { state: State::Entries(state), window: window(quota), ..self.clone() }, is_adjusted)
    }

    fn view_debt(&self, debt: u128, at: u128, quota: &Quota, now: u128) -> (Self, bool) {
        let is_far_ahead = at > now + window(quota);
        let at = if is_far_ahead { now } else { at };
        let debt = debt.saturating_sub(self.rate() * now.saturating_sub(at));
        let at = at.max(now);
        if debt == 0 {
            return (Self::empty(quota, now), false);
        }
        if self.similarity(quota) == Some(Similarity::Same) {
            return (Self { state: State::Debt { debt, at }, ..self.clone() }, is_far_ahead);
        }
        let converted = (debt * window(quota)).div_ceil(self.window);
        let debt = converted.min(u128::from(quota.capacity()) * window(quota));
        (Self { state: State::Debt { debt, at }, window: window(quota), ..self.clone() }, true)
    }

    /// Counts `cost` units of a request at `now`, beyond the limit if necessary.
    pub(super) fn spend(&mut self, quota: &Quota, now: u128, cost: u128) {
        let used = self.used(now);
        let old_window = std::mem::replace(&mut self.window, window(quota));
        match &mut self.state {
            State::Windows { start, prev, cur } if old_window != self.window => {
                (*start, *prev, *cur) = (now, 0, used + cost);
            }
            State::Windows { cur, .. } => *cur += cost,
            State::Entries(entries) => {
                let now = now.max(newest(entries));
                let is_beyond = self.algorithm == Algorithm::SlidingLog && used + cost > quota.limit().into();
                let before = entries.len().checked_sub(2).map(|index| entries[index].0);
                match entries.last_mut() {
                    Some(newest)
                        if is_beyond && before.is_some_and(|before| now - before <= self.window / 8) =>
                    {
                        *newest = (now, newest.1 + cost);
                    }
                    Some((at, units)) if *at == now => *units += cost,
                    _ => entries.push((now, cost)),
                }
                while self.algorithm == Algorithm::StrictWindow && entries.len() > usize::from(quota.slots())
                {
                    merge(entries, quota);
                }
            }
            State::Debt { debt, .. } => *debt += cost * self.window,
        }
    }

    pub(super) fn has_algorithm_of(&self, quota: &Quota) -> bool {
        self.algorithm == quota.algorithm()
    }

    /// Counts units spent under another version of the policy, beyond any limit.
    pub(super) fn spend_in_other_version(&mut self, now: u128, cost: u128) {
        let quota = self.own_quota();
        *self = self.view(&quota, now).0;
        let full = self.capacity * self.window;
        match &mut self.state {
            // No client waits longer than the bucket takes to fill.
            State::Debt { debt, .. } => *debt = (*debt + cost * self.window).min(full).max(*debt),
            State::Windows { .. } | State::Entries(_) => self.spend(&quota, now, cost),
        }
    }

    /// Counts a refund under another version of the policy.
    pub(super) fn refund_in_other_version(&mut self, now: u128, units: u128) {
        if units > 0 && self.used(now) > 0 {
            *self = self.view(&self.own_quota(), now).0;
            self.refund(units);
        }
    }

    /// Returns the quota of the count. Its limit is 0 for algorithms whose counts have none.
    fn own_quota(&self) -> Quota {
        let narrow = |number: u128| u64::try_from(number).unwrap();
        let is_bucket = self.algorithm == Algorithm::TokenBucket;
        let limit = if is_bucket { self.limit } else { 0 };
        let quota = Quota::new(narrow(limit), Duration::from_millis(narrow(self.window))).unwrap();
        let quota = quota.with_algorithm(self.algorithm);
        if limit > 0 { quota.with_burst(narrow(self.capacity)).unwrap() } else { quota }
    }

    /// Refunds `units`, at most those that are counted.
    pub(super) fn refund(&mut self, units: u128) {
        let mut remaining = units;
        let mut take = |from: &mut u128| {
            let taken = remaining.min(*from);
            (*from, remaining) = (*from - taken, remaining - taken);
        };
        match &mut self.state {
            State::Windows { prev, cur, .. } => {
                take(cur);
                take(prev);
            }
            State::Entries(entries) => {
                for (_, units) in entries.iter_mut() {
                    take(units);
                }
                entries.retain(|(_, units)| *units > 0);
            }
            State::Debt { debt, .. } => *debt = debt.saturating_sub(remaining * self.window),
        }
    }

    /// Returns the shortest wait after which at most `units` count, without further requests.
    pub(super) fn wait_until_at_most(&self, units: u128, now: u128) -> u128 {
        let is_enough = |wait: u128| self.used(now + wait) <= units;
        if is_enough(0) {
            return 0;
        }
        let mut enough = 1;
        while !is_enough(enough) {
            enough *= 2;
        }
        let mut too_short = enough / 2;
        while enough - too_short > 1 {
            let middle = too_short.midpoint(enough);
            if is_enough(middle) { enough = middle } else { too_short = middle }
        }
        enough
    }
}

/// Merges the mergeable adjacent pair with the least `n_i · (ts_{i+1} − ts_i)`, the oldest of equals.
fn merge(pairs: &mut Vec<(u128, u128)>, quota: &Quota) {
    let slots = u128::from(quota.slots());
    let total: u128 = pairs.iter().map(|(_, units)| units).sum();
    let limit = total.max(quota.limit().into());
    let may_merge = |i: &usize| {
        let (span, count) = (pairs[i + 1].0 - pairs[i - 1].0, pairs[*i].1 + pairs[i + 1].1);
        span * slots <= 4 * window(quota) && count <= (4 * limit).div_ceil(slots)
    };
    let price = |i: &usize| pairs[*i].1 * (pairs[i + 1].0 - pairs[*i].0);
    let cheapest = (1..pairs.len() - 1).filter(may_merge).min_by_key(price);
    let i = cheapest.unwrap_or_else(|| panic!("no pair can be merged: {pairs:?} under {quota}"));
    pairs[i + 1].1 += pairs[i].1;
    pairs.remove(i);
}

fn newest(entries: &[(u128, u128)]) -> u128 {
    entries.last().map_or(0, |(at, _)| *at)
}

fn window(quota: &Quota) -> u128 {
    quota.window_ms().into()
}

/// Returns the start of the window of an empty count.
fn window_start(quota: &Quota, now: u128, window: u128) -> u128 {
    match quota.anchor() {
        Anchor::Epoch => now / window * window,
        _ => now,
    }
}
