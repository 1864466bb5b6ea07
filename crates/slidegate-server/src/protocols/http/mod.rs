//! HTTP: `POST /v1/check`, `/v1/peek`, `/v1/charge`, `/v1/refund`, `/v1/reset`, `/v1/block`, `/v1/forget`,
//! `ANY /forward-auth/{policy}`, `POST /json`, `POST /throttle`, and `GET /healthz`, `/healthcheck`, `/readyz`, `/metrics`, `/openapi.json`.

mod body;
mod body_budget;
mod encode;
mod forget;
mod forward_auth;
mod head;
mod openapi;
mod probes;
mod problem;
mod reply;
mod request_timings;
mod rls;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::tower::PeerAddress;
use slidegate::{Store, Verb};

use self::body::Body;
pub(crate) use self::body::decode;
pub(crate) use self::body_budget::BudgetPermit;
use self::head::Head;
pub(crate) use self::openapi::{add_token, written};
pub(crate) use self::problem::Problem;
pub(crate) use self::reply::PlainReply;
use self::reply::Reply;
use self::request_timings::RequestTimings;
pub(crate) use self::request_timings::Task;
use crate::app::App;
use crate::metrics::Metrics;
use crate::net::Limits;
use crate::net::http1_fast::Plain;
use crate::request::{Batch, Rejection};
use crate::stopwatch::Stopwatch;
use crate::store_status::StatusSource;
use crate::traces;

/// Where paths begin under which a proxy asks for others, and which are to be told who is connected.
const FORWARD_AUTH: &str = "/forward-auth/";

/// So many of a batch are decided before it is others' turn.
const TOGETHER: usize = 1000;

/// What is said: a decision, or anything else.
pub(crate) type Said = Either<Full<Bytes>, axum::body::Body>;

/// Everything that there is to ask.
#[derive(Debug)]
pub(crate) struct Routes<S> {
    app: Arc<App<S>>,
    limits: Limits,
    others: TowerToHyperService<Router>,
}

impl<S: Store + StatusSource + 'static> Routes<S> {
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
        match verb_of(request.uri().path()) {
            Some(verb) => self.decide(verb, request).await,
            None => self.other(request, peer).await,
        }
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
        let mut reply = Reply::for_hyper();
        let span = traces::of_request(name(verb), request.headers());
        traces::within(span, self.decide_into(&mut reply, verb, request)).await;
        reply.into_response()
    }

    async fn decide_into(&self, reply: &mut Reply<HeaderMap>, verb: Verb, request: Request<Incoming>) {
        let start = Stopwatch::start();
        let read = match self.app.tokens().admit(request.headers(), verb) {
            Ok(()) => body::read(request.into_body(), self.limits.body_timeout).await,
            Err(rejection) => Err(rejection),
        };
        let body = read.as_ref().map_err(Rejection::clone).and_then(|(bytes, _room)| body::understand(bytes));
        self.settle(reply, verb, start, body).await;
    }

    /// The same for a plain request, which has come without hyper. There are no traces of it.
    pub(crate) async fn decide_plain(&self, reply: &mut PlainReply, plain: &Plain<'_>) {
        let start = Stopwatch::start();
        let admitted = self.app.tokens().admit(plain.shown, plain.verb);
        let body = admitted.and_then(|()| body::understand(plain.body));
        reply.clear();
        self.settle(reply, plain.verb, start, body).await;
    }

    /// Decides what was read since `start`, and says so.
    async fn settle(
        &self,
        reply: &mut Reply<impl Head>,
        verb: Verb,
        start: Stopwatch,
        body: Result<Body<'_>, Rejection>,
    ) {
        let (stages, read) = (RequestTimings::of(verb), Stopwatch::start());
        let is_read = body.is_ok();
        let settled = match body {
            Ok(Body::Single(request)) => {
                self.app.decide(verb, &request).await.map(|decided| reply.say(&decided, self.app.clock()))
            }
            Ok(Body::Batch(batch)) => self.settle_many(reply, verb, &batch).await,
            Err(rejection) => Err(rejection),
        };
        if let Err(rejection) = settled {
            reply.refuse(verb, rejection);
        }
        let end = Stopwatch::start();
        if is_read {
            stages.read.record(start, read);
            stages.decide.record(read, end);
        }
        stages.whole.record(start, end);
    }

    /// Decides a batch if there is room for the answer.
    async fn settle_many(
        &self,
        reply: &mut Reply<impl Head>,
        verb: Verb,
        batch: &Batch<'_>,
    ) -> Result<(), Rejection> {
        let chosen = self.app.choose_many(verb, batch);
        reply.make_room(&chosen)?;
        let mut chosen = chosen.into_iter();
        for (number, requests) in batch.0.chunks(TOGETHER).enumerate() {
            if number > 0 {
                tokio::task::yield_now().await;
            }
            let chosen = chosen.by_ref().take(requests.len()).collect();
            let decided = self.app.decide_many(verb, requests, chosen).await;
            if !reply.say_more(verb, decided) {
                return Ok(());
            }
        }
        reply.end_all();
        Ok(())
    }
}

/// What is asked at a path, if it is a decision.
pub(crate) fn verb_of(path: &str) -> Option<Verb> {
    match path {
        "/v1/check" => Some(Verb::Check),
        "/v1/peek" => Some(Verb::Peek),
        "/v1/charge" => Some(Verb::Charge),
        "/v1/refund" => Some(Verb::Refund),
        "/v1/reset" => Some(Verb::Reset),
        "/v1/block" => Some(Verb::Block),
        _ => None,
    }
}

/// What is asked, in traces.
fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "POST /v1/check",
        Verb::Peek => "POST /v1/peek",
        Verb::Charge => "POST /v1/charge",
        Verb::Refund => "POST /v1/refund",
        Verb::Reset => "POST /v1/reset",
        Verb::Block => "POST /v1/block",
    }
}

/// What is asked seldom, and whatever there is not.
fn others<S: Store + StatusSource + 'static>(
    app: Arc<App<S>>,
    limits: Limits,
    metrics: Option<Metrics>,
) -> Router {
    Router::new()
        .route("/v1/check", any(only_post))
        .route("/v1/peek", any(only_post))
        .route("/v1/charge", any(only_post))
        .route("/v1/refund", any(only_post))
        .route("/v1/reset", any(only_post))
        .route("/v1/block", any(only_post))
        .route("/v1/forget", forget::route(limits.body_timeout))
        .route("/forward-auth/{policy}", forward_auth::decided())
        .route("/forward-auth/{policy}/", forward_auth::decided())
        .route("/forward-auth/{policy}/{*below}", forward_auth::decided())
        .route("/healthz", get(async || "ok\n"))
        .route("/json", rls::json(limits.body_timeout))
        .route("/healthcheck", rls::healthcheck())
        .route("/throttle", throttle::route(limits.body_timeout))
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

async fn only_post(method: Method) -> impl IntoResponse {
    let problem =
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes POST and not {method}"));
    ([(ALLOW, HeaderValue::from_static("POST"))], problem)
}

fn not_with_this_method() -> Problem {
    let detail = "this path does not take this method; the Allow header names those that it takes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
