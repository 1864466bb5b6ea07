//! A token bucket in 64-bit arithmetic: the same decisions as the wide one, but faster.

use crate::counter::{CountBreakdown, Counter};
use crate::moment::Moment;
use crate::quota::Quota;

/// A [`TokenBucket`](crate::TokenBucket) in 64 bits, for a quota that [`fits`](Self::fits). Valid only under the quota that wrote
/// it, because the window scales the debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowBucket {
    /// Tokens owed, times the quota's window.
    pub debt: u64,
    /// Time at which `debt` was written.
    pub at_ms: u64,
}

/// A narrow bucket rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct NarrowBucketView {
    debt: u64,
    at_ms: u64,
    used: u64,
    is_adjusted: bool,
}

impl NarrowBucket {
    /// Whether the largest debt of checks under `quota` fits in 64 bits. Charges can owe more and need the wide bucket.
    pub fn fits(quota: &Quota) -> bool {
        quota.limit() > 0 && quota.capacity().checked_mul(quota.window_ms()).is_some()
    }
}

impl NarrowBucketView {
    /// The time at which `debt` is paid off.
    #[inline(always)]
    fn paid_at_ms(&self, debt: u64, quota: &Quota) -> u64 {
        self.at_ms.saturating_add(debt.div_ceil(quota.limit()))
    }

    /// The debt with `spent` units added.
    #[inline(always)]
    fn debt_with(&self, spent: u64, quota: &Quota) -> u64 {
        self.debt.saturating_add(spent.saturating_mul(quota.window_ms()))
    }
}

impl Counter for NarrowBucket {
    type View = NarrowBucketView;

    fn empty(_quota: &Quota) -> Self {
        Self { debt: 0, at_ms: 0 }
    }

    #[inline(always)]
    fn view(&self, quota: &Quota, now: Moment) -> NarrowBucketView {
        let now_ms = now.now_ms();
        let Self { debt, at_ms } = *self;
        if debt == 0 {
            return NarrowBucketView { debt, at_ms: now_ms, used: 0, is_adjusted: false };
        }
        let ahead_ms = at_ms.saturating_sub(now_ms);
        let (at_ms, debt, is_adjusted) = if ahead_ms == 0 {
            (now_ms, debt.saturating_sub(quota.limit().saturating_mul(now_ms - at_ms)), false)
        } else if ahead_ms <= quota.window_ms() {
            (at_ms, debt, false)
        } else {
            // The clock stepped far back: pay off the debt from now on.
            (now_ms, debt, true)
        };
        NarrowBucketView { debt, at_ms, used: debt.div_ceil(quota.window_ms()), is_adjusted }
    }

    #[inline(always)]
    fn used(view: &NarrowBucketView) -> u64 {
        view.used
    }

    #[inline(always)]
    fn breakdown(view: &NarrowBucketView) -> CountBreakdown {
        CountBreakdown { current: view.used, ..CountBreakdown::default() }
    }

    #[inline(always)]
    fn is_adjusted(view: &NarrowBucketView) -> bool {
        view.is_adjusted
    }

    #[inline(always)]
    fn retry_at_ms(&self, view: &NarrowBucketView, quota: &Quota, cost: u64) -> u64 {
        let spare = (quota.capacity() - cost).saturating_mul(quota.window_ms());
        view.paid_at_ms(view.debt.saturating_sub(spare), quota)
    }

    #[inline(always)]
    fn reset_at_ms(&self, view: &NarrowBucketView, quota: &Quota, spent: u64) -> u64 {
        match view.debt_with(spent, quota) {
            0 => 0,
            debt => view.paid_at_ms(debt, quota),
        }
    }

    #[inline(always)]
    fn commit(&mut self, view: &NarrowBucketView, quota: &Quota, spent: u64) {
        *self = Self { debt: view.debt_with(spent, quota), at_ms: view.at_ms };
    }

    fn refund(&mut self, view: &NarrowBucketView, quota: &Quota, amount: u64) {
        let debt = view.debt.saturating_sub(amount.saturating_mul(quota.window_ms()));
        *self = Self { debt, at_ms: view.at_ms };
    }
}
