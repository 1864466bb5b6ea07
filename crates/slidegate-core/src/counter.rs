//! The interface of all five algorithms, and the functions that build a report from it.

use crate::moment::Moment;
use crate::quota::Quota;
use crate::report::{QuotaReport, Retry};

/// The largest count. Charges beyond the limit add up to at most this count, and every store computes exactly up to it.
pub const MAX_COUNT: u64 = 1 << 49;

/// The state of one quota for one key.
///
/// A decision first *views* the counter at a moment, which changes nothing. The view provides the numbers. The decision then
/// *commits* the view with the spent units. A denial commits nothing, so it leaves the state as it was.
pub trait Counter {
    /// A counter rolled to a moment.
    type View: Copy;

    /// Returns a counter without any units.
    fn empty(quota: &Quota) -> Self;

    /// Rolls the counter to `now` without changing it.
    fn view(&self, quota: &Quota, now: Moment) -> Self::View;

    /// Units counted at the moment of the view.
    fn used(view: &Self::View) -> u64;

    /// The parts of the count.
    fn breakdown(view: &Self::View) -> CountBreakdown;

    /// Whether the view adjusted the state: the clock stepped far back, or the quota has a shorter window or another rate.
    ///
    /// A check must store an adjusted state even if it is denied. Otherwise each view would adjust it again and the count would
    /// never age, or a store would expire the state at the time of the former quota.
    fn is_adjusted(view: &Self::View) -> bool;

    /// The time at which `cost` fits. Requires that it does not fit now and does not exceed the capacity.
    fn retry_at_ms(&self, view: &Self::View, quota: &Quota, cost: u64) -> u64;

    /// The time from which nothing is counted, if `spent` is added now. In the past if nothing is counted.
    fn reset_at_ms(&self, view: &Self::View, quota: &Quota, spent: u64) -> u64;

    /// Stores the view with `spent` units added.
    fn commit(&mut self, view: &Self::View, quota: &Quota, spent: u64);

    /// Stores the view with up to `amount` units refunded.
    fn refund(&mut self, view: &Self::View, quota: &Quota, amount: u64);
}

/// The parts of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountBreakdown {
    /// Units counted in the previous window of a sliding window, in full. 0 for all other algorithms.
    pub previous: u64,
    /// Units counted in the current window. All counted units for algorithms with a single window.
    pub current: u64,
    /// Time of the oldest live entry of a log.
    pub oldest_ms: Option<u64>,
}

/// Whether `cost` fits on top of `used`.
#[inline(always)]
pub(crate) fn fits(quota: &Quota, used: u64, cost: u64) -> bool {
    // In this order, no cost overflows.
    used <= quota.capacity() && cost <= quota.capacity() - used
}

/// Returns the report of a quota that spends `spent` units now.
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

/// Returns the part of a charge that fits below [`MAX_COUNT`].
#[inline]
pub(crate) fn chargeable(used: u64, cost: u64) -> u64 {
    cost.min(MAX_COUNT.saturating_sub(used))
}

/// Returns the report of a quota for a request of `cost` that this quota or another one denies.
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

/// Adds the breakdown and the time until more units are available to a report, from the counter after the decision.
#[inline(always)]
pub(crate) fn complete_report<C: Counter>(
    report: QuotaReport,
    counter: &C,
    quota: &Quota,
    now: Moment,
) -> QuotaReport {
    complete_report_of_view(report, counter, &counter.view(quota, now), quota, now.now_ms())
}

/// Adds the breakdown and the time until more units are available to a report, from the view after the decision.
#[inline(always)]
pub(crate) fn complete_report_of_view<C: Counter>(
    report: QuotaReport,
    counter: &C,
    after: &C::View,
    quota: &Quota,
    now_ms: u64,
) -> QuotaReport {
    if report.used == 0 {
        return report;
    }
    let CountBreakdown { previous, current, oldest_ms } = C::breakdown(after);
    let more_at_ms = match quota.capacity() {
        // Without capacity, no wait makes units available.
        0 => 0,
        // Beyond the limit, a unit is available once the count is below the limit.
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
