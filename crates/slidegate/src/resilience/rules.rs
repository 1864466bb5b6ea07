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

/// Failure handling of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// Handling of a request that the store does not decide.
    pub on_failure: OnFailure,
    /// Time within which the store must respond, 20 ms by default.
    pub budget: Duration,
}

impl Default for FailureRule {
    fn default() -> Self {
        Self { on_failure: OnFailure::default(), budget: DEFAULT_BUDGET }
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
