//! The report of a fast check, computed on demand.

use crate::counter::{complete_report_of_view, fits, report_denied, report_spent};
use crate::quota::Quota;
use crate::report::QuotaReport;
use crate::sliding_window::SlidingWindow;

/// Inputs from which the report of a fast check is computed. All are whole words, which the compiler keeps in registers; it
/// copies other parts of an enum in pieces that the processor cannot forward from earlier writes.
#[derive(Clone, Copy)]
pub(crate) struct LazyReport {
    /// The counter before the check.
    pub(crate) counter: SlidingWindow,
    pub(crate) used: u64,
    pub(crate) limit: u64,
    pub(crate) now_ms: u64,
    pub(crate) cost: u64,
}

impl LazyReport {
    #[inline]
    pub(crate) fn report(&self) -> QuotaReport {
        let Self { counter, used, limit, now_ms, cost } = *self;
        let quota = Quota::sliding_window(limit, counter.window_ms);
        let view = counter.view_in_window(used, now_ms);
        let (report, after) = if fits(&quota, used, cost) {
            (report_spent(&counter, &view, &quota, now_ms, cost), view.plus(cost))
        } else {
            (report_denied(&counter, &view, &quota, now_ms, cost), view)
        };
        complete_report_of_view(report, &counter, &after, &quota, now_ms)
    }
}
