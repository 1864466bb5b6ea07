//! `sliding-window`: two counters, the previous one weighted by its overlap with the last window.

use crate::counter::{CountBreakdown, Counter};
use crate::exact::{mul_div_ceil, mul_div_floor};
use crate::moment::Moment;
use crate::quota::Quota;

/// The current window, with its count and the count of the previous window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Start of the current window.
    pub start_ms: u64,
    /// Window of the quota under which the units were counted. Differs from the present quota after a change.
    pub window_ms: u64,
    /// Units counted in the previous window.
    pub prev: u64,
    /// Units counted in the current window.
    pub cur: u64,
}

/// A sliding window rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindowView {
    start_ms: u64,
    /// Window of the quota, or a shorter one under which the units were counted.
    window_ms: u64,
    prev: u64,
    cur: u64,
    used: u64,
    now_ms: u64,
    is_adjusted: bool,
}

impl SlidingWindow {
    /// The time from which the counter counts nothing under its own quota.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        let windows = if self.cur > 0 { 2 } else { u64::from(self.prev > 0) };
        if windows == 0 { 0 } else { self.start_ms.saturating_add(windows * self.window_ms) }
    }

    /// Rolls to `now_ms` under the window of the counter.
    #[inline(always)]
    fn roll(&self, quota: &Quota, now_ms: u64) -> SlidingWindowView {
        let window_ms = self.window_ms;
        let (mut start_ms, mut prev, mut cur) = (self.start_ms, self.prev, self.cur);
        let mut is_adjusted = false;
        if now_ms < start_ms {
            // The clock stepped back. After a small step, time stands still at the start of the window. After a large step,
            // the window restarts at `now` with the same counts. Otherwise the key would be locked out until the clock
            // catches up.
            if start_ms - now_ms > window_ms {
                start_ms = quota.window_start_ms(window_ms, now_ms);
                is_adjusted = true;
            }
        } else {
            let age_ms = now_ms - start_ms;
            if age_ms >= window_ms {
                if age_ms - window_ms < window_ms {
                    (prev, cur) = (cur, 0);
                    start_ms += window_ms;
                } else {
                    (prev, cur) = (0, 0);
                }
            }
        }
        if prev == 0 && cur == 0 {
            // A key without a count is like a new key: its next request sets the anchor.
            return SlidingWindowView {
                start_ms: quota.window_start_ms(quota.window_ms(), now_ms),
                window_ms: quota.window_ms(),
                prev,
                cur,
                used: 0,
                now_ms,
                is_adjusted: false,
            };
        }
        let elapsed_ms = now_ms.saturating_sub(start_ms);
        let weighted = if prev == 0 { 0 } else { mul_div_ceil(prev, window_ms - elapsed_ms, window_ms) };
        SlidingWindowView { start_ms, window_ms, prev, cur, used: weighted + cur, now_ms, is_adjusted }
    }
}

impl SlidingWindow {
    /// Units counted, on the fast path: the quota has the window of the counter, that window is not over and has a count, and the
    /// product fits in 64 bits. Otherwise `None`.
    #[inline(always)]
    pub(crate) fn used_in_window(&self, quota: &Quota, now_ms: u64) -> Option<u64> {
        let window_ms = self.window_ms;
        // If the clock stepped back, this wraps around to more than any window.
        let age_ms = now_ms.wrapping_sub(self.start_ms);
        if age_ms >= window_ms || self.cur == 0 || window_ms != quota.window_ms() {
            return None;
        }
        let mut used = self.cur;
        if self.prev > 0 {
            // Equal to `window_ms - age_ms`, but does not keep the age in a register.
            let left_ms = self.start_ms.wrapping_add(window_ms).wrapping_sub(now_ms);
            used += self.prev.checked_mul(left_ms)?.div_ceil(window_ms);
        }
        Some(used)
    }

    /// Returns the [`view`](Counter::view) on the fast path, given the result of [`used_in_window`](Self::used_in_window).
    #[inline(always)]
    pub(crate) fn view_in_window(&self, used: u64, now_ms: u64) -> SlidingWindowView {
        let Self { start_ms, window_ms, prev, cur } = *self;
        SlidingWindowView { start_ms, window_ms, prev, cur, used, now_ms, is_adjusted: false }
    }
}

impl SlidingWindowView {
    /// Whether the quota has a longer window than the view.
    #[inline(always)]
    fn is_carried_over(&self, quota: &Quota) -> bool {
        self.window_ms != quota.window_ms()
    }

    /// Adds `spent` units to the current window.
    #[inline(always)]
    pub(crate) fn plus(self, spent: u64) -> Self {
        Self { cur: self.cur + spent, used: self.used + spent, ..self }
    }
}

impl Counter for SlidingWindow {
    type View = SlidingWindowView;

    fn empty(quota: &Quota) -> Self {
        Self { start_ms: 0, window_ms: quota.window_ms(), prev: 0, cur: 0 }
    }

    #[inline(always)]
    fn view(&self, quota: &Quota, now: Moment) -> SlidingWindowView {
        let now_ms = now.now_ms();
        let rolled = self.roll(quota, now_ms);
        // The window of the quota has changed. All used units count as spent at the change. A reload then neither drops them
        // (a second burst) nor keeps them for more than two new windows (a lock-out). If the new window is longer, they count
        // as spent when the next unit is spent, and a denied request waits by the shorter window. Otherwise a client that sends
        // requests under both windows in turn would restart the window with each denial and never be allowed again.
        if rolled.used > 0 && self.window_ms > quota.window_ms() {
            return SlidingWindowView {
                start_ms: now_ms,
                window_ms: quota.window_ms(),
                prev: 0,
                cur: rolled.used,
                is_adjusted: true,
                ..rolled
            };
        }
        rolled
    }

    #[inline(always)]
    fn used(view: &SlidingWindowView) -> u64 {
        view.used
    }

    #[inline(always)]
    fn breakdown(view: &SlidingWindowView) -> CountBreakdown {
        CountBreakdown { previous: view.prev, current: view.cur, oldest_ms: None }
    }

    #[inline(always)]
    fn is_adjusted(view: &SlidingWindowView) -> bool {
        view.is_adjusted
    }

    #[inline(always)]
    fn retry_at_ms(&self, view: &SlidingWindowView, quota: &Quota, cost: u64) -> u64 {
        let (limit, window_ms) = (quota.limit(), view.window_ms);
        let spare = limit - cost;
        if view.cur <= spare && view.prev > 0 {
            let overlap_ms = mul_div_floor(spare - view.cur, window_ms, view.prev).min(window_ms);
            if overlap_ms > 0 {
                return view.start_ms + (window_ms - overlap_ms);
            }
        }
        // Not in this window. In the next window, the current count becomes the previous one.
        let into_next_ms = match view.cur {
            0 => 0,
            cur => window_ms - mul_div_floor(spare, window_ms, cur).min(window_ms),
        };
        view.start_ms + window_ms + into_next_ms
    }

    #[inline(always)]
    fn reset_at_ms(&self, view: &SlidingWindowView, quota: &Quota, spent: u64) -> u64 {
        if spent > 0 && view.is_carried_over(quota) {
            view.now_ms + 2 * quota.window_ms()
        } else if view.cur > 0 || spent > 0 {
            view.start_ms + 2 * view.window_ms
        } else if view.prev > 0 {
            view.start_ms + view.window_ms
        } else {
            0
        }
    }

    #[inline(always)]
    fn commit(&mut self, view: &SlidingWindowView, quota: &Quota, spent: u64) {
        *self = if spent > 0 && view.is_carried_over(quota) {
            let cur = view.used + spent;
            Self { start_ms: view.now_ms, window_ms: quota.window_ms(), prev: 0, cur }
        } else {
            Self {
                start_ms: view.start_ms,
                window_ms: view.window_ms,
                prev: view.prev,
                cur: view.cur + spent,
            }
        };
    }

    /// Refunds from the current window first. Most refunds follow soon after the spending, and then both cancel out exactly.
    fn refund(&mut self, view: &SlidingWindowView, _quota: &Quota, amount: u64) {
        let from_cur = amount.min(view.cur);
        let from_prev = (amount - from_cur).min(view.prev);
        *self = Self {
            start_ms: view.start_ms,
            window_ms: view.window_ms,
            prev: view.prev - from_prev,
            cur: view.cur - from_cur,
        };
    }
}
