//! What somebody asks for, at a moment that may be long past.

use std::ops::Deref;

use slidegate_core::Action;

use crate::clock::Clock;

/// An action, and the clock by which it is late if it is.
///
/// Between the moment at which a thread read the clock and its decision others may have decided, any number of windows
/// later: it was put aside by the scheduler, or had to wait for the page. By its own time the clock would seem to have
/// stepped back, and what has been counted since would be brought back to that time, and be over at once.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    action: Action,
    clock: &'a dyn Clock,
}

impl<'a> Asked<'a> {
    pub(super) fn new(action: Action, clock: &'a dyn Clock) -> Self {
        Self { action, clock }
    }

    /// The action on a counter that knows of `latest_ms`, and that was read before this is called. If that is later than the
    /// action, the clock is read again: whatever it says now, nobody has been told later before.
    #[inline(always)]
    pub(super) fn after(&self, latest_ms: u64) -> Action {
        if latest_ms <= self.action.now_ms() { self.action } else { self.read_again() }
    }

    #[cold]
    fn read_again(&self) -> Action {
        Action::new(self.action.verb(), self.clock.now_ms(), self.action.cost())
    }
}

impl Deref for Asked<'_> {
    type Target = Action;

    #[inline(always)]
    fn deref(&self) -> &Action {
        &self.action
    }
}
