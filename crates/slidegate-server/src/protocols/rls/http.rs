//! `POST /json` and `GET /healthcheck`, compatible with envoyproxy/ratelimit.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use slidegate::Verb;
use slidegate::store::Store;
use slidegate_engine::{Engine, Rejection, RejectionKind};
use tracing::Instrument;

use super::decide;
use super::json::{JsonRequest, JsonResponse};
use super::message::Message;
use super::operations::required_verbs;
use super::proto::RateLimitRequest;
use crate::protocols::headers::credentials;
use crate::protocols::http::{Problem, read_single};
use crate::request_metrics::record_rejection;
use crate::traces;

/// Returns the route for rate limit requests as JSON: 200 if the request is allowed, 429 if it is denied.
pub(crate) fn json<S: Store + 'static>(body_timeout: Duration) -> MethodRouter<Arc<Engine<S>>> {
    post(async move |State(engine): State<Arc<Engine<S>>>, request: Request| {
        let span = traces::request_span("POST /json", request.headers().into());
        respond(&engine, request, body_timeout).instrument(span).await.unwrap_or_else(|rejection| {
            record_rejection(&rejection);
            rejection_response(&rejection)
        })
    })
}

async fn respond<S: Store>(
    engine: &Engine<S>,
    request: Request,
    body_timeout: Duration,
) -> Result<Response, Rejection> {
    let headers = request.headers().clone();
    engine.tokens().admit(credentials(&headers), Verb::Check)?;
    let Message(request): Message<JsonRequest> = read_single(request.into_body(), body_timeout).await?;
    let request = RateLimitRequest::try_from(request)
        .map_err(|detail| Rejection::new(RejectionKind::OutOfRange, detail))?;
    required_verbs(&request).try_for_each(|verb| engine.tokens().admit(credentials(&headers), verb))?;
    let response = JsonResponse::from(decide(engine, &request).await?);
    let status = if response.is_over_limit() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    Ok((status, Json(response)).into_response())
}

/// Maps rejections to 400 and 500, the statuses of envoyproxy/ratelimit, and to 401 and 403 for tokens.
fn rejection_response(rejection: &Rejection) -> Response {
    let status = match rejection.kind {
        RejectionKind::StoreUnavailable { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        RejectionKind::Unauthorized => StatusCode::UNAUTHORIZED,
        RejectionKind::Forbidden => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, Problem::new(status, rejection.to_string()).into_response()).into_response()
}

/// Returns the route of the health check, which fails while the service stops.
pub(crate) fn healthcheck<S: Store + 'static>() -> MethodRouter<Arc<Engine<S>>> {
    get(async |State(engine): State<Arc<Engine<S>>>| {
        if engine.readiness().is_draining() {
            (StatusCode::INTERNAL_SERVER_ERROR, "")
        } else {
            (StatusCode::OK, "OK")
        }
    })
}
