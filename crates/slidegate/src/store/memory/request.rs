//! Request to the table, with the clock that corrects its time.

use slidegate_core::{Action, Moment, Policy, Verb};

use crate::clock::Clock;

/// An action, and the clock that is read again if the action's time has become too old.
///
/// A thread reads the clock before it reads the counter. In between it may be descheduled or wait for a lock, while
/// other threads decide for the same key, even in later windows. By its old time, the clock would seem to have stepped
/// back, and the counter would be moved back to that time and expire too early.
///
/// The thread that wrote the counter read the clock before it wrote. The write happens before this thread's read: words
/// are exchanged with acquire and release ordering, and all else is read under the page's lock or validated by its
/// word. Hence a clock that never steps back and is read after the counter is not behind the counter.
#[derive(Clone, Copy)]
pub(super) struct TableRequest<'a> {
    action: Action,
    clock: &'a dyn Clock,
    /// Whether the policy has an exact algorithm, which needs the clock's error bound.
    is_exact: bool,
}

impl<'a> TableRequest<'a> {
    /// Creates a request at `now_ms`. An exact algorithm reads the clock again, with its error bound.
    pub(super) fn new(policy: &Policy, verb: Verb, now_ms: u64, cost: u64, clock: &'a dyn Clock) -> Self {
        let is_exact = policy.quotas().iter().any(|quota| quota.algorithm().is_exact());
        let moment = if is_exact { clock.moment() } else { Moment::exact(now_ms) };
        Self { action: Action::at(verb, moment, cost), clock, is_exact }
    }

    #[inline(always)]
    pub(super) fn verb(&self) -> Verb {
        self.action.verb()
    }

    /// Returns the action at the time of the request.
    #[inline(always)]
    pub(super) fn action(&self) -> Action {
        self.action
    }

    /// Returns the action for a counter of time `latest_ms`: at the time of the request, or at the present time if the
    /// request is older than the counter. The counter must have been read before the call.
    #[inline(always)]
    pub(super) fn action_after(&self, latest_ms: u64) -> Action {
        if latest_ms <= self.action.moment().latest_ms() { self.action } else { self.action_now() }
    }

    /// Returns the action at the present time, for decisions that affect other keys too.
    #[cold]
    pub(super) fn action_now(&self) -> Action {
        let moment = if self.is_exact { self.clock.moment() } else { Moment::exact(self.clock.now_ms()) };
        Action::at(self.action.verb(), moment, self.action.cost())
    }

    /// Returns the present time, capped so that sums of times do not overflow.
    pub(super) fn now_ms(&self) -> u64 {
        self.action_now().now_ms()
    }
}
