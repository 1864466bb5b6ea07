//! What each policy asks for when the store does not decide.

use std::time::Duration;

/// The time in which a decision is answered unless told otherwise.
const DEFAULT_BUDGET: Duration = Duration::from_millis(20);

/// What becomes of a request that the store does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is allowed. For what is worse to refuse than to serve too often.
    Open,
    /// It gets the store's error, which is no denial. For what must never be served too often, like a login.
    Closed,
    /// It is decided in memory, by this node's share of the limits.
    #[default]
    Local,
}

impl OnFailure {
    /// The name in configuration and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

/// What a policy asks of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// What becomes of a request that the store does not decide.
    pub on_failure: OnFailure,
    /// How long the store may take, 20 ms unless told otherwise.
    pub budget: Duration,
}

impl Default for FailureRule {
    fn default() -> Self {
        Self { on_failure: OnFailure::default(), budget: DEFAULT_BUDGET }
    }
}
