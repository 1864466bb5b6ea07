//! `POST /throttle`, as throttlecrab's server has it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use metrics::counter;
use serde::{Deserialize, Serialize};
use slidegate::Verb;
use slidegate::store::Store;
use tracing::debug;
use utoipa::ToSchema;

use super::Task;
use super::body;
use super::problem::Problem;
use crate::app::App;
use crate::app::operation::{self, PolicyOperation};
use crate::request::{Rejection, RejectionKind};
use crate::stopwatch::Stopwatch;
use crate::throttle::{ThrottleReply, Throttlecrab};

/// A request of throttlecrab. Other fields are passed over, as there.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ThrottleRequest {
    /// 1 to 4096 bytes.
    #[schema(min_length = 1, max_length = 4096)]
    key: String,
    /// What the bucket holds.
    #[schema(minimum = 1, maximum = 281_474_976_710_656_u64)]
    max_burst: i64,
    /// How many tokens flow in during a period.
    #[schema(minimum = 1, maximum = 281_474_976_710_656_u64)]
    count_per_period: i64,
    /// Seconds, up to 366 days.
    #[schema(minimum = 1, maximum = 31_622_400)]
    period: i64,
    /// The tokens to spend, 1 unless given; 0 only looks.
    #[schema(minimum = 0, maximum = 281_474_976_710_656_u64)]
    quantity: Option<i64>,
}

/// Why there is no decision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ThrottleError {
    error: String,
}

/// A rejection, and the status that throttlecrab has for it.
struct Refused {
    status: StatusCode,
    kind: RejectionKind,
    error: String,
}

impl From<Rejection> for Refused {
    fn from(rejection: Rejection) -> Self {
        let error = rejection.to_string();
        Self { kind: rejection.kind, status: Problem::from(rejection).status(), error }
    }
}

impl Refused {
    /// A rate that is out of range is an internal error of that server.
    fn rate(why: &str) -> Self {
        let error = format!("Internal server error: {why}");
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, kind: RejectionKind::OutOfRange, error }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { status, kind, error } = self;
        debug!(?kind, error, "refused");
        counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
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

/// Decides by the rate in the request.
pub(super) fn decided<S: Store + 'static>(patience: Duration) -> MethodRouter<Arc<App<S>>> {
    post(async move |State(app): State<Arc<App<S>>>, request: Request| {
        let watch = Stopwatch::start();
        let answer = decide(&app, request, patience).await.map(Json);
        Task::Throttle.record(watch);
        answer
    })
}

async fn decide<S: Store>(
    app: &App<S>,
    request: Request,
    patience: Duration,
) -> Result<ThrottleReply, Refused> {
    app.tokens().admit(request.headers(), Verb::Check)?;
    if !is_json(request.headers()) {
        let error = "Expected request with `Content-Type: application/json`".to_owned();
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Refused { status, kind: RejectionKind::Malformed, error });
    }
    let request: ThrottleRequest = body::read_single(request.into_body(), patience).await?;
    let ThrottleRequest { key, max_burst, count_per_period, period, quantity } = request;
    let throttle = Throttlecrab::new(max_burst, count_per_period, period, quantity.unwrap_or(1));
    let throttle = throttle.map_err(|why| Refused::rate(&why))?;
    let named = app.throttles().find(throttle.rate).map_err(|why| Refused::rate(&why))?;
    let key = operation::key(key.as_bytes())?;
    let asked = PolicyOperation { verb: Verb::Check, named, key, cost: throttle.cost };
    Ok(throttle.reply(&app.execute(&[asked.prepared()]).await.into_single().map_err(Rejection::from)?))
}

/// Whether the body is said to be JSON, without which a page in a browser may send it to any port.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}
