//! What somebody asks for, at a moment that may be long past.

use slidegate_core::{Action, Verb};

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
}

impl<'a> Asked<'a> {
    pub(super) fn new(action: Action, clock: &'a dyn Clock) -> Self {
        Self { action, clock }
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
        if latest_ms <= self.action.now_ms() { self.action } else { self.now() }
    }

    /// The action at the time that it is, for whatever concerns other keys too.
    #[cold]
    pub(super) fn now(&self) -> Action {
        Action::new(self.action.verb(), self.clock.now_ms(), self.action.cost())
    }

    /// What time it is; never so late that a sum of times would overflow.
    pub(super) fn now_ms(&self) -> u64 {
        self.now().now_ms()
    }
}
