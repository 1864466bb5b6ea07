//! `ANY /forward-auth/{policy}` and whatever is below it: decides for a proxy that asks before it passes a request on.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use metrics::counter;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use slidegate::tower::{ClientAddress, PeerAddress};
use slidegate::{Store, Verb};
use tracing::{debug, warn};

use super::problem::Problem;
use super::request_timings::Task;
use crate::app::{App, Decided};
use crate::log_once::LogOnce;
use crate::request::{Rejection, RejectionKind};
use crate::request_key::request_key;
use crate::stopwatch::Stopwatch;
use crate::traces;
use slidegate_config::{KeyPart, KeyRule};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// What a proxy may want to hear instead of 429. Nothing that it could take for a failure, and let through.
const DENY_STATUSES: [&str; 3] = ["401", "403", "429"];
/// And instead of 204: Envoy takes nothing but 200 for a yes.
const ALLOW_STATUSES: [&str; 2] = ["200", "204"];

/// All that a query may say.
const OPTIONS: [&str; 2] = ["deny_status", "allow_status"];

/// A path that is longer is cut where it is logged.
const MAX_PATH: usize = 256;

/// What the proxy's own configuration says, apart from what it appends of its client's.
struct Question<'a> {
    policy: String,
    deny_status: Option<StatusCode>,
    allow_status: Option<StatusCode>,
    /// What is below the policy.
    below: &'a str,
}

impl<'a> Question<'a> {
    fn read(request: &'a Parts) -> Result<Self, Rejection> {
        let path = request.uri.path();
        let asked = path.strip_prefix(super::FORWARD_AUTH_PREFIX).unwrap_or(path);
        let (policy, below) = asked.split_at(asked.find('/').unwrap_or(asked.len()));
        let policy = percent_decode_str(policy).decode_utf8().map_err(|_| {
            Rejection::new(RejectionKind::Malformed, format!("the policy's name in {path:?} is not UTF-8"))
        })?;
        // A path below is the client's, and so is the query behind it.
        let query = if below.is_empty() { request.uri.query().unwrap_or_default() } else { "" };
        Ok(Self {
            policy: policy.into_owned(),
            deny_status: status(query, "deny_status", &DENY_STATUSES)?,
            allow_status: status(query, "allow_status", &ALLOW_STATUSES)?,
            below,
        })
    }
}

pub(super) fn route<S: Store + 'static>() -> MethodRouter<Arc<App<S>>> {
    any(async move |State(app): State<Arc<App<S>>>, request: Parts| {
        let span = traces::of_request("forward-auth", &request.headers);
        timed(traces::within(span, answer(&app, &request))).await
    })
}

async fn timed(response: impl Future<Output = Result<Response, Refused>>) -> Response {
    let watch = Stopwatch::start();
    let response = response.await.unwrap_or_else(Refused::into_response);
    Task::ForwardAuth.record(watch);
    response
}

/// Why there is no decision, and the status to say it with if it is not the usual one.
struct Refused {
    rejection: Rejection,
    status: Option<StatusCode>,
}

impl<R: Into<Rejection>> From<R> for Refused {
    fn from(rejection: R) -> Self {
        Self { rejection: rejection.into(), status: None }
    }
}

impl Refused {
    fn into_response(self) -> Response {
        let Self { rejection, status } = self;
        debug!(kind = ?rejection.kind, %rejection, "refused");
        counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
        let mut problem = Problem::from(rejection);
        if let Some(status) = status {
            problem.set_status(status);
        }
        problem.into_response()
    }
}

async fn answer<S: Store>(app: &App<S>, request: &Parts) -> Result<Response, Refused> {
    app.tokens().admit(&request.headers, Verb::Check)?;
    let Question { policy, deny_status, allow_status, below } = Question::read(request)?;
    let key = key(app, &policy, request, deny_status)?;
    let path = path(request, below);
    let [policy, key] = [policy, key].map(|text| Some(text.into()));
    let asked = crate::Request { policy, key, path: path.map(Cow::from), ..crate::Request::default() };
    let decided = app.decide(Verb::Check, &asked).await?;
    let mut response = if decided.decision.is_allowed() {
        allow_status.unwrap_or(StatusCode::NO_CONTENT).into_response()
    } else {
        denial(&decided, deny_status.unwrap_or(StatusCode::TOO_MANY_REQUESTS))
    };
    decided.write_headers(response.headers_mut(), app.clock());
    Ok(response)
}

/// What a proxy says that its client wants, without what is behind the question mark, which may be secret. nginx, Caddy and
/// Traefik say so in a header, Envoy may append it.
fn path(request: &Parts, below: &str) -> Option<String> {
    let said = ["x-forwarded-uri", "x-original-uri"];
    let in_header = said.iter().find_map(|name| request.headers.get(*name)?.to_str().ok());
    let path = in_header.unwrap_or(below).split('?').next()?;
    (!path.is_empty()).then(|| path.chars().take(MAX_PATH).collect())
}

/// `?deny_status=403`, if it is there, and only before anything that is no option: what clients ask for is appended behind
/// `path=`, and may look like one. The first one counts.
fn status(query: &str, name: &str, allowed: &[&str]) -> Result<Option<StatusCode>, Rejection> {
    let is_option = |(field, _): &(&str, &str)| OPTIONS.contains(field);
    let mut options = query.split('&').map_while(|pair| pair.split_once('=').filter(is_option));
    let Some((_, wanted)) = options.find(|(field, _)| *field == name) else { return Ok(None) };
    match StatusCode::from_bytes(wanted.as_bytes()) {
        Ok(status) if allowed.contains(&wanted) => Ok(Some(status)),
        _ => Err(Rejection::out_of_range(name, format!("{wanted:?} is not one of {}", allowed.join(", ")))),
    }
}

/// Whom the request counts for. One that does not say so is let through no more than one that is denied, in words that the
/// proxy understands.
fn key<S: Store>(
    app: &App<S>,
    policy: &str,
    request: &Parts,
    deny_status: Option<StatusCode>,
) -> Result<String, Refused> {
    static SAID: LogOnce = LogOnce::new();
    let policies = app.policies();
    let by_address = KeyRule::address();
    // Proxies tell nobody what they were told.
    let say = |rejection: &Rejection| {
        if SAID.is_first() {
            warn!(%rejection, "a proxy asks for what there is not, and its clients are not let through");
        }
    };
    let rule = policies.key_rule(policy).inspect_err(say)?.unwrap_or(&by_address);
    let peer = request.extensions.get::<PeerAddress>().map(|peer| peer.0.ip());
    if let Some(peer) = peer
        && rule.parts().contains(&KeyPart::Address)
    {
        warn_if_not_believed(policies.client(), peer, &request.headers);
    }
    request_key(rule, policies.client(), peer, &request.headers).map_err(|part| {
        let detail = format!("made of {rule}, and the request has no {part}, or two");
        let status = Some(deny_status.unwrap_or(StatusCode::BAD_REQUEST));
        Refused { rejection: Rejection::out_of_range("key", detail), status }
    })
}

/// Says so, once, if what a proxy tells of its clients is not believed: to whoever forgot to name the proxy all of them are
/// one. If it is a client who makes it up, there is nothing to be done.
fn warn_if_not_believed(client: &ClientAddress, peer: IpAddr, headers: &HeaderMap) {
    static SAID: LogOnce = LogOnce::new();
    let is_ignored = headers.contains_key("x-forwarded-for") && !client.trusts(peer);
    if is_ignored && SAID.is_first() {
        warn!(
            peer = %peer.to_canonical(),
            "X-Forwarded-For is not believed and the request counts for the peer; \
             if that is your proxy, add it to trusted_proxies"
        );
    }
}

/// What clients are told whom a proxy turns away in these words.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct QuotaExceeded<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    violated_policies: Vec<&'a str>,
}

fn denial(decided: &Decided, status: StatusCode) -> Response {
    let detail = match decided.decision.retry_after_ms() {
        Some(ms) => format!("too many requests, try again in {ms} ms"),
        None => "this request can never be allowed".to_owned(),
    };
    let violated_policies =
        decided.decision.violated().map(|place| decided.policy().quota_name(place)).collect();
    let problem = QuotaExceeded {
        r#type: QUOTA_EXCEEDED,
        title: "quota exceeded",
        status: status.as_u16(),
        detail,
        violated_policies,
    };
    let mut response = (status, axum::Json(problem)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    response
}
