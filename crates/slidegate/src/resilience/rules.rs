//! Requests that the store does not decide: the rules of their policies, and the reason in their decisions.

use std::time::Duration;

use slidegate_core::FallbackReason;

use crate::error::StoreError;

/// Default time within which the store must respond.
const DEFAULT_BUDGET: Duration = Duration::from_millis(20);

/// Handling of a request that the store does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed. For services where a rejection is worse than excess load.
    Open,
    /// The request fails with the store's error, which is not a denial. For requests such as logins, whose limit must
    /// always hold.
    Closed,
    /// The request is decided in memory, by this node's share of the limits.
    #[default]
    Local,
}

impl OnFailure {
    /// Returns the name in configuration and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

/// Failure handling of one policy, built by [`new`](Self::new) and [`budget`](Self::budget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureRule {
    /// Handling of a request that the store does not decide.
    pub on_failure: OnFailure,
    /// Time within which the store must respond, 20 ms by default.
    pub budget: Duration,
}

impl FailureRule {
    /// Creates a rule with the default budget of 20 ms.
    pub const fn new(on_failure: OnFailure) -> Self {
        Self { on_failure, budget: DEFAULT_BUDGET }
    }

    /// Sets the time within which the store must respond.
    #[must_use]
    pub const fn budget(self, budget: Duration) -> Self {
        Self { budget, ..self }
    }
}

impl Default for FailureRule {
    fn default() -> Self {
        Self::new(OnFailure::default())
    }
}

/// Returns the reason to report in a decision that replaces this error.
pub(super) fn fallback_reason(error: &StoreError) -> FallbackReason {
    if error.is_full() {
        FallbackReason::Full
    } else if error.is_late() {
        FallbackReason::Timeout
    } else if error.is_transient() {
        FallbackReason::Unavailable
    } else {
        FallbackReason::Refused
    }
}
