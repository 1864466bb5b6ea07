//! The shape that all five algorithms share, and the one place that turns it into a report.

use crate::decision::{QuotaReport, Retry};
use crate::moment::Moment;
use crate::quota::Quota;

/// No more is ever counted at one time: charges beyond the limit add up to this, and every store computes exactly below it.
pub const MAX_COUNT: u64 = 1 << 49;

/// The state of one quota for one key.
///
/// A counter is first *viewed* at a moment, which changes nothing; the view answers every question; and only
/// then is it *committed*, with what was spent. A denial therefore leaves the state as it was.
pub trait Counter {
    /// The counter rolled to a moment.
    type View: Copy;

    /// A counter that has counted nothing.
    fn empty(quota: &Quota) -> Self;

    /// Rolls to `now` without changing anything.
    fn view(&self, quota: &Quota, now: Moment) -> Self::View;

    /// What is counted.
    fn used(view: &Self::View) -> u64;

    /// What it is made of.
    fn parts(view: &Self::View) -> Parts;

    /// Whether the view mended the state (a clock that stepped far back, a shorter window, a lower rate), so that a check must
    /// keep it even if it is denied: otherwise it would be mended anew each time and never age, or a store that
    /// forgets what is over would forget it by the former quota's time.
    fn is_mended(view: &Self::View) -> bool;

    /// The moment at which `cost` fits. Asked only if it does not fit now and does not exceed the capacity.
    fn retry_at_ms(&self, view: &Self::View, quota: &Quota, cost: u64) -> u64;

    /// The moment from which nothing is counted, if `spent` is added now; in the past if that is so already.
    fn reset_at_ms(&self, view: &Self::View, quota: &Quota, spent: u64) -> u64;

    /// Keeps the view, with `spent` added.
    fn commit(&mut self, view: &Self::View, quota: &Quota, spent: u64);

    /// Keeps the view, with up to `amount` given back.
    fn refund(&mut self, view: &Self::View, quota: &Quota, amount: u64);
}

/// What a count is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Counted in the previous window, in full; 0 but for a sliding window.
    pub previous: u64,
    /// Counted in the current window, or all of it.
    pub current: u64,
    /// When the oldest entry of a log was counted.
    pub oldest_ms: Option<u64>,
}

/// Whether `cost` fits on top of `used`.
#[inline(always)]
pub(crate) fn fits(quota: &Quota, used: u64, cost: u64) -> bool {
    // In this order nothing overflows, whatever the cost.
    used <= quota.capacity() && cost <= quota.capacity() - used
}

/// What the quota says if `spent` is added now.
#[inline(always)]
pub(crate) fn report_spent<C: Counter>(
    counter: &C,
    view: &C::View,
    quota: &Quota,
    now_ms: u64,
    spent: u64,
) -> QuotaReport {
    let used = C::used(view) + spent;
    QuotaReport {
        limit: quota.capacity(),
        used,
        remaining: quota.capacity().saturating_sub(used),
        more_after_ms: 0,
        reset_after_ms: counter.reset_at_ms(view, quota, spent).saturating_sub(now_ms),
        retry: None,
        previous: 0,
        current: 0,
        oldest_age_ms: None,
    }
}

/// How much of a charge is counted: all of it, up to the most that is ever counted.
#[inline]
pub(crate) fn chargeable(used: u64, cost: u64) -> u64 {
    cost.min(MAX_COUNT.saturating_sub(used))
}

/// What the quota says about a request of `cost` that is denied, be it by this quota or by another.
#[inline(always)]
pub(crate) fn report_denied<C: Counter>(
    counter: &C,
    view: &C::View,
    quota: &Quota,
    now_ms: u64,
    cost: u64,
) -> QuotaReport {
    let retry = if fits(quota, C::used(view), cost) {
        None
    } else if cost > quota.capacity() {
        Some(Retry::Never)
    } else {
        Some(Retry::AfterMs(counter.retry_at_ms(view, quota, cost).saturating_sub(now_ms)))
    };
    QuotaReport { retry, ..report_spent(counter, view, quota, now_ms, 0) }
}

/// Adds to a report when there will be more to spend than it says, by the counter as it is after the decision.
#[inline(always)]
pub(crate) fn with_more_after<C: Counter>(
    report: QuotaReport,
    counter: &C,
    quota: &Quota,
    now: Moment,
) -> QuotaReport {
    more_after(report, counter, &counter.view(quota, now), quota, now.now_ms())
}

/// The same, by the view after the decision.
#[inline(always)]
pub(crate) fn more_after<C: Counter>(
    report: QuotaReport,
    counter: &C,
    after: &C::View,
    quota: &Quota,
    now_ms: u64,
) -> QuotaReport {
    if report.used == 0 {
        return report;
    }
    let Parts { previous, current, oldest_ms } = C::parts(after);
    let more_at_ms = match quota.capacity() {
        // No wait makes more of nothing.
        0 => 0,
        // Beyond the limit, more is left when less than the limit is counted.
        _ => counter.retry_at_ms(after, quota, report.remaining + 1),
    };
    QuotaReport {
        more_after_ms: more_at_ms.saturating_sub(now_ms),
        previous,
        current,
        oldest_age_ms: oldest_ms.map(|oldest_ms| now_ms.saturating_sub(oldest_ms)),
        ..report
    }
}
