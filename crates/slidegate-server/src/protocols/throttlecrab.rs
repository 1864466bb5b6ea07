//! Requests and replies of throttlecrab, for `THROTTLE` over RESP, and `POST /throttle`, compatible with its server.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde::{Deserialize, Serialize};
use slidegate::store::Store;
use slidegate::{Decision, MAX_LIMIT, QuotaReport, Verb};
use slidegate_engine::{Engine, Rejection, RejectionKind, Selection, valid_key};
use tracing::Instrument;
use utoipa::ToSchema;

use super::headers::credentials;
use super::http::{Problem, read_single};
use super::rates::{Dialect, Rate, throttlecrab_error};
use crate::request_metrics::{Stopwatch, Task, record_rejection_of};
use crate::traces;

/// Request of throttlecrab, without its key. [`slidegate_engine::RatePolicies::find`] validates the rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThrottlecrabRequest {
    pub(crate) rate: Rate,
    pub(crate) cost: u64,
}

/// Decision in the format of throttlecrab's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ThrottleResponse)]
pub(crate) struct ThrottleReply {
    /// Whether the request is allowed.
    pub(crate) allowed: bool,
    /// `max_burst`.
    pub(crate) limit: i64,
    /// Remaining tokens.
    pub(crate) remaining: i64,
    /// Seconds until throttlecrab would forget the key; 0 if nothing is counted.
    pub(crate) reset_after: i64,
    /// Seconds until the request can be repeated, rounded up; 0 if it is allowed.
    pub(crate) retry_after: i64,
}

impl ThrottlecrabRequest {
    /// Validates the quantity, or returns throttlecrab's error.
    pub(crate) fn new(max_burst: i64, count: i64, period_s: i64, quantity: i64) -> Result<Self, String> {
        let rate = Rate { dialect: Dialect::Throttlecrab, max_burst, count, period_s };
        let cost = u64::try_from(quantity)
            .map_err(|_| throttlecrab_error(&format!("negative quantity: {quantity}")))?;
        if cost > MAX_LIMIT {
            let detail = format!("quantity: {quantity} is not between 0 and {MAX_LIMIT}");
            return Err(throttlecrab_error(&detail));
        }
        Ok(Self { rate, cost })
    }

    pub(crate) fn reply(&self, decision: &Decision) -> ThrottleReply {
        let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
        let retry_after_ms = match decision.retry_after_ms() {
            _ if decision.is_allowed() => 0,
            Some(ms) => ms,
            // The quantity exceeds the capacity. throttlecrab has no reply for "never", so the reply is the time in which
            // that many tokens are refilled.
            None => reset_after_ms.saturating_add(self.rate.refill_ms(self.cost.saturating_sub(limit))),
        };
        ThrottleReply {
            allowed: decision.is_allowed(),
            limit: signed(limit),
            remaining: signed(remaining),
            reset_after: signed(self.reset_after_s(limit, reset_after_ms)),
            retry_after: signed(retry_after_ms.div_ceil(1000)),
        }
    }

    /// Returns the seconds until throttlecrab would forget the key: `max_burst - 2` intervals after the bucket is full, rounded
    /// down, but not before the bucket is full.
    fn reset_after_s(&self, limit: u64, full_after_ms: u64) -> u64 {
        if full_after_ms == 0 {
            return 0;
        }
        let expires_after_ms = full_after_ms.saturating_add(self.rate.refill_ms(limit.saturating_sub(2)));
        (expires_after_ms / 1000).max(full_after_ms.div_ceil(1000))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Request of throttlecrab. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ThrottleRequest {
    /// Key, 1 to 4096 bytes.
    #[schema(min_length = 1, max_length = 4096)]
    key: String,
    /// Capacity of the bucket.
    #[schema(minimum = 1, maximum = 281_474_976_710_656_u64)]
    max_burst: i64,
    /// Number of tokens that are refilled per period.
    #[schema(minimum = 1, maximum = 281_474_976_710_656_u64)]
    count_per_period: i64,
    /// Period in seconds, up to 366 days.
    #[schema(minimum = 1, maximum = 31_622_400)]
    period: i64,
    /// Tokens to spend, by default 1; 0 only peeks.
    #[schema(minimum = 0, maximum = 281_474_976_710_656_u64)]
    quantity: Option<i64>,
}

/// Error without a decision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ThrottleError {
    error: String,
}

/// Rejection with the status that throttlecrab returns for it.
struct ThrottleRejection {
    status: StatusCode,
    kind: RejectionKind,
    error: String,
}

impl From<Rejection> for ThrottleRejection {
    fn from(rejection: Rejection) -> Self {
        let error = rejection.to_string();
        Self { kind: rejection.kind, status: Problem::from(rejection).status(), error }
    }
}

impl ThrottleRejection {
    /// Returns the rejection of a rate that is out of range, which is an internal error of throttlecrab's server.
    fn invalid_rate(message: &str) -> Self {
        let error = format!("Internal server error: {message}");
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, kind: RejectionKind::OutOfRange, error }
    }
}

impl IntoResponse for ThrottleRejection {
    fn into_response(self) -> Response {
        let Self { status, kind, error } = self;
        record_rejection_of(kind, &error);
        let mut headers = HeaderMap::new();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        (status, headers, Json(ThrottleError { error })).into_response()
    }
}

pub(crate) fn route<S: Store + 'static>(body_timeout: Duration) -> MethodRouter<Arc<Engine<S>>> {
    post(async move |State(engine): State<Arc<Engine<S>>>, request: Request| {
        let stopwatch = Stopwatch::start();
        let span = traces::request_span("POST /throttle", request.headers().into());
        let response = decide(&engine, request, body_timeout).instrument(span).await.map(Json);
        Task::Throttle.record(stopwatch);
        response
    })
}

async fn decide<S: Store>(
    engine: &Engine<S>,
    request: Request,
    body_timeout: Duration,
) -> Result<ThrottleReply, ThrottleRejection> {
    engine.tokens().admit(credentials(request.headers()), Verb::Check)?;
    if !is_json(request.headers()) {
        let error = "Expected request with `Content-Type: application/json`".to_owned();
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ThrottleRejection { status, kind: RejectionKind::Malformed, error });
    }
    let request: ThrottleRequest = read_single(request.into_body(), body_timeout).await?;
    let ThrottleRequest { key, max_burst, count_per_period, period, quantity } = request;
    let invalid_rate = |message: String| ThrottleRejection::invalid_rate(&message);
    let request = ThrottlecrabRequest::new(max_burst, count_per_period, period, quantity.unwrap_or(1))
        .map_err(invalid_rate)?;
    let policy = request.rate.policy(engine.rates()).map_err(invalid_rate)?;
    let key = valid_key(Some(key.as_bytes()))?;
    let operation = Selection::new(Verb::Check, policy, key, request.cost);
    Ok(request.reply(&engine.decide(&[operation.prepared()]).await.into_single().map_err(Rejection::from)?))
}

/// Returns whether the content type is JSON. A page in a browser can send other content types to any port.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}
