//! Actions: a verb, the moment and the cost.

use crate::moment::Moment;
use crate::quota::MAX_WINDOW_MS;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    pub const ALL: &'static [Self] =
        &[Self::Check, Self::Peek, Self::Charge, Self::Refund, Self::Reset, Self::Block];

    /// Returns the name in paths, commands, config and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::Block => "block",
        }
    }

    /// Returns the number of the verb in the scripts of remote stores: 1 to 127.
    #[doc(hidden)]
    pub const fn code(self) -> u8 {
        match self {
            Self::Check => 1,
            Self::Peek => 2,
            Self::Refund => 3,
            Self::Reset => 4,
            Self::Charge => 5,
            Self::Block => 6,
        }
    }

    /// Returns whether the verb never changes a state.
    #[inline]
    pub const fn is_read_only(self) -> bool {
        match self {
            Self::Peek => true,
            Self::Check | Self::Charge | Self::Refund | Self::Reset | Self::Block => false,
        }
    }

    /// Returns whether the verb decides whether the request may proceed.
    #[inline]
    pub const fn is_check_or_peek(self) -> bool {
        match self {
            Self::Check | Self::Peek => true,
            Self::Charge | Self::Refund | Self::Reset | Self::Block => false,
        }
    }

    /// Returns whether the verb can count its cost.
    #[inline]
    pub const fn spends(self) -> bool {
        match self {
            Self::Check | Self::Charge => true,
            Self::Peek | Self::Refund | Self::Reset | Self::Block => false,
        }
    }

    /// Returns whether the verb can add a count or a block to a key.
    #[inline]
    pub const fn adds_state(self) -> bool {
        match self {
            Self::Check | Self::Charge | Self::Block => true,
            Self::Peek | Self::Refund | Self::Reset => false,
        }
    }

    /// Returns whether the decision can be a denial.
    #[inline]
    pub const fn can_be_denied(self) -> bool {
        match self {
            Self::Check | Self::Peek | Self::Charge => true,
            Self::Refund | Self::Reset | Self::Block => false,
        }
    }
}

impl core::fmt::Display for Verb {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_listed_with_a_name_and_a_code_of_its_own() {
        // A new variant must be added here, and then to the list.
        let next = |verb: &Verb| match verb {
            Verb::Check => Some(Verb::Peek),
            Verb::Peek => Some(Verb::Charge),
            Verb::Charge => Some(Verb::Refund),
            Verb::Refund => Some(Verb::Reset),
            Verb::Reset => Some(Verb::Block),
            Verb::Block => None,
        };
        assert_eq!(core::iter::successors(Some(Verb::Check), next).collect::<Vec<_>>(), Verb::ALL);
        for verb in Verb::ALL {
            let is_like = |other: &&Verb| other.name() == verb.name() || other.code() == verb.code();
            assert_eq!(Verb::ALL.iter().filter(is_like).count(), 1, "{verb}");
            assert!((1..128).contains(&verb.code()), "{verb}");
        }
    }
}
