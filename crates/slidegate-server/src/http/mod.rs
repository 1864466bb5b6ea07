//! HTTP: `POST /v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`, and `GET /healthz`.

mod body;
mod problem;

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde::Serialize;
use slidegate::{Store, Verb, rate_limit_headers};
use tracing::debug;

use self::body::Body;
use self::problem::Problem;
use crate::answer::Answer;
use crate::app::{App, Decided};
use crate::request::Refusal;
use crate::serve::Limits;

/// The routes over `app`.
pub fn router<S: Store + 'static>(app: Arc<App<S>>, limits: Limits) -> Router {
    Router::new()
        .route("/v1/check", decided_by(Verb::Check, limits))
        .route("/v1/peek", decided_by(Verb::Peek, limits))
        .route("/v1/refund", decided_by(Verb::Refund, limits))
        .route("/v1/reset", decided_by(Verb::Reset, limits))
        .route("/healthz", get(async || "ok\n"))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path; try POST /v1/check")
        })
        .method_not_allowed_fallback(async || {
            let detail = "this path does not take this method; the Allow header names those that it takes";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .with_state(app)
}

fn decided_by<S: Store + 'static>(verb: Verb, limits: Limits) -> MethodRouter<Arc<App<S>>> {
    post(async move |State(app): State<Arc<App<S>>>, body: axum::body::Body| {
        decide(&app, verb, body, limits).await.unwrap_or_else(|refusal| {
            debug!(?verb, kind = ?refusal.kind, %refusal, "refused");
            Problem::from(refusal).into_response()
        })
    })
}

async fn decide<S: Store>(
    app: &App<S>,
    verb: Verb,
    body: axum::body::Body,
    limits: Limits,
) -> Result<Response, Refusal> {
    match body::read(body, limits.body_timeout).await? {
        Body::Single(request) => Ok(single(&app.decide(verb, &request).await?)),
        Body::Batch(batch) => Ok(many(&app.decide_many(verb, &batch).await?)),
    }
}

fn single(decided: &Decided) -> Response {
    let mut response = Json(Answer::from(decided)).into_response();
    for (name, value) in rate_limit_headers(decided.policy(), &decided.decision) {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// What stands in a batch's answer: a decision, or why the store made none. The others are made and spent, so the
/// whole cannot be refused for one.
#[derive(Serialize)]
#[serde(untagged)]
enum BatchAnswer {
    Decided(Answer),
    Undecided(Problem),
}

fn many(decided: &[Result<Decided, Refusal>]) -> Response {
    let answer = |decided: &Result<Decided, Refusal>| match decided {
        Ok(decided) => BatchAnswer::Decided(Answer::from(decided)),
        Err(refusal) => BatchAnswer::Undecided(Problem::from(refusal.clone())),
    };
    Json(decided.iter().map(answer).collect::<Vec<_>>()).into_response()
}
