//! Authentication and authorization of the admin API.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics::counter;
use slidegate_config::Scope;
use slidegate_engine::Authenticator;
use tracing::debug;

use crate::protocols::http::Problem;

/// Maximum duration of a request, including its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Caller without a token: a program on the same machine, if no tokens are configured.
const NO_TOKEN: &str = "(no token)";

/// Admits requests with a token. Without configured tokens, admits all requests except those of web pages.
#[derive(Debug)]
pub(super) struct Guard(Arc<Authenticator>);

/// Name of the caller for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) String);

impl Guard {
    pub(super) fn new(authenticator: Arc<Authenticator>) -> Self {
        Self(authenticator)
    }

    fn authorize(&self, request: &Request) -> Result<Caller, Box<Response>> {
        let (method, headers) = (request.method(), request.headers());
        if self.0.allows_anonymous() {
            return if is_from_browser(request.uri().authority().map(Authority::as_str), headers) {
                let detail = "without admin.tokens the admin API accepts programs on this machine only, not pages in a browser";
                Err(Box::new(Problem::new(StatusCode::FORBIDDEN, detail).into_response()))
            } else {
                Ok(Caller(NO_TOKEN.to_owned()))
            };
        }
        let tokens = self.0.tokens();
        let Some(token) =
            headers.get(AUTHORIZATION).and_then(|value| tokens.find_by_authorization(value.as_bytes()))
        else {
            counter!("slidegate_refusals_total", "reason" => "unauthorized-admin").increment(1);
            debug!(%method, "rejected a request to the admin API without a valid token");
            let problem =
                Problem::new(StatusCode::UNAUTHORIZED, "a bearer token of admin.tokens is required");
            let mut response = problem.into_response();
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Err(Box::new(response));
        };
        let is_read = *method == Method::GET || *method == Method::HEAD;
        if !is_read && token.scope() < Scope::Write {
            let detail =
                format!("the token {:?} has the scope read; this request requires write", token.name());
            return Err(Box::new(Problem::new(StatusCode::FORBIDDEN, detail).into_response()));
        }
        Ok(Caller(token.name().to_owned()))
    }
}

/// Returns whether a request comes from a page in a browser, which can reach this machine too. Cross-origin requests carry
/// `Origin`. After DNS rebinding the origin is the same, but the host is not a local name.
fn is_from_browser(authority: Option<&str>, headers: &HeaderMap) -> bool {
    // HTTP/2 sends the host as the authority of the URI.
    let host = authority.or_else(|| headers.get(HOST)?.to_str().ok());
    let is_local = host.is_some_and(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    });
    headers.contains_key(ORIGIN) || !is_local
}

pub(super) async fn authorize(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    match guard.authorize(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
                Ok(response) => response,
                Err(_) => {
                    let detail = format!("the request was not complete within {REQUEST_TIMEOUT:?}");
                    Problem::new(StatusCode::REQUEST_TIMEOUT, detail).into_response()
                }
            }
        }
        Err(response) => *response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_pages_in_a_browser_from_programs() {
        let headers = |host: &str| HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
        for host in
            ["127.0.0.1:8082", "localhost:8082", "[::1]:8082", "localhost", "127.0.0.1", "LOCALHOST:1"]
        {
            assert!(!is_from_browser(None, &headers(host)), "{host}");
            assert!(!is_from_browser(Some(host), &HeaderMap::new()), "{host}");
        }
        for host in ["evil.example:8082", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"] {
            assert!(is_from_browser(None, &headers(host)), "{host}");
            // The authority takes precedence over the header.
            assert!(is_from_browser(Some(host), &headers("localhost")), "{host}");
        }
        let mut own = headers("localhost:8082");
        own.insert(ORIGIN, HeaderValue::from_static("http://localhost:3000"));
        assert!(is_from_browser(None, &own) && is_from_browser(None, &HeaderMap::new()));
    }
}
