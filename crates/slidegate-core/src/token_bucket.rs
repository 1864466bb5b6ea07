//! `token-bucket`: a debt that grows with each request and is paid off over time. Equivalent to GCRA.

use crate::counter::{CountBreakdown, Counter};
use crate::exact::{div_ceil, wide};
use crate::moment::Moment;
use crate::quota::Quota;

/// A debt, the time at which it was written, and the quota under which it was written.
///
/// One token is `window_ms` of debt, and each millisecond pays off `limit`. No rate is therefore rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Tokens owed, times `window_ms`.
    pub debt: u128,
    /// Time at which `debt` was written.
    pub at_ms: u64,
    /// The window that scales `debt`.
    pub window_ms: u64,
    /// Debt that each millisecond pays off.
    pub limit: u64,
    /// Capacity of the quota under which the debt was written.
    pub capacity: u64,
}

/// A token bucket rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucketView {
    debt: u128,
    at_ms: u64,
    used: u64,
    is_adjusted: bool,
}

/// Returns the debt that each millisecond pays off. A limit of 0 pays off like a limit of 1, because only charges owe anything.
fn rate(limit: u64) -> u64 {
    limit.max(1)
}

impl TokenBucketView {
    /// The time at which `debt` is paid off.
    fn paid_at_ms(&self, debt: u128, quota: &Quota) -> u64 {
        self.at_ms.saturating_add(div_ceil(debt, rate(quota.limit())))
    }
}

impl TokenBucket {
    /// The time from which the bucket owes nothing under its own quota.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        if self.debt == 0 { 0 } else { self.at_ms.saturating_add(div_ceil(self.debt, rate(self.limit))) }
    }

    /// Whether the debt was written under this quota.
    pub(crate) fn belongs_to(&self, quota: &Quota) -> bool {
        (self.window_ms, self.limit, self.capacity) == (quota.window_ms(), quota.limit(), quota.capacity())
    }
}

impl TokenBucket {
    /// Stores the view with `spent` units added, up to the capacity. A debt beyond the capacity stays as it is.
    pub(crate) fn commit_within_capacity(&mut self, view: &TokenBucketView, quota: &Quota, spent: u64) {
        let full = wide(quota.capacity(), quota.window_ms());
        let debt = (view.debt + wide(spent, quota.window_ms())).min(full).max(view.debt);
        *self = Self { debt, at_ms: view.at_ms, ..Self::empty(quota) };
    }
}

impl Counter for TokenBucket {
    type View = TokenBucketView;

    fn empty(quota: &Quota) -> Self {
        let (window_ms, limit, capacity) = (quota.window_ms(), quota.limit(), quota.capacity());
        Self { debt: 0, at_ms: 0, window_ms, limit, capacity }
    }

    /// Pays off the debt up to now, at the rate of the quota under which it was written. If the quota has changed, the remaining
    /// debt is capped at the new capacity, so that no client waits longer than the new bucket takes to fill. Such a view is
    /// adjusted: a denial stores it too, because otherwise the debt would continue at the former rate.
    #[inline]
    fn view(&self, quota: &Quota, now: Moment) -> TokenBucketView {
        let (now_ms, window_ms) = (now.now_ms(), quota.window_ms());
        let ahead_ms = self.at_ms.saturating_sub(now_ms);
        let (at_ms, mut debt, is_rebased) = if ahead_ms > window_ms {
            // The clock stepped far back: pay off the debt from now on.
            (now_ms, self.debt, true)
        } else if ahead_ms > 0 {
            (self.at_ms, self.debt, false)
        } else {
            (now_ms, self.debt.saturating_sub(wide(rate(self.limit), now_ms - self.at_ms)), false)
        };
        if debt == 0 {
            return TokenBucketView { debt, at_ms: now_ms, used: 0, is_adjusted: false };
        }
        let is_changed = !self.belongs_to(quota);
        if is_changed {
            // The same number of tokens in the new unit, rounded up.
            debt = (debt * u128::from(window_ms)).div_ceil(u128::from(self.window_ms));
            debt = debt.min(wide(quota.capacity(), window_ms));
        }
        let used = div_ceil(debt, window_ms);
        TokenBucketView { debt, at_ms, used, is_adjusted: is_rebased || is_changed }
    }

    #[inline]
    fn used(view: &TokenBucketView) -> u64 {
        view.used
    }

    fn breakdown(view: &TokenBucketView) -> CountBreakdown {
        CountBreakdown { current: view.used, ..CountBreakdown::default() }
    }

    #[inline]
    fn is_adjusted(view: &TokenBucketView) -> bool {
        view.is_adjusted
    }

    #[inline]
    fn retry_at_ms(&self, view: &TokenBucketView, quota: &Quota, cost: u64) -> u64 {
        let spare = wide(quota.capacity() - cost, quota.window_ms());
        view.paid_at_ms(view.debt.saturating_sub(spare), quota)
    }

    #[inline]
    fn reset_at_ms(&self, view: &TokenBucketView, quota: &Quota, spent: u64) -> u64 {
        match view.debt + wide(spent, quota.window_ms()) {
            0 => 0,
            debt => view.paid_at_ms(debt, quota),
        }
    }

    #[inline]
    fn commit(&mut self, view: &TokenBucketView, quota: &Quota, spent: u64) {
        let debt = view.debt + wide(spent, quota.window_ms());
        *self = Self { debt, at_ms: view.at_ms, ..Self::empty(quota) };
    }

    fn refund(&mut self, view: &TokenBucketView, quota: &Quota, amount: u64) {
        let debt = view.debt.saturating_sub(wide(amount, quota.window_ms()));
        *self = Self { debt, at_ms: view.at_ms, ..Self::empty(quota) };
    }
}
