//! HTTP API of decisions: `POST /v1/check`, `/v1/peek`, `/v1/charge`, `/v1/refund`, `/v1/reset`, `/v1/block` and `/v1/forget`.

mod body;
mod body_budget;
mod decision_json;
mod encode;
pub(crate) mod fast_path;
pub(crate) mod forget;
mod problem;
mod reply;
mod request_json;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::ALLOW;
use axum::http::{self, HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::response::IntoResponse;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::address::PeerAddress;
use slidegate::store::Store;
use slidegate::{StoreError, Verb};
use slidegate_config::Limits;
use slidegate_engine::{Decided, Engine, Rejection, Selection, UncheckedRequest};
use tracing::Instrument;

pub(crate) use self::body::read_single;
pub use self::decision_json::DecisionJson;
pub(crate) use self::decision_json::{Age, QuotaJson};
use self::fast_path::PlainRequest;
pub(crate) use self::forget::{ForgetRequest, ForgetResponse};
pub(crate) use self::problem::Problem;
pub(crate) use self::reply::{BatchItemJson, add_rate_limit_headers};
use self::reply::{HeaderSink, PlainReply, Reply};
use self::request_json::{Body, parse};
pub(crate) use self::request_json::{RequestFields, RequestJson};
use crate::protocols::headers::credentials;
use crate::request_metrics::{RequestTimings, Stopwatch};
use crate::traces;

/// Number of requests of a batch that are decided before the task yields to others.
const BATCH_CHUNK: usize = 1000;

/// Body of a response: complete for decisions, from the router otherwise.
pub(crate) type ResponseBody = Either<Full<Bytes>, axum::body::Body>;

/// Routes of the HTTP API.
#[derive(Debug)]
pub(crate) struct Routes<S> {
    engine: Arc<Engine<S>>,
    limits: Limits,
    router: TowerToHyperService<Router>,
}

impl<S: Store> Routes<S> {
    /// Returns the routes of decisions. `router` responds to all requests that are not decisions.
    pub(crate) fn new(engine: Arc<Engine<S>>, limits: Limits, router: Router) -> Self {
        Self { engine, limits, router: TowerToHyperService::new(router) }
    }

    /// Responds to one request. Decisions bypass the router, which takes longer than a decision.
    pub(crate) async fn respond(
        &self,
        request: http::Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<ResponseBody> {
        if request.method() != Method::POST {
            return self.route(request, peer).await;
        }
        match verb_of(request.uri().path()) {
            Some(verb) => self.decide(verb, request).await,
            None => self.route(request, peer).await,
        }
    }

    async fn route(&self, mut request: http::Request<Incoming>, peer: SocketAddr) -> Response<ResponseBody> {
        request.extensions_mut().insert(PeerAddress(peer));
        // Boxed, to keep the future of a decision small.
        let Ok(response) = Box::pin(self.router.call(request)).await;
        response.map(Either::Right)
    }
}

impl<S: Store> Routes<S> {
    async fn decide(&self, verb: Verb, request: http::Request<Incoming>) -> Response<ResponseBody> {
        let mut reply = Reply::for_hyper();
        let span = traces::request_span(span_name(verb), request.headers().into());
        self.decide_into(&mut reply, verb, request).instrument(span).await;
        reply.into_response()
    }

    async fn decide_into(&self, reply: &mut Reply<HeaderMap>, verb: Verb, request: http::Request<Incoming>) {
        let start = Stopwatch::start();
        let received = match self.engine.tokens().admit(credentials(request.headers()), verb) {
            Ok(()) => body::read(request.into_body(), self.limits.body_timeout).await,
            Err(rejection) => Err(rejection),
        };
        let body = received.as_ref().map_err(Rejection::clone).and_then(|(bytes, _permit)| parse(bytes));
        self.decide_body(reply, verb, start, body).await;
    }

    /// Responds to a request of the fast path.
    async fn decide_plain(&self, reply: &mut PlainReply, request: &PlainRequest<'_>) {
        let span = traces::request_span(span_name(request.verb), request.trace);
        self.decide_plain_into(reply, request).instrument(span).await;
    }

    async fn decide_plain_into(&self, reply: &mut PlainReply, request: &PlainRequest<'_>) {
        let start = Stopwatch::start();
        let admitted = self.engine.tokens().admit(request.credentials, request.verb);
        let body = admitted.and_then(|()| parse(request.body));
        reply.clear();
        self.decide_body(reply, request.verb, start, body).await;
    }

    /// Decides a decoded body, writes the response, and records the durations. `start` is the start of reading.
    async fn decide_body(
        &self,
        reply: &mut Reply<impl HeaderSink>,
        verb: Verb,
        start: Stopwatch,
        body: Result<Body<'_>, Rejection>,
    ) {
        let (timings, read_end) = (RequestTimings::of(verb), Stopwatch::start());
        let is_read = body.is_ok();
        let result = match body {
            Ok(Body::Single(request)) => {
                let decided = self.engine.decide_request(verb, &request).await;
                decided.map(|decided| reply.write_decision(&decided, self.engine.clock()))
            }
            Ok(Body::Batch(batch)) => self.decide_batch(reply, verb, &batch).await,
            Err(rejection) => Err(rejection),
        };
        if let Err(rejection) = result {
            reply.write_rejection(rejection);
        }
        let end = Stopwatch::start();
        if is_read {
            timings.read.record(start, read_end);
            timings.decide.record(read_end, end);
        }
        timings.total.record(start, end);
    }

    /// Decides a batch if the memory budget permits its response: each request separately, in as few calls of the store as
    /// possible.
    async fn decide_batch(
        &self,
        reply: &mut Reply<impl HeaderSink>,
        verb: Verb,
        batch: &[Result<UncheckedRequest<'_>, Rejection>],
    ) -> Result<(), Rejection> {
        let policies = self.engine.policies();
        let selections: Vec<_> = batch
            .iter()
            .map(|request| policies.select(verb, request.as_ref().map_err(Rejection::clone)?))
            .collect();
        reply.reserve(&selections)?;
        let mut selections = selections.into_iter();
        while selections.len() > 0 {
            let chunk = selections.by_ref().take(BATCH_CHUNK).collect();
            let decided = self.decide_chunk(chunk).await;
            if !reply.append_decisions(decided) {
                return Ok(());
            }
            if selections.len() > 0 {
                tokio::task::yield_now().await;
            }
        }
        reply.end_batch();
        Ok(())
    }

    /// Decides the valid requests of a batch in one call of the store.
    async fn decide_chunk<'a>(
        &self,
        selections: Vec<Result<Selection<'a>, Rejection>>,
    ) -> Vec<Result<Decided<'a>, Rejection>> {
        let prepared: Vec<_> = selections.iter().flatten().map(Selection::prepared).collect();
        let mut responses = self.engine.decide(&prepared).await.into_iter();
        drop(prepared);
        let decide = |selection: Result<Selection<'a>, Rejection>| {
            let selection = selection?;
            let decision = responses.next().unwrap_or_else(|| Err(StoreError::lost("no response")))?;
            Ok(Decided { selection, decision })
        };
        selections.into_iter().map(decide).collect()
    }
}

/// Returns the verb of a path that makes decisions.
pub(crate) fn verb_of(path: &str) -> Option<Verb> {
    let name = path.strip_prefix("/v1/")?;
    Verb::ALL.iter().copied().find(|verb| verb.name() == name)
}

/// Returns the name of a span in traces.
fn span_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "POST /v1/check",
        Verb::Peek => "POST /v1/peek",
        Verb::Charge => "POST /v1/charge",
        Verb::Refund => "POST /v1/refund",
        Verb::Reset => "POST /v1/reset",
        Verb::Block => "POST /v1/block",
        _ => "POST",
    }
}

/// Rejects other methods of a path that takes `POST` only.
pub(crate) async fn only_post(method: Method) -> impl IntoResponse {
    let detail = format!("the path does not support {method}; send a POST");
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
    ([(ALLOW, HeaderValue::from_static("POST"))], problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_path_and_a_span() {
        for verb in Verb::ALL {
            assert_eq!(verb_of(&format!("/v1/{verb}")), Some(*verb));
            assert_eq!(span_name(*verb), format!("POST /v1/{verb}"));
        }
    }
}
