//! The count of one quota, kept naively: every formula is evaluated at a moment, and every wait is searched for.

use std::time::Duration;

use slidegate_core::{Algorithm, Anchor, Quota};

/// Count of one quota, and the quota that it was counted for.
#[derive(Clone, Debug)]
pub(super) struct Count {
    algorithm: Algorithm,
    window: u128,
    /// Rate and capacity: only token buckets are matched by them.
    limit: u128,
    capacity: u128,
    kept: Kept,
}

#[derive(Clone, Debug)]
enum Kept {
    /// Of a sliding window; a fixed window has no previous one.
    Windows { start: u128, prev: u128, cur: u128 },
    /// Of a strict window and of a log: moments and units, the oldest first.
    Entries(Vec<(u128, u128)>),
    /// Of a token bucket, in tokens times window.
    Debt { debt: u128, at: u128 },
}

/// How close a count is to a quota: the smallest one is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kinship {
    Same,
    SameWindow,
    /// By how much the windows differ.
    SameAlgorithm(u128),
}

impl Count {
    /// Nothing is counted yet.
    pub(super) fn empty(quota: &Quota, now: u128) -> Self {
        let kept = match quota.algorithm() {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => {
                Kept::Windows { start: window_start(quota, now, window(quota)), prev: 0, cur: 0 }
            }
            Algorithm::StrictWindow | Algorithm::SlidingLog => Kept::Entries(Vec::new()),
            Algorithm::TokenBucket => Kept::Debt { debt: 0, at: now },
        };
        Self {
            algorithm: quota.algorithm(),
            window: window(quota),
            limit: quota.limit().into(),
            capacity: quota.capacity().into(),
            kept,
        }
    }

    pub(super) fn kinship(&self, quota: &Quota) -> Option<Kinship> {
        if self.algorithm != quota.algorithm() {
            return None;
        }
        let is_same_bucket = (self.limit, self.capacity) == (quota.limit().into(), quota.capacity().into());
        Some(match self.window.abs_diff(window(quota)) {
            0 if self.algorithm != Algorithm::TokenBucket || is_same_bucket => Kinship::Same,
            0 => Kinship::SameWindow,
            difference => Kinship::SameAlgorithm(difference),
        })
    }

    /// Units that count at `now`, which is not before anything that happens to this count.
    pub(super) fn used(&self, now: u128) -> u128 {
        match &self.kept {
            Kept::Windows { start, prev, cur } => {
                let since = now.saturating_sub(*start);
                let left = self.window - since % self.window;
                match (since / self.window, self.algorithm) {
                    (0, Algorithm::SlidingWindow) => (prev * left).div_ceil(self.window) + cur,
                    (1, Algorithm::SlidingWindow) => (cur * left).div_ceil(self.window),
                    (0, _) => *cur,
                    _ => 0,
                }
            }
            Kept::Entries(entries) => {
                let now = now.max(newest(entries));
                entries.iter().filter(|(at, _)| at + self.window > now).map(|(_, units)| units).sum()
            }
            Kept::Debt { debt, at } => {
                debt.saturating_sub(self.limit * now.saturating_sub(*at)).div_ceil(self.window)
            }
        }
    }

    /// Whether a count that no quota of the policy has taken is worth keeping: not if it is from so far ahead that it would stay
    /// until then. If it is over, it is kept for some time beside others of its algorithm, so that a version of the policy that
    /// has copied a count does not copy it again.
    pub(super) fn is_remembered(&self, now: u128, all: &[Self]) -> bool {
        let kin = || all.iter().filter(|other| other.algorithm == self.algorithm);
        let longest = kin().map(|other| other.window).max().unwrap_or(0);
        let is_far_ahead = self.at() > now + self.window;
        let is_needed = kin().count() > 1 && now < self.at() + 2 * longest;
        !is_far_ahead && (self.used(now) > 0 || is_needed)
    }

    /// Whether both count for the same quota.
    pub(super) fn is_counted_like(&self, other: &Self) -> bool {
        let key = |count: &Self| (count.algorithm, count.window, count.limit, count.capacity);
        let is_bucket = self.algorithm == Algorithm::TokenBucket;
        if is_bucket { key(self) == key(other) } else { self.window == other.window }
    }

    /// The time that was stored.
    fn at(&self) -> u128 {
        match &self.kept {
            Kept::Windows { start, .. } => *start,
            Kept::Entries(entries) => newest(entries),
            Kept::Debt { at, .. } => *at,
        }
    }

    /// The count as `quota` sees it at `now`, and whether it was mended.
    pub(super) fn seen(&self, quota: &Quota, now: u128) -> (Self, bool) {
        let (mut seen, is_mended) = match &self.kept {
            Kept::Windows { start, prev, cur } => self.windows_seen((*start, *prev, *cur), quota, now),
            Kept::Entries(entries) => self.entries_seen(entries, quota, now),
            Kept::Debt { debt, at } => self.debt_seen(*debt, *at, quota, now),
        };
        if seen.used(now) == 0 {
            return (Self::empty(quota, now), false);
        }
        (seen.limit, seen.capacity) = (quota.limit().into(), quota.capacity().into());
        (seen, is_mended)
    }

    fn windows_seen(
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
        let rolled = Self { kept: Kept::Windows { start, prev, cur }, ..self.clone() };
        if self.window <= window(quota) {
            // A shorter window goes on until something is spent.
            return (rolled, is_far_ahead);
        }
        let kept = Kept::Windows { start: now, prev: 0, cur: rolled.used(now) };
        (Self { kept, window: window(quota), ..rolled }, true)
    }

    fn entries_seen(&self, entries: &[(u128, u128)], quota: &Quota, now: u128) -> (Self, bool) {
        let is_far_ahead = newest(entries) > now + window(quota);
        let kept = if is_far_ahead {
            vec![(now, entries.iter().map(|(_, units)| units).sum())]
        } else {
            let now = now.max(newest(entries));
            entries.iter().copied().filter(|(at, _)| at + window(quota) > now).collect()
        };
        let is_mended = is_far_ahead || self.window != window(quota);
        (Self { kept: Kept::Entries(kept), window: window(quota), ..self.clone() }, is_mended)
    }

    fn debt_seen(&self, debt: u128, at: u128, quota: &Quota, now: u128) -> (Self, bool) {
        let is_far_ahead = at > now + window(quota);
        let at = if is_far_ahead { now } else { at };
        let debt = debt.saturating_sub(self.limit * now.saturating_sub(at));
        let at = at.max(now);
        if self.kinship(quota) == Some(Kinship::Same) {
            return (Self { kept: Kept::Debt { debt, at }, ..self.clone() }, is_far_ahead);
        }
        let converted = (debt * window(quota)).div_ceil(self.window);
        let debt = converted.min(u128::from(quota.capacity()) * window(quota));
        (Self { kept: Kept::Debt { debt, at }, window: window(quota), ..self.clone() }, true)
    }

    /// Counts `cost` units of a request at `now`.
    pub(super) fn spend(&mut self, quota: &Quota, now: u128, cost: u128) {
        let used = self.used(now);
        let old_window = std::mem::replace(&mut self.window, window(quota));
        match &mut self.kept {
            Kept::Windows { start, prev, cur } if old_window != self.window => {
                (*start, *prev, *cur) = (now, 0, used + cost);
            }
            Kept::Windows { cur, .. } => *cur += cost,
            Kept::Entries(entries) => {
                let now = now.max(newest(entries));
                match entries.last_mut() {
                    Some((at, units)) if *at == now => *units += cost,
                    _ => entries.push((now, cost)),
                }
                while self.algorithm == Algorithm::StrictWindow && entries.len() > usize::from(quota.slots())
                {
                    merge(entries, quota);
                }
            }
            Kept::Debt { debt, .. } => *debt += cost * self.window,
        }
    }

    pub(super) fn has_algorithm_of(&self, quota: &Quota) -> bool {
        self.algorithm == quota.algorithm()
    }

    /// Counts what another version of the policy has spent, whatever the limit: a log makes its newest entry newer as long as that
    /// begins within an eighth of the window.
    pub(super) fn spend_elsewhere(&mut self, now: u128, cost: u128) {
        let quota = self.own_quota(self.used(now) + cost);
        *self = self.seen(&quota, now).0;
        match (&mut self.kept, self.algorithm) {
            // No client waits longer than the bucket takes to fill.
            (Kept::Debt { debt, .. }, _) => {
                *debt = (*debt + cost * self.window).min(self.capacity * self.window).max(*debt);
            }
            (Kept::Entries(entries), Algorithm::SlidingLog)
                if entries.len() > 1
                    && now.max(newest(entries)) - entries[entries.len() - 2].0 <= self.window / 8 =>
            {
                let moment = now.max(newest(entries));
                let last = entries.last_mut().unwrap();
                *last = (moment, last.1 + cost);
            }
            _ => self.spend(&quota, now, cost),
        }
    }

    /// Gives back what another version of the policy gives back.
    pub(super) fn refund_elsewhere(&mut self, now: u128, units: u128) {
        if units > 0 && self.used(now) > 0 {
            *self = self.seen(&self.own_quota(0), now).0;
            self.refund(units);
        }
    }

    /// The quota that the count was made for, with a limit of at least `least` where the limit does not matter.
    fn own_quota(&self, least: u128) -> Quota {
        let narrow = |number: u128| u64::try_from(number).unwrap();
        let is_bucket = self.algorithm == Algorithm::TokenBucket;
        let limit = if is_bucket { self.limit } else { least };
        let quota = Quota::new(narrow(limit), Duration::from_millis(narrow(self.window))).unwrap();
        let quota = quota.with_algorithm(self.algorithm);
        if is_bucket { quota.with_burst(narrow(self.capacity)).unwrap() } else { quota }
    }

    /// Gives back `units`, and no more than are counted.
    pub(super) fn refund(&mut self, units: u128) {
        let mut left = units;
        let mut take = |from: &mut u128| {
            let taken = left.min(*from);
            (*from, left) = (*from - taken, left - taken);
        };
        match &mut self.kept {
            Kept::Windows { prev, cur, .. } => {
                take(cur);
                take(prev);
            }
            Kept::Entries(entries) => {
                for (_, units) in entries.iter_mut() {
                    take(units);
                }
                entries.retain(|(_, units)| *units > 0);
            }
            Kept::Debt { debt, .. } => *debt = debt.saturating_sub(left * self.window),
        }
    }

    /// The least wait after which at most `units` count, if nothing else comes.
    pub(super) fn wait_until_at_most(&self, units: u128, now: u128) -> u128 {
        let is_over = |wait: u128| self.used(now + wait) <= units;
        if is_over(0) {
            return 0;
        }
        let mut most = 1;
        while !is_over(most) {
            most *= 2;
        }
        let mut least = most / 2;
        while most - least > 1 {
            let middle = least.midpoint(most);
            if is_over(middle) { most = middle } else { least = middle }
        }
        most
    }
}

/// Merges the adjacent pair with the least `n_i · (ts_{i+1} − ts_i)` of those that may be merged; of equals the oldest.
fn merge(pairs: &mut Vec<(u128, u128)>, quota: &Quota) {
    let (slots, limit) = (u128::from(quota.slots()), u128::from(quota.limit()));
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

/// The start of the window that a count without a history is in.
fn window_start(quota: &Quota, now: u128, window: u128) -> u128 {
    match quota.anchor() {
        Anchor::Epoch => now / window * window,
        Anchor::FirstRequest => now,
    }
}
