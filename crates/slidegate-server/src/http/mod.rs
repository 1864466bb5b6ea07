//! HTTP: `POST /v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`, `ANY /forward-auth/{policy}`, and `GET /healthz`, `/readyz`, `/metrics`, `/openapi.json`.

mod body;
mod forward_auth;
mod openapi;
mod probes;
mod problem;
mod rls;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use metrics::{Histogram, counter, histogram};
use serde::Serialize;
use slidegate::{Clock, Store, Verb};
use tracing::debug;
use utoipa::ToSchema;

use self::body::Body;
pub(crate) use self::body::decode;
pub(crate) use self::problem::Problem;
use crate::answer::Answer;
use crate::app::{App, Decided};
use crate::metrics::Metrics;
use crate::report::Reporting;
use crate::request::{Refusal, RefusalKind};
use crate::serve::Limits;
use crate::stopwatch::Stopwatch;

/// Where paths begin under which a proxy asks for others, and which are to be told who is connected.
pub(crate) const FORWARD_AUTH: &str = "/forward-auth/";

/// The routes over `app`.
pub fn router<S: Store + Reporting + 'static>(
    app: Arc<App<S>>,
    limits: Limits,
    metrics: Option<Metrics>,
) -> Router {
    Router::new()
        .route("/v1/check", decided_by(Verb::Check, limits))
        .route("/v1/peek", decided_by(Verb::Peek, limits))
        .route("/v1/refund", decided_by(Verb::Refund, limits))
        .route("/v1/reset", decided_by(Verb::Reset, limits))
        .route("/forward-auth/{policy}", forward_auth::decided())
        .route("/forward-auth/{policy}/", forward_auth::decided())
        .route("/forward-auth/{policy}/{*below}", forward_auth::decided())
        .route("/healthz", get(async || "ok\n"))
        .route("/json", rls::json(limits.body_timeout))
        .route("/healthcheck", rls::healthcheck())
        .route("/openapi.json", get(async || openapi::document()))
        .route("/readyz", get(async |State(app): State<Arc<App<S>>>| probes::ready(&app)))
        .route(
            "/metrics",
            get(async move |State(app): State<Arc<App<S>>>| probes::metrics(&app, metrics.as_ref())),
        )
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
    let stages = Stages::new(verb);
    post(async move |State(app): State<Arc<App<S>>>, request: Request| {
        let whole = Stopwatch::start();
        let response = decide(&app, verb, request, limits, &stages).await.unwrap_or_else(|refusal| {
            debug!(?verb, kind = ?refusal.kind, %refusal, "refused");
            counter!("slidegate_refusals_total", "reason" => refusal.kind.name()).increment(1);
            Problem::from(refusal).into_response()
        });
        stages.whole.record(whole.seconds());
        response
    })
}

/// How long each part of a request takes.
#[derive(Clone)]
struct Stages {
    read: Histogram,
    decide: Histogram,
    whole: Histogram,
}

impl Stages {
    fn new(verb: Verb) -> Self {
        let verb = match verb {
            Verb::Check => "check",
            Verb::Peek => "peek",
            Verb::Refund => "refund",
            Verb::Reset => "reset",
        };
        let stage =
            |stage: &'static str| histogram!("slidegate_request_seconds", "verb" => verb, "stage" => stage);
        Self { read: stage("read"), decide: stage("decide"), whole: stage("whole") }
    }
}

async fn decide<S: Store>(
    app: &App<S>,
    verb: Verb,
    request: Request,
    limits: Limits,
    stages: &Stages,
) -> Result<Response, Refusal> {
    app.tokens().admit(request.headers())?;
    let reading = Stopwatch::start();
    let body = body::read(request.into_body(), limits.body_timeout).await?;
    stages.read.record(reading.seconds());
    let deciding = Stopwatch::start();
    match body {
        Body::Single(request) => {
            let decided = app.decide(verb, &request).await;
            stages.decide.record(deciding.seconds());
            Ok(single(&decided?, app.clock()))
        }
        Body::Batch(batch) => {
            let decided = app.decide_many(verb, &batch).await;
            stages.decide.record(deciding.seconds());
            Ok(many(&decided?))
        }
    }
}

/// Whoever shows none of the tokens, if there are any, is not heard.
/// Most answers have one quota and are shorter.
const ANSWER_BYTES: usize = 512;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn single(decided: &Decided, clock: &dyn Clock) -> Response {
    let mut body = Vec::with_capacity(ANSWER_BYTES);
    if let Err(error) = serde_json::to_writer(&mut body, &Answer::from(decided)) {
        return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    decided.write_headers(response.headers_mut(), clock);
    response
}

/// What stands in a batch's answer: a decision, or why the store made none. The others are made and spent, so the
/// whole cannot be refused for one.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum BatchAnswer<'a> {
    Decided(Answer<'a>),
    Undecided(Problem),
}

fn many(decided: &[Result<Decided, Refusal>]) -> Response {
    Json(decided.iter().map(BatchAnswer::from).collect::<Vec<_>>()).into_response()
}

impl<'a> From<&'a Result<Decided, Refusal>> for BatchAnswer<'a> {
    fn from(decided: &'a Result<Decided, Refusal>) -> Self {
        match decided {
            Ok(decided) => Self::Decided(Answer::from(decided)),
            Err(refusal) => Self::Undecided(Problem::from(refusal.clone())),
        }
    }
}
