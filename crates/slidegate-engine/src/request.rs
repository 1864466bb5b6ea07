//! Requests of all protocols, and reasons for their rejection.

use std::borrow::Cow;
use std::fmt;

use slidegate::{MAX_LIMIT, MAX_WINDOW_MS, StoreError};
use slidegate_config::{BoundedInteger, QuotaSpec};

/// A decoded request. Its values are not yet checked.
#[derive(Clone, Debug, Default)]
pub struct UncheckedRequest<'a> {
    pub policy: Option<Cow<'a, str>>,
    pub tier: Option<Cow<'a, str>>,
    pub quotas: Option<Vec<QuotaSpec>>,
    pub key: Option<Cow<'a, str>>,
    pub cost: Option<Cost>,
    /// Duration of a block.
    pub for_ms: Option<BlockMs>,
    /// Path of the request that a proxy decides about, for the log.
    pub path: Option<Cow<'a, str>>,
}

/// Cost of a request.
pub type Cost = BoundedInteger<0, MAX_LIMIT>;

/// Duration of a block in milliseconds.
pub type BlockMs = BoundedInteger<1, MAX_WINDOW_MS>;

/// Rejection of a request: no decision was made. No cost was counted, except possibly if
/// [`may_have_counted`](Self::may_have_counted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Kind of the reason.
    pub kind: RejectionKind,
    /// Invalid field, as a path in the request: `cost`, `quotas[1].limit`.
    pub field: Option<String>,
    /// Description of the problem and of valid values.
    pub detail: String,
}

/// Reason for a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The request cannot be decoded.
    Malformed,
    /// The body is too large.
    TooLarge,
    /// The body did not arrive before its timeout.
    TooSlow,
    /// The server is at its capacity for such requests.
    Busy,
    /// The client sent no token, or an invalid one.
    Unauthorized,
    /// The token does not permit this verb.
    Forbidden,
    /// The policy does not exist.
    UnknownPolicy,
    /// A value is missing or out of range.
    OutOfRange,
    /// The store failed to decide.
    StoreUnavailable {
        /// Whether the same request may succeed later.
        is_transient: bool,
        /// Whether the store may have counted the cost, because the failure was a lost reply.
        may_have_counted: bool,
    },
}

impl RejectionKind {
    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::TooSlow => "too-slow",
            Self::Busy => "busy",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::UnknownPolicy => "unknown-policy",
            Self::OutOfRange => "out-of-range",
            Self::StoreUnavailable { .. } => "store-unavailable",
        }
    }
}

impl Rejection {
    pub fn new(kind: RejectionKind, detail: impl Into<String>) -> Self {
        Self { kind, field: None, detail: detail.into() }
    }

    pub fn out_of_range(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(RejectionKind::OutOfRange, detail) }
    }

    pub fn unknown_policy(detail: &str) -> Self {
        Self { field: Some("policy".to_owned()), ..Self::new(RejectionKind::UnknownPolicy, detail) }
    }

    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(RejectionKind::Malformed, detail)
    }

    /// Returns whether the store may have counted the cost.
    pub fn may_have_counted(&self) -> bool {
        matches!(self.kind, RejectionKind::StoreUnavailable { may_have_counted: true, .. })
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for Rejection {}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        let kind = RejectionKind::StoreUnavailable {
            is_transient: error.is_transient(),
            may_have_counted: error.may_have_counted(),
        };
        Self::new(kind, error.to_string())
    }
}
