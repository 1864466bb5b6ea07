//! `token-bucket`: a debt that each request adds to and time pays off. GCRA is the same thing.

use crate::counter::Counter;
use crate::exact::{div_ceil, wide};
use crate::quota::Quota;

/// What is owed, and when that was written down.
///
/// One token is `window_ms` of debt and each millisecond pays off `limit`, so that no rate is ever rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Tokens owed, times `window_ms`.
    pub debt: u128,
    /// When `debt` was owed.
    pub at_ms: u64,
    /// The window that scales `debt`.
    pub window_ms: u64,
    /// What each millisecond pays off, to notice that the quota has changed.
    pub limit: u64,
}

/// A token bucket rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucketView {
    debt: u128,
    at_ms: u64,
    used: u64,
    is_mended: bool,
}

impl TokenBucketView {
    /// When `debt` of what is owed will have been paid off.
    fn paid_at_ms(&self, debt: u128, quota: &Quota) -> u64 {
        self.at_ms.saturating_add(div_ceil(debt, quota.limit()))
    }
}

impl TokenBucket {
    /// The moment from which it counts nothing, under the quota that it was counted for.
    pub(crate) fn counts_until_ms(&self) -> u64 {
        if self.debt == 0 { 0 } else { self.at_ms.saturating_add(div_ceil(self.debt, self.limit)) }
    }
}

impl Counter for TokenBucket {
    type View = TokenBucketView;

    fn empty(quota: &Quota) -> Self {
        Self { debt: 0, at_ms: 0, window_ms: quota.window_ms(), limit: quota.limit() }
    }

    #[inline]
    fn view(&self, quota: &Quota, now_ms: u64) -> TokenBucketView {
        let window_ms = quota.window_ms();
        let debt = if self.window_ms == window_ms {
            self.debt
        } else {
            // The same number of tokens in the new unit, rounded against the caller.
            (self.debt * u128::from(window_ms)).div_ceil(u128::from(self.window_ms))
        };
        if debt == 0 {
            return TokenBucketView { debt, at_ms: now_ms, used: 0, is_mended: false };
        }
        let ahead_ms = self.at_ms.saturating_sub(now_ms);
        let (at_ms, debt, is_mended) = if ahead_ms > window_ms {
            // The clock stepped far back: go on paying from now.
            (now_ms, debt, true)
        } else if ahead_ms > 0 {
            (self.at_ms, debt, false)
        } else {
            (now_ms, debt.saturating_sub(wide(quota.limit(), now_ms - self.at_ms)), false)
        };
        // At a lower rate it is owed for longer than was known when it was written. At a higher one nothing has to be written,
        // and must not: a fraction of a token is lost each time, and whoever is asked for at two rates all the time would
        // never pay off the last one.
        let is_slower = wide(quota.limit(), self.window_ms) < wide(self.limit, window_ms);
        let is_mended = is_mended || (debt > 0 && is_slower);
        TokenBucketView { debt, at_ms, used: div_ceil(debt, window_ms), is_mended }
    }

    #[inline]
    fn used(view: &TokenBucketView) -> u64 {
        view.used
    }

    #[inline]
    fn is_mended(view: &TokenBucketView) -> bool {
        view.is_mended
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
        *self = Self { debt, at_ms: view.at_ms, window_ms: quota.window_ms(), limit: quota.limit() };
    }

    fn refund(&mut self, view: &TokenBucketView, quota: &Quota, amount: u64) {
        let debt = view.debt.saturating_sub(wide(amount, quota.window_ms()));
        *self = Self { debt, at_ms: view.at_ms, window_ms: quota.window_ms(), limit: quota.limit() };
    }
}
