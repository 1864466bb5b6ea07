//! By far the most common case: a check of a sliding window that is in the same window as before.

use crate::decide::{Action, Verb, decide_one};
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

/// What [`decide_one`] says to a check of a sliding window that is in the same window as before: nothing rolls, so that only
/// one number changes. `None` in all other cases, and if nothing of the limit is left afterwards, which a store may have to
/// take note of.
#[inline(always)]
pub fn check_within(counter: &SlidingWindow, quota: &Quota, now_ms: u64, cost: u64) -> Option<Outcome> {
    let used = counter.used_within(quota, now_ms)?;
    let decision = |is_allowed| {
        let within = Within { counter: *counter, limit: quota.limit(), now_ms, cost };
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
    limit: u64,
    now_ms: u64,
    cost: u64,
}

impl Within {
    /// Decides once more, in full. Apart, so that whoever asks for nothing but whether it is allowed need not be prepared
    /// for it.
    #[inline(never)]
    pub(crate) fn report(&self) -> QuotaReport {
        let quota = Quota::sliding_window(self.limit, self.counter.window_ms);
        let mut counter = self.counter;
        decide_one(&mut counter, &quota, Action::new(Verb::Check, self.now_ms, self.cost)).0.tightest()
    }
}
