//! HTTP: `POST /v1/check`, `/v1/peek`, `/v1/refund`, `/v1/reset`, `ANY /forward-auth/{policy}`, `POST /json`, and
//! `GET /healthz`, `/healthcheck`, `/readyz`, `/metrics`, `/openapi.json`.

mod body;
mod encode;
mod forward_auth;
mod openapi;
mod probes;
mod problem;
mod rls;
mod stages;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use metrics::counter;
use serde::Serialize;
use slidegate::tower::PeerAddress;
use slidegate::{Clock, Store, Verb};
use tracing::debug;
use utoipa::ToSchema;

use self::body::Body;
pub(crate) use self::body::decode;
pub(crate) use self::problem::Problem;
use self::stages::Stages;
pub(crate) use self::stages::Task;
use crate::answer::Answer;
use crate::app::{App, Decided};
use crate::metrics::Metrics;
use crate::report::Reporting;
use crate::request::Refusal;
use crate::serve::Limits;
use crate::stopwatch::Stopwatch;
use crate::traces;

/// Where paths begin under which a proxy asks for others, and which are to be told who is connected.
const FORWARD_AUTH: &str = "/forward-auth/";

/// What is said: a decision, or anything else.
pub(crate) type Said = Either<Full<Bytes>, axum::body::Body>;

/// Everything that there is to ask.
#[derive(Debug)]
pub(crate) struct Routes<S> {
    app: Arc<App<S>>,
    limits: Limits,
    others: TowerToHyperService<Router>,
}

impl<S: Store + Reporting + 'static> Routes<S> {
    /// All of it, over `app`.
    pub(crate) fn new(app: Arc<App<S>>, limits: Limits, metrics: Option<Metrics>) -> Self {
        let others = TowerToHyperService::new(others(Arc::clone(&app), limits, metrics));
        Self { app, limits, others }
    }

    /// Answers one request. Decisions do not go by way of the router, which would take longer than they do.
    pub(crate) async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Said> {
        if request.method() != Method::POST {
            return self.other(request, peer).await;
        }
        let verb = match request.uri().path() {
            "/v1/check" => Verb::Check,
            "/v1/peek" => Verb::Peek,
            "/v1/refund" => Verb::Refund,
            "/v1/reset" => Verb::Reset,
            _ => return self.other(request, peer).await,
        };
        self.decide(verb, request).await
    }

    async fn other(&self, mut request: Request<Incoming>, peer: SocketAddr) -> Response<Said> {
        // Whoever else asks says for whom.
        if request.uri().path().starts_with(FORWARD_AUTH) {
            request.extensions_mut().insert(PeerAddress(peer));
        }
        // In a box, so that there is no room kept for it where a decision is made.
        let Ok(response) = Box::pin(self.others.call(request)).await;
        response.map(Either::Right)
    }
}

impl<S: Store> Routes<S> {
    async fn decide(&self, verb: Verb, request: Request<Incoming>) -> Response<Said> {
        let (stages, start) = (Stages::of(verb), Stopwatch::start());
        let span = traces::of_request(name(verb), request.headers());
        let decided = traces::within(span, self.decided(verb, request, stages, start));
        let response = decided.await.unwrap_or_else(|refusal| {
            debug!(?verb, kind = ?refusal.kind, %refusal, "refused");
            counter!("slidegate_refusals_total", "reason" => refusal.kind.name()).increment(1);
            Problem::from(refusal).into_response().map(Either::Right)
        });
        stages.whole.record(start, Stopwatch::start());
        response
    }

    async fn decided(
        &self,
        verb: Verb,
        request: Request<Incoming>,
        stages: &Stages,
        start: Stopwatch,
    ) -> Result<Response<Said>, Refusal> {
        self.app.tokens().admit(request.headers())?;
        let body = body::read(request.into_body(), self.limits.body_timeout).await?;
        let read = Stopwatch::start();
        stages.read.record(start, read);
        let note = || stages.decide.record(read, Stopwatch::start());
        match body {
            Body::Single(request) => {
                let decided = self.app.decide(verb, &request).await;
                note();
                Ok(single(&decided?, self.app.clock()))
            }
            Body::Batch(batch, _room) => {
                let decided = self.app.decide_many(verb, &batch).await;
                note();
                Ok(many(&decided?))
            }
        }
    }
}

/// What is asked, in traces.
fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "POST /v1/check",
        Verb::Peek => "POST /v1/peek",
        Verb::Refund => "POST /v1/refund",
        Verb::Reset => "POST /v1/reset",
    }
}

/// What is asked seldom, and whatever there is not.
fn others<S: Store + Reporting + 'static>(
    app: Arc<App<S>>,
    limits: Limits,
    metrics: Option<Metrics>,
) -> Router {
    Router::new()
        .route("/v1/check", any(only_post))
        .route("/v1/peek", any(only_post))
        .route("/v1/refund", any(only_post))
        .route("/v1/reset", any(only_post))
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
        .method_not_allowed_fallback(async || not_with_this_method())
        .with_state(app)
}

async fn only_post() -> impl IntoResponse {
    ([(ALLOW, HeaderValue::from_static("POST"))], not_with_this_method())
}

fn not_with_this_method() -> Problem {
    let detail = "this path does not take this method; the Allow header names those that it takes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// How many headers an answer has at the most, the date and the length among them. Room is made once.
const MOST_HEADERS: usize = 6;

fn said(json: Vec<u8>) -> Response<Said> {
    let mut response = Response::new(Either::Left(Full::new(json.into())));
    *response.headers_mut() = HeaderMap::with_capacity(MOST_HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn failed(error: &serde_json::Error) -> Response<Said> {
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    problem.into_response().map(Either::Right)
}

fn single(decided: &Decided, clock: &dyn Clock) -> Response<Said> {
    let mut json = Vec::with_capacity(encode::ANSWER_BYTES);
    if let Err(error) = encode::write(&mut json, decided) {
        return failed(&error);
    }
    let mut response = said(json);
    decided.write_headers(response.headers_mut(), clock);
    response
}

/// What stands in a batch's answer: a decision, or why the store made none. The others are made and spent, so the
/// whole cannot be refused for one.
#[derive(Serialize, ToSchema)]
#[expect(dead_code, reason = "it is only described")]
#[serde(untagged)]
enum BatchAnswer<'a> {
    Decided(Answer<'a>),
    Undecided(Problem),
}

fn many(decided: &[Result<Decided, Refusal>]) -> Response<Said> {
    let mut json = Vec::with_capacity(decided.len() * encode::ANSWER_BYTES);
    json.push(b'[');
    for (index, decided) in decided.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        let written = match decided {
            Ok(decided) => encode::write(&mut json, decided),
            Err(refusal) => serde_json::to_writer(&mut json, &Problem::from(refusal.clone())),
        };
        if let Err(error) = written {
            return failed(&error);
        }
    }
    json.push(b']');
    said(json)
}
