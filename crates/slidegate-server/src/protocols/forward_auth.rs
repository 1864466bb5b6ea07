//! `ANY /forward-auth/{policy}` and all paths below it: decisions for the authorization requests of proxies.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use slidegate::Verb;
use slidegate::address::{ClientAddress, PeerAddress};
use slidegate::store::Store;
use slidegate_config::{KeyPart, KeyRule};
use slidegate_engine::{Decided, Engine, Rejection, RejectionKind, UncheckedRequest};
use tracing::{Instrument, warn};

use super::headers::{credentials, request_key};
use super::http::{Problem, add_rate_limit_headers};
use crate::log_once::LogOnce;
use crate::request_metrics::{Stopwatch, Task, record_rejection};
use crate::traces;

/// Start of all paths.
const PREFIX: &str = "/forward-auth/";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// Allowed values of `deny_status`. Proxies may treat other statuses as a failure and forward the request.
const DENY_STATUSES: [&str; 3] = ["401", "403", "429"];
/// Allowed values of `allow_status`. Envoy accepts 200 only.
const ALLOW_STATUSES: [&str; 2] = ["200", "204"];

/// Options in the query.
const OPTIONS: [&str; 2] = ["deny_status", "allow_status"];

/// Maximum length of a path in the log. Longer paths are truncated.
const MAX_PATH_CHARS: usize = 256;

/// URL of an authorization request: the part from the configuration of the proxy, and the part of its client.
struct ForwardAuthUrl<'a> {
    policy: String,
    deny_status: Option<StatusCode>,
    allow_status: Option<StatusCode>,
    /// Path below the policy, which belongs to the client.
    subpath: &'a str,
}

impl<'a> ForwardAuthUrl<'a> {
    fn parse(request: &'a Parts) -> Result<Self, Rejection> {
        let path = request.uri.path();
        let path_below = path.strip_prefix(PREFIX).unwrap_or(path);
        let (policy, subpath) = path_below.split_at(path_below.find('/').unwrap_or(path_below.len()));
        let policy = percent_decode_str(policy).decode_utf8().map_err(|_| {
            Rejection::new(
                RejectionKind::Malformed,
                format!("the name of the policy in {path:?} is not UTF-8"),
            )
        })?;
        // The query after a subpath belongs to the client.
        let query = if subpath.is_empty() { request.uri.query().unwrap_or_default() } else { "" };
        Ok(Self {
            policy: policy.into_owned(),
            deny_status: status_option(query, "deny_status", &DENY_STATUSES)?,
            allow_status: status_option(query, "allow_status", &ALLOW_STATUSES)?,
            subpath,
        })
    }
}

pub(super) fn route<S: Store + 'static>() -> MethodRouter<Arc<Engine<S>>> {
    any(async move |State(engine): State<Arc<Engine<S>>>, request: Parts| {
        let span = traces::request_span("forward-auth", (&request.headers).into());
        timed(decide(&engine, &request).instrument(span)).await
    })
}

async fn timed(response: impl Future<Output = Result<Response, ForwardAuthRejection>>) -> Response {
    let watch = Stopwatch::start();
    let response = response.await.unwrap_or_else(ForwardAuthRejection::into_response);
    Task::ForwardAuth.record(watch);
    response
}

/// A rejection, with the status that replaces the default status of its kind.
struct ForwardAuthRejection {
    rejection: Rejection,
    status: Option<StatusCode>,
}

impl<R: Into<Rejection>> From<R> for ForwardAuthRejection {
    fn from(rejection: R) -> Self {
        Self { rejection: rejection.into(), status: None }
    }
}

impl ForwardAuthRejection {
    fn into_response(self) -> Response {
        let Self { rejection, status } = self;
        record_rejection(&rejection);
        let mut problem = Problem::from(rejection);
        if let Some(status) = status {
            problem.set_status(status);
        }
        problem.into_response()
    }
}

async fn decide<S: Store>(engine: &Engine<S>, request: &Parts) -> Result<Response, ForwardAuthRejection> {
    engine.tokens().admit(credentials(&request.headers), Verb::Check)?;
    let ForwardAuthUrl { policy, deny_status, allow_status, subpath } = ForwardAuthUrl::parse(request)?;
    let key = key(engine, &policy, request, deny_status)?;
    let path = client_path(request, subpath);
    let [policy, key] = [policy, key].map(|text| Some(text.into()));
    let check = UncheckedRequest { policy, key, path: path.map(Cow::from), ..UncheckedRequest::default() };
    let decided = engine.decide_request(Verb::Check, &check).await?;
    let mut response = if decided.decision.is_allowed() {
        allow_status.unwrap_or(StatusCode::NO_CONTENT).into_response()
    } else {
        denial(&decided, deny_status.unwrap_or(StatusCode::TOO_MANY_REQUESTS))
    };
    add_rate_limit_headers(response.headers_mut(), &decided, engine.clock());
    Ok(response)
}

/// Returns the path that the client requested, for the log. The query may contain secrets and is removed.
///
/// nginx, Caddy and Traefik send the path in a header. Envoy can append it to the URL.
fn client_path(request: &Parts, subpath: &str) -> Option<String> {
    let headers = ["x-forwarded-uri", "x-original-uri"];
    let uri = headers.iter().find_map(|name| request.headers.get(*name)?.to_str().ok());
    let path = uri.unwrap_or(subpath).split('?').next()?;
    (!path.is_empty()).then(|| path.chars().take(MAX_PATH_CHARS).collect())
}

/// Returns the status of an option such as `?deny_status=403`; the first occurrence counts.
///
/// The options end at the first other field, because proxies append the path of the client, with a query that can contain
/// options.
fn status_option(query: &str, name: &str, allowed: &[&str]) -> Result<Option<StatusCode>, Rejection> {
    let is_option = |(field, _): &(&str, &str)| OPTIONS.contains(field);
    let mut options = query.split('&').map_while(|pair| pair.split_once('=').filter(is_option));
    let Some((_, value)) = options.find(|(field, _)| *field == name) else { return Ok(None) };
    match StatusCode::from_bytes(value.as_bytes()) {
        Ok(status) if allowed.contains(&value) => Ok(Some(status)),
        _ => Err(Rejection::out_of_range(name, format!("{value:?} is not one of {}", allowed.join(", ")))),
    }
}

/// Returns the key of the request. If a part of the key is missing, the status of the rejection is `deny_status`, or 400.
fn key<S: Store>(
    engine: &Engine<S>,
    policy: &str,
    request: &Parts,
    deny_status: Option<StatusCode>,
) -> Result<String, ForwardAuthRejection> {
    static LOGGED: LogOnce = LogOnce::new();
    let policies = engine.policies();
    let by_address = KeyRule::address();
    // Proxies do not log the body of the response.
    let log = |rejection: &Rejection| {
        if LOGGED.is_first() {
            warn!(%rejection, "rejected a forward-auth request; correct the policy in the configuration of the proxy");
        }
    };
    let rule = policies.key_rule(policy).inspect_err(log)?.unwrap_or(&by_address);
    let peer = request.extensions.get::<PeerAddress>().map(|peer| peer.0.ip());
    if let Some(peer) = peer
        && rule.parts().contains(&KeyPart::Address)
    {
        warn_if_untrusted(policies.client(), peer, &request.headers);
    }
    request_key(rule, policies.client(), peer, &request.headers).map_err(|part| {
        let detail = format!("made of {rule}; the request has no {part}, or more than one");
        let status = Some(deny_status.unwrap_or(StatusCode::BAD_REQUEST));
        ForwardAuthRejection { rejection: Rejection::out_of_range("key", detail), status }
    })
}

/// Logs a warning, once, if the peer sends `X-Forwarded-For` and is not trusted. If it is a proxy, all its clients share one
/// key. If it is a client that forges the header, no action is needed.
fn warn_if_untrusted(client: &ClientAddress, peer: IpAddr, headers: &HeaderMap) {
    static LOGGED: LogOnce = LogOnce::new();
    let is_ignored = headers.contains_key("x-forwarded-for") && !client.trusts(peer);
    if is_ignored && LOGGED.is_first() {
        warn!(
            peer = %peer.to_canonical(),
            "ignored X-Forwarded-For of a peer that is not trusted, and counted the request for the peer; \
             if the peer is your proxy, add it to trusted_proxies"
        );
    }
}

/// Problem document of a denial, which most proxies return to their clients.
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
        decided.decision.violated().map(|index| decided.policy().quota_name(index)).collect();
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
