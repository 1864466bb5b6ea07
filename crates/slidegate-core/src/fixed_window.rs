//! `fixed-window`: one counter per window, kept for those who rely on its boundaries.

use crate::counter::{Counter, Parts};
use crate::moment::Moment;
use crate::quota::Quota;

/// The current window and what was counted in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// When the window began.
    pub start_ms: u64,
    /// The window under which it was counted, to notice that the quota has changed.
    pub window_ms: u64,
    /// Counted in it.
    pub cur: u64,
}

/// A fixed window rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindowView {
    start_ms: u64,
    /// The quota's, or a shorter one under which it was counted.
    window_ms: u64,
    cur: u64,
    now_ms: u64,
    is_mended: bool,
}

impl FixedWindow {
    /// The moment from which it counts nothing, under the quota that it was counted for.
    pub(crate) fn counts_until_ms(&self) -> u64 {
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
        let view = |start_ms, cur, is_mended| {
            let window_ms = self.window_ms;
            FixedWindowView { start_ms, window_ms, cur, now_ms, is_mended }
        };
        let is_over = now_ms.checked_sub(self.start_ms).is_some_and(|age_ms| age_ms >= self.window_ms);
        if is_over || self.cur == 0 {
            let window_ms = quota.window_ms();
            return FixedWindowView { window_ms, ..view(quota.window_start_ms(window_ms, now_ms), 0, false) };
        }
        if self.window_ms > quota.window_ms() {
            // As for a sliding window: what is in use counts as spent now, or, if the window has become longer, when
            // something is spent.
            return FixedWindowView { window_ms: quota.window_ms(), ..view(now_ms, self.cur, true) };
        }
        let ahead_ms = self.start_ms.saturating_sub(now_ms);
        if ahead_ms > self.window_ms {
            // The clock stepped far back: the window begins again, with the count kept.
            return view(quota.window_start_ms(self.window_ms, now_ms), self.cur, true);
        }
        view(self.start_ms, self.cur, false)
    }

    #[inline(always)]
    fn used(view: &FixedWindowView) -> u64 {
        view.cur
    }

    #[inline(always)]
    fn parts(view: &FixedWindowView) -> Parts {
        Parts { current: view.cur, ..Parts::default() }
    }

    #[inline(always)]
    fn is_mended(view: &FixedWindowView) -> bool {
        view.is_mended
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
