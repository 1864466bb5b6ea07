//! By far the most common case: a check of a sliding window that is in the same window as before.

use crate::counter::{more_after, report_denied, report_spent};
use crate::decision::{Decision, QuotaReport};
use crate::quota::Quota;
use crate::sliding_window::SlidingWindow;

/// What [`check_within`] comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The cost is to be added to the current count.
    Allowed(Decision),
    /// Nothing changes.
    Denied(Decision),
}

/// What [`decide_one`](crate::decide_one) says to a check of a sliding window that is in the same window as before: nothing rolls, so that only
/// one number changes. `None` in all other cases, and if nothing of the limit is left afterwards, which a store may have to
/// take note of.
#[inline(always)]
pub fn check_within(counter: &SlidingWindow, quota: &Quota, now_ms: u64, cost: u64) -> Option<Outcome> {
    let used = counter.used_within(quota, now_ms)?;
    let decision = |is_allowed| {
        let within = Within { counter: *counter, used, limit: quota.limit(), now_ms, cost };
        Decision::within(is_allowed, within)
    };
    match quota.limit().checked_sub(used) {
        Some(left) if left > cost => Some(Outcome::Allowed(decision(true))),
        Some(left) if left == cost => None,
        _ => Some(Outcome::Denied(decision(false))),
    }
}

/// All that the numbers of such a decision follow from.
#[derive(Clone, Copy)]
pub(crate) struct Within {
    /// As it was before.
    counter: SlidingWindow,
    used: u64,
    limit: u64,
    now_ms: u64,
    cost: u64,
}

impl Within {
    /// What the quota says.
    #[inline]
    pub(crate) fn report(&self, is_allowed: bool) -> QuotaReport {
        let Self { counter, used, limit, now_ms, cost } = *self;
        let quota = Quota::sliding_window(limit, counter.window_ms);
        let view = counter.view_within(used, now_ms);
        let (report, after) = if is_allowed {
            (report_spent(&counter, &view, &quota, now_ms, cost), view.plus(cost))
        } else {
            (report_denied(&counter, &view, &quota, now_ms, cost), view)
        };
        more_after(report, &counter, &after, &quota, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Retry, Source};

    const START: u64 = 1_800_000_000_000;

    /// A decision that has not been worked out, and the same that has.
    fn both(cur: u64, now_ms: u64) -> [Decision; 2] {
        let quota = Quota::sliding_window(10, 60_000);
        let counter = SlidingWindow { start_ms: now_ms - 30_000, window_ms: 60_000, prev: 4, cur };
        let Some(Outcome::Allowed(decision) | Outcome::Denied(decision)) =
            check_within(&counter, &quota, now_ms, 1)
        else {
            panic!("within the window")
        };
        let reports = decision.quotas().to_vec();
        let worked = Decision::new(decision.is_allowed(), Source::Store, reports);
        [decision, worked]
    }

    #[test]
    fn what_is_worked_out_later_says_the_same_in_every_way() {
        for (cur, is_allowed) in [(3, true), (9, false)] {
            let [decision, worked] = both(cur, START);
            assert_eq!(decision.is_allowed(), is_allowed);
            assert_eq!(decision, worked);
            assert_eq!(format!("{decision:?}"), format!("{worked:?}"));
            assert_eq!(decision.clone().worked_out(), worked);
            let reports = decision.quotas();
            assert_eq!(reports, [worked.tightest()]);
            assert_eq!(reports, *worked.quotas());
            assert_eq!((reports.into_iter().len(), reports.iter().len()), (1, 1));
            assert!(reports.into_iter().eq((&reports).into_iter().copied()));
            assert_eq!(decision.retry().is_some(), !is_allowed);
            assert_eq!(decision.violated().count(), usize::from(!is_allowed));
            assert_eq!(decision.clone().told_later(7), worked.clone().told_later(7));
            assert_ne!(decision.clone().told_later(7), worked);
            assert_eq!(decision.clone().in_shadow(), worked.clone().in_shadow());
            assert_eq!(worked.clone().beside(&decision), worked.clone().beside(&worked));
        }
        let [allowed, _] = both(3, START);
        assert_eq!(
            (allowed.tightest().used, allowed.remaining()),
            (6, 4),
            "two of four are left, three, and one more"
        );
        let [denied, _] = both(9, START);
        assert_eq!(
            denied.retry(),
            Some(Retry::AfterMs(30_000)),
            "only in the next window are there fewer than ten"
        );
    }

    /// Sums of moments do not overflow for a long time, but a clock may be set to any.
    #[test]
    fn at_the_end_of_time_the_numbers_are_those_of_the_decision() {
        let end_ms = (1 << 60) + 29_999;
        for cur in [1, 6, 8, 12] {
            let [decision, _] = both(cur, end_ms);
            assert_eq!(decision.is_allowed(), decision.quotas()[0].retry.is_none(), "{cur}");
        }
    }
}
