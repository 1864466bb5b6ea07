//! Fast path for most checks: a sliding window whose current window is not over. The report is computed on demand.

use crate::decision::Decision;
use crate::lazy_report::LazyReport;
use crate::quota::Quota;
use crate::sliding_window::SlidingWindow;

/// Result of a [`fast_check`].
#[derive(Clone, Debug)]
pub enum FastCheck {
    /// Allowed: the caller adds the cost to the current count.
    Allowed(Decision),
    /// Denied: the counter stays as it is.
    Denied(Decision),
}

/// Decides a check of a sliding window whose current window is not over, as [`decide_one`](crate::decide_one) does. The window
/// does not roll, so only the current count can change.
///
/// Returns `None` in all other cases, and if the check would spend the last unit, because a store may have to record that.
#[inline(always)]
pub fn fast_check(counter: &SlidingWindow, quota: &Quota, now_ms: u64, cost: u64) -> Option<FastCheck> {
    let used = counter.used_in_window(quota, now_ms)?;
    let decision = |is_allowed| {
        let lazy = LazyReport { counter: *counter, used, limit: quota.limit(), now_ms, cost };
        Decision::lazy(is_allowed, lazy)
    };
    match quota.limit().checked_sub(used) {
        Some(left) if left > cost => Some(FastCheck::Allowed(decision(true))),
        Some(left) if left == cost => None,
        _ => Some(FastCheck::Denied(decision(false))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Retry, Source};

    const START: u64 = 1_800_000_000_000;

    /// A decision with a lazy report, and the same decision with a stored report.
    fn lazy_and_stored(cur: u64, now_ms: u64) -> [Decision; 2] {
        let quota = Quota::sliding_window(10, 60_000);
        let counter = SlidingWindow { start_ms: now_ms - 30_000, window_ms: 60_000, prev: 4, cur };
        let Some(FastCheck::Allowed(decision) | FastCheck::Denied(decision)) =
            fast_check(&counter, &quota, now_ms, 1)
        else {
            panic!("the check is not on the fast path")
        };
        let reports = decision.quotas().to_vec();
        let stored = Decision::new(decision.is_allowed(), Source::Store, reports);
        [decision, stored]
    }

    #[test]
    fn a_lazy_report_equals_the_stored_one() {
        for (cur, is_allowed) in [(3, true), (9, false)] {
            let [decision, stored] = lazy_and_stored(cur, START);
            assert_eq!(decision.is_allowed(), is_allowed);
            assert_eq!(decision, stored);
            assert_eq!(format!("{decision:?}"), format!("{stored:?}"));
            assert_eq!(decision.clone().with_reports(), stored);
            let reports = decision.quotas();
            assert_eq!(reports, [stored.tightest()]);
            assert_eq!(reports, *stored.quotas());
            assert_eq!((reports.into_iter().len(), reports.iter().len()), (1, 1));
            assert!(reports.into_iter().eq((&reports).into_iter().copied()));
            assert_eq!(decision.retry().is_some(), !is_allowed);
            assert_eq!(decision.violated().count(), usize::from(!is_allowed));
            assert_eq!(decision.clone().aged_by_ms(7), stored.clone().aged_by_ms(7));
            assert_ne!(decision.clone().aged_by_ms(7), stored);
            assert_eq!(decision.clone().in_shadow(), stored.clone().in_shadow());
            assert_eq!(stored.clone().with_candidate(&decision), stored.clone().with_candidate(&stored));
        }
        let [allowed, _] = lazy_and_stored(3, START);
        assert_eq!(
            (allowed.tightest().used, allowed.remaining()),
            (6, 4),
            "half of the 4 previous units overlap, plus 3 and 1"
        );
        let [denied, _] = lazy_and_stored(9, START);
        assert_eq!(
            denied.retry(),
            Some(Retry::AfterMs(30_000)),
            "the count falls below 10 at the start of the next window"
        );
    }

    /// Covers times at which a sum of two times could overflow.
    #[test]
    fn the_report_agrees_with_the_decision_at_the_latest_time() {
        let end_ms = (1 << 60) + 29_999;
        for cur in [1, 6, 8, 12] {
            let [decision, _] = lazy_and_stored(cur, end_ms);
            assert_eq!(decision.is_allowed(), decision.quotas()[0].retry.is_none(), "{cur}");
        }
    }
}
