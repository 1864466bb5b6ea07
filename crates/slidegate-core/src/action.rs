//! Actions: a verb, the moment and the cost.

use crate::moment::Moment;
use crate::quota::MAX_WINDOW_MS;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Spends the cost if every quota allows it.
    Check,
    /// Returns the decision of a check without spending anything.
    Peek,
    /// Counts the cost of a request that has already happened, beyond the limit if necessary. Allowed if no limit is exceeded
    /// afterwards.
    Charge,
    /// Refunds up to the cost.
    Refund,
    /// Removes the counts and the block of the key.
    Reset,
    /// Denies the key for as many milliseconds as the cost, at most 366 days. A cost of 0 ends a block.
    Block,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 6] =
        [Self::Check, Self::Peek, Self::Charge, Self::Refund, Self::Reset, Self::Block];
}

/// A verb, the moment of its execution and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    verb: Verb,
    moment: Moment,
    cost: u64,
}

impl Action {
    /// Returns an action at an exact time: milliseconds since the Unix epoch by the store's clock.
    #[inline(always)]
    pub fn new(verb: Verb, now_ms: u64, cost: u64) -> Self {
        Self::at(verb, Moment::exact(now_ms), cost)
    }

    /// Returns an action at a clock reading with a grain.
    #[inline(always)]
    pub fn at(verb: Verb, moment: Moment, cost: u64) -> Self {
        Self { verb, moment, cost }
    }

    /// Sets the grain of the clock: the real time is at most `grain_ms` later than the reading.
    #[inline(always)]
    #[must_use]
    pub fn with_grain_ms(self, grain_ms: u64) -> Self {
        Self { moment: Moment::with_grain(self.moment.now_ms(), grain_ms), ..self }
    }

    /// Returns the action with another verb.
    pub(crate) fn with_verb(self, verb: Verb) -> Self {
        Self { verb, ..self }
    }

    /// The operation.
    #[inline(always)]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The clock reading at which the action is executed.
    #[inline(always)]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// The earliest time that the clock reading can stand for. Bounded, so that sums of times do not overflow.
    #[inline(always)]
    pub fn now_ms(&self) -> u64 {
        self.moment.now_ms()
    }

    /// Units to spend or to refund; milliseconds for a block.
    #[inline(always)]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Duration of a block.
    pub fn block_ms(&self) -> u64 {
        self.cost.min(MAX_WINDOW_MS)
    }
}
