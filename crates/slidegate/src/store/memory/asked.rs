//! What somebody asks for, at a moment that may be long past.

use slidegate_core::{Action, Algorithm, Moment, Policy, Quota, Verb};

use crate::clock::Clock;

/// An action, and the clock by which it is late if it is.
///
/// Between the moment at which a thread read the clock and its decision others may have decided, any number of windows
/// later: it was put aside by the scheduler, or had to wait for the page. By its own time the clock would seem to have
/// stepped back, and what has been counted since would be brought back to that time, and be over at once.
///
/// Whoever wrote a counter had read the clock before, and it was written before it was read here: words are swapped and loaded
/// with that order, all else is read under the page's lock or confirmed by its word. So a clock that never steps back says
/// nothing earlier than the counter if it is read after the counter was.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    action: Action,
    clock: &'a dyn Clock,
    /// Whether the policy has an exact algorithm, which decides by the narrowest reading of the clock.
    is_exact: bool,
}

impl<'a> Asked<'a> {
    /// An action under `policy`, at `now_ms` unless that is not precise enough.
    pub(super) fn new(policy: &Policy, verb: Verb, now_ms: u64, cost: u64, clock: &'a dyn Clock) -> Self {
        let is_exact_one =
            |quota: &Quota| matches!(quota.algorithm(), Algorithm::StrictWindow | Algorithm::SlidingLog);
        let is_exact = policy.quotas().iter().any(is_exact_one);
        let moment = if is_exact { clock.moment() } else { Moment::exact(now_ms) };
        Self { action: Action::at(verb, moment, cost), clock, is_exact }
    }

    #[inline(always)]
    pub(super) fn verb(&self) -> Verb {
        self.action.verb()
    }

    /// The action at the time at which it was asked for.
    #[inline(always)]
    pub(super) fn as_asked(&self) -> Action {
        self.action
    }

    /// The action on a counter that knows of `latest_ms`, and that was read before this is called: as asked for, or if that was
    /// earlier, now.
    #[inline(always)]
    pub(super) fn after(&self, latest_ms: u64) -> Action {
        if latest_ms <= self.action.moment().latest_ms() { self.action } else { self.now() }
    }

    /// The action at the time that it is, for whatever concerns other keys too.
    #[cold]
    pub(super) fn now(&self) -> Action {
        let moment = if self.is_exact { self.clock.moment() } else { Moment::exact(self.clock.now_ms()) };
        Action::at(self.action.verb(), moment, self.action.cost())
    }

    /// What time it is; never so late that a sum of times would overflow.
    pub(super) fn now_ms(&self) -> u64 {
        self.now().now_ms()
    }
}
