//! `fixed-window`: one counter per window, for compatibility with other rate limiters.

use crate::counter::{CountBreakdown, Counter};
use crate::moment::Moment;
use crate::quota::Quota;

/// The current window and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Start of the window.
    pub start_ms: u64,
    /// Window of the quota under which the units were counted. Differs from the present quota after a change.
    pub window_ms: u64,
    /// Units counted in the window.
    pub cur: u64,
}

/// A fixed window rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindowView {
    start_ms: u64,
    /// Window of the quota, or a shorter one under which the units were counted.
    window_ms: u64,
    cur: u64,
    now_ms: u64,
    is_adjusted: bool,
}

impl FixedWindow {
    /// The time from which the counter counts nothing under its own quota.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        if self.cur == 0 { 0 } else { self.start_ms.saturating_add(self.window_ms) }
    }
}

impl Counter for FixedWindow {
    type View = FixedWindowView;

    fn empty(quota: &Quota) -> Self {
        Self { start_ms: 0, window_ms: quota.window_ms(), cur: 0 }
    }

    #[inline(always)]
    fn view(&self, quota: &Quota, now: Moment) -> FixedWindowView {
        let now_ms = now.now_ms();
        let view = |start_ms, cur, is_adjusted| {
            let window_ms = self.window_ms;
            FixedWindowView { start_ms, window_ms, cur, now_ms, is_adjusted }
        };
        let is_over = now_ms.checked_sub(self.start_ms).is_some_and(|age_ms| age_ms >= self.window_ms);
        if is_over || self.cur == 0 {
            let window_ms = quota.window_ms();
            return FixedWindowView { window_ms, ..view(quota.window_start_ms(window_ms, now_ms), 0, false) };
        }
        if self.window_ms > quota.window_ms() {
            // As for a sliding window: used units count as spent now. If the window has become longer, they count as spent
            // when the next unit is spent.
            return FixedWindowView { window_ms: quota.window_ms(), ..view(now_ms, self.cur, true) };
        }
        let ahead_ms = self.start_ms.saturating_sub(now_ms);
        if ahead_ms > self.window_ms {
            // The clock stepped far back: restart the window with the same count.
            return view(quota.window_start_ms(self.window_ms, now_ms), self.cur, true);
        }
        view(self.start_ms, self.cur, false)
    }

    #[inline(always)]
    fn used(view: &FixedWindowView) -> u64 {
        view.cur
    }

    #[inline(always)]
    fn breakdown(view: &FixedWindowView) -> CountBreakdown {
        CountBreakdown { current: view.cur, ..CountBreakdown::default() }
    }

    #[inline(always)]
    fn is_adjusted(view: &FixedWindowView) -> bool {
        view.is_adjusted
    }

    #[inline(always)]
    fn retry_at_ms(&self, view: &FixedWindowView, _quota: &Quota, _cost: u64) -> u64 {
        view.start_ms + view.window_ms
    }

    #[inline(always)]
    fn reset_at_ms(&self, view: &FixedWindowView, quota: &Quota, spent: u64) -> u64 {
        if spent > 0 && view.window_ms != quota.window_ms() {
            view.now_ms + quota.window_ms()
        } else if view.cur + spent == 0 {
            0
        } else {
            view.start_ms + view.window_ms
        }
    }

    #[inline(always)]
    fn commit(&mut self, view: &FixedWindowView, quota: &Quota, spent: u64) {
        let is_carried_over = spent > 0 && view.window_ms != quota.window_ms();
        let (start_ms, window_ms) =
            if is_carried_over { (view.now_ms, quota.window_ms()) } else { (view.start_ms, view.window_ms) };
        *self = Self { start_ms, window_ms, cur: view.cur + spent };
    }

    fn refund(&mut self, view: &FixedWindowView, _quota: &Quota, amount: u64) {
        let cur = view.cur.saturating_sub(amount);
        *self = Self { start_ms: view.start_ms, window_ms: view.window_ms, cur };
    }
}
