//! Requests of all protocols, the rejection of a request, and JSON whose errors are rejections.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::error::Category;
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
        if error.is_usage() {
            return Self::new(RejectionKind::OutOfRange, error.to_string());
        }
        let kind = RejectionKind::StoreUnavailable {
            is_transient: error.is_transient(),
            may_have_counted: error.may_have_counted(),
        };
        Self::new(kind, error.to_string())
    }
}

/// Parses JSON. A rejection names the field.
pub fn parse_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Rejection> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    // A second pass finds the path of the error, so that valid bodies need no tracking.
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        json_rejection(&path, error.inner())
    })?;
    json.end().map_err(|error| json_rejection(".", &error))?;
    Ok(value)
}

/// Returns the error text for a missing field.
fn missing(name: &str) -> String {
    let expected = match name {
        "limit" => "; it takes a whole number, such as 100",
        "window" => "; it takes a time such as 30s, 15m or 1d",
        _ => "",
    };
    format!("is missing{expected}")
}

/// Converts a JSON error at a path of the body into a rejection.
fn json_rejection(path: &str, error: &serde_json::Error) -> Rejection {
    let message = error.to_string();
    // serde_json reports a number that is too large for a float as a syntax error.
    let is_huge = message.starts_with("number out of range");
    if error.classify() != Category::Data && !is_huge {
        return Rejection::new(RejectionKind::Malformed, format!("the body is not valid JSON: {message}"));
    }
    let position = format!(" at line {} column {}", error.line(), error.column());
    let detail = if is_huge {
        format!("the number is too large; no field takes more than {MAX_LIMIT}")
    } else {
        message.strip_suffix(&position).unwrap_or(&message).to_owned()
    };
    let path = if path == "." { "" } else { path };
    let field_after =
        |problem: &str| detail.strip_prefix(problem)?.strip_prefix(" field `")?.strip_suffix('`');
    let (name, detail) = match (field_after("missing"), field_after("duplicate")) {
        (Some(name), _) => (name, missing(name)),
        (_, Some(name)) => (name, "it is given twice".to_owned()),
        (None, None) => ("", detail.clone()),
    };
    let parts = [path, name].map(|part| Some(part).filter(|part| !part.is_empty()));
    let field = parts.into_iter().flatten().collect::<Vec<_>>().join(".");
    let field = (!field.is_empty()).then_some(field);
    Rejection { field, ..Rejection::new(RejectionKind::OutOfRange, detail) }
}
