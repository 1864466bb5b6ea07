//! `POST /json` and `GET /healthcheck`, as envoyproxy/ratelimit has them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use metrics::counter;
use slidegate::Verb;
use slidegate::store::Store;
use tracing::debug;

use super::body;
use super::problem::Problem;
use crate::app::App;
use crate::protocols::rls::proto::RateLimitRequest;
use crate::protocols::rls::{JsonRequest, JsonResponse, Message, decide, verbs};
use crate::request::{Rejection, RejectionKind};

/// A rate limit request as JSON: 200 if it may proceed, 429 if not.
pub(super) fn json<S: Store + 'static>(patience: Duration) -> MethodRouter<Arc<App<S>>> {
    post(async move |State(app): State<Arc<App<S>>>, request: Request| {
        answer(&app, request, patience).await.unwrap_or_else(|rejection| {
            debug!(kind = ?rejection.kind, %rejection, "refused");
            counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
            refused(&rejection)
        })
    })
}

async fn answer<S: Store>(app: &App<S>, request: Request, patience: Duration) -> Result<Response, Rejection> {
    let headers = request.headers().clone();
    app.tokens().admit(&headers, Verb::Check)?;
    let Message(request): Message<JsonRequest> = body::read_single(request.into_body(), patience).await?;
    let request = RateLimitRequest::try_from(request)
        .map_err(|detail| Rejection::new(RejectionKind::OutOfRange, detail))?;
    verbs(&request).try_for_each(|verb| app.tokens().admit(&headers, verb))?;
    let response = JsonResponse::from(decide(app, &request).await?);
    let status = if response.is_over() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    Ok((status, Json(response)).into_response())
}

/// That project knows 400 and 500, and so do its clients.
fn refused(rejection: &Rejection) -> Response {
    let status = match rejection.kind {
        RejectionKind::StoreUnavailable { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        RejectionKind::Unauthorized => StatusCode::UNAUTHORIZED,
        RejectionKind::Forbidden => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, Problem::new(status, rejection.to_string()).into_response()).into_response()
}

/// Healthy until it stops.
pub(super) fn healthcheck<S: Store + 'static>() -> MethodRouter<Arc<App<S>>> {
    get(
        async |State(app): State<Arc<App<S>>>| {
            if app.is_stopping() { (StatusCode::INTERNAL_SERVER_ERROR, "") } else { (StatusCode::OK, "OK") }
        },
    )
}
