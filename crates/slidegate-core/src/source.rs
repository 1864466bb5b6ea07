//! Origin of a decision: the store, a cache, a fallback or a rule.

/// Origin of a decision. It distinguishes a degraded decision from one by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store that holds the counts.
    Store,
    /// A denial by the store, cached until its retry time.
    Cache,
    /// The policy's fallback, with the reason why the store did not decide.
    Fallback(FallbackReason),
    /// A list or a switch, evaluated before any count.
    Rule,
}

impl Source {
    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Fallback(_) => "fallback",
            Self::Rule => "rule",
        }
    }

    /// Returns the reason of a fallback, and `None` for all other sources.
    pub const fn reason(self) -> Option<FallbackReason> {
        match self {
            Self::Fallback(reason) => Some(reason),
            Self::Store | Self::Cache | Self::Rule => None,
        }
    }
}

/// Reason why a store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallbackReason {
    /// The store did not respond within the time budget.
    Timeout,
    /// The store is unreachable, or its response was lost.
    Unavailable,
    /// The store has no capacity left for another key.
    Full,
    /// The store rejects requests with an error that does not pass by itself.
    Refused,
    /// The circuit breaker is open after recent failures, so that the store can recover.
    Resting,
}

impl FallbackReason {
    /// Returns the name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Refused => "refused",
            Self::Resting => "resting",
        }
    }
}
