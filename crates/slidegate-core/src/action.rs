//! Actions: a verb, the moment and the cost.

use crate::moment::Moment;
use crate::quota::MAX_WINDOW_MS;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Spend the cost if every quota allows it.
    Check,
    /// Say what a check would say, and spend nothing.
    Peek,
    /// Count the cost, beyond the limit too: it has happened. Allowed if no limit is exceeded afterwards.
    Charge,
    /// Give back up to the cost.
    Refund,
    /// Forget the key, and whether it is blocked.
    Reset,
    /// Deny the key for as many milliseconds as the cost says, at most 366 days. 0 ends a block.
    Block,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 6] =
        [Self::Check, Self::Peek, Self::Charge, Self::Refund, Self::Reset, Self::Block];
}

/// A verb, the moment it happens and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    verb: Verb,
    moment: Moment,
    cost: u64,
}

impl Action {
    /// What to do, when (in milliseconds since the Unix epoch, by the store's clock), and how much to spend or to
    /// give back.
    #[inline(always)]
    pub fn new(verb: Verb, now_ms: u64, cost: u64) -> Self {
        Self::at(verb, Moment::exact(now_ms), cost)
    }

    /// The same at a moment that is known to the grain of a clock.
    #[inline(always)]
    pub fn at(verb: Verb, moment: Moment, cost: u64) -> Self {
        Self { verb, moment, cost }
    }

    /// The same by a clock that may be behind by as much as `grain_ms`.
    #[inline(always)]
    #[must_use]
    pub fn with_grain_ms(self, grain_ms: u64) -> Self {
        Self { moment: Moment::within(self.moment.now_ms(), grain_ms), ..self }
    }

    /// Another verb at the same moment.
    pub(crate) fn with_verb(self, verb: Verb) -> Self {
        Self { verb, ..self }
    }

    /// What to do.
    #[inline(always)]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// When.
    #[inline(always)]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// The time that has certainly come; never so late that a sum of times would overflow.
    #[inline(always)]
    pub fn now_ms(&self) -> u64 {
        self.moment.now_ms()
    }

    /// How much to spend or to give back.
    #[inline(always)]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// For how long to block the key.
    pub fn block_ms(&self) -> u64 {
        self.cost.min(MAX_WINDOW_MS)
    }
}
