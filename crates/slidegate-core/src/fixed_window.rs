//! `fixed-window`: one counter per window, kept for those who rely on its boundaries.

use crate::counter::Counter;
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
    cur: u64,
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
    fn view(&self, quota: &Quota, now_ms: u64) -> FixedWindowView {
        let is_over = now_ms.checked_sub(self.start_ms).is_some_and(|age_ms| age_ms >= self.window_ms);
        if is_over || self.cur == 0 {
            let start_ms = quota.window_start_ms(quota.window_ms(), now_ms);
            return FixedWindowView { start_ms, cur: 0, is_mended: false };
        }
        if self.window_ms != quota.window_ms() {
            // As for a sliding window: what is in use counts as spent now.
            return FixedWindowView { start_ms: now_ms, cur: self.cur, is_mended: true };
        }
        let ahead_ms = self.start_ms.saturating_sub(now_ms);
        if ahead_ms > self.window_ms {
            // The clock stepped far back: the window begins again, with the count kept.
            let start_ms = quota.window_start_ms(self.window_ms, now_ms);
            return FixedWindowView { start_ms, cur: self.cur, is_mended: true };
        }
        FixedWindowView { start_ms: self.start_ms, cur: self.cur, is_mended: false }
    }

    #[inline(always)]
    fn used(view: &FixedWindowView) -> u64 {
        view.cur
    }

    #[inline(always)]
    fn is_mended(view: &FixedWindowView) -> bool {
        view.is_mended
    }

    #[inline(always)]
    fn retry_at_ms(&self, view: &FixedWindowView, quota: &Quota, _cost: u64) -> u64 {
        view.start_ms + quota.window_ms()
    }

    #[inline(always)]
    fn reset_at_ms(&self, view: &FixedWindowView, quota: &Quota, spent: u64) -> u64 {
        if view.cur + spent == 0 { 0 } else { view.start_ms + quota.window_ms() }
    }

    #[inline(always)]
    fn commit(&mut self, view: &FixedWindowView, quota: &Quota, spent: u64) {
        *self = Self { start_ms: view.start_ms, window_ms: quota.window_ms(), cur: view.cur + spent };
    }

    fn refund(&mut self, view: &FixedWindowView, quota: &Quota, amount: u64) {
        let cur = view.cur.saturating_sub(amount);
        *self = Self { start_ms: view.start_ms, window_ms: quota.window_ms(), cur };
    }
}
