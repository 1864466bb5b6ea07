//! Who may do what.

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
use tracing::debug;

use crate::http::Problem;
use crate::tokens::{Admission, Scope};

/// How long a request may take, its body included.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whoever comes in without a token, which nobody does but on the machine itself.
const NOBODY: &str = "(no token)";

/// Lets in whoever has a token; without tokens, whoever is on this machine and is not a web page.
#[derive(Debug)]
pub(super) struct Guard(Arc<Admission>);

/// Who asks, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct Who(pub(super) String);

impl Guard {
    pub(super) fn new(admission: Arc<Admission>) -> Self {
        Self(admission)
    }

    fn who(&self, request: &Request) -> Result<Who, Box<Response>> {
        let (method, headers) = (request.method(), request.headers());
        if self.0.is_open() {
            return if is_from_a_page(request.uri().authority().map(Authority::as_str), headers) {
                let detail =
                    "without tokens this is for programs on this machine, not for pages in a browser";
                Err(Box::new(Problem::new(StatusCode::FORBIDDEN, detail).into_response()))
            } else {
                Ok(Who(NOBODY.to_owned()))
            };
        }
        let tokens = self.0.tokens();
        let Some(token) = tokens.who(headers.get(AUTHORIZATION)) else {
            counter!("slidegate_refusals_total", "reason" => "unauthorized-admin").increment(1);
            debug!(%method, "somebody without a token was refused at the admin API");
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "a bearer token of admin.tokens is needed");
            let mut response = problem.into_response();
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Err(Box::new(response));
        };
        let only_looks = *method == Method::GET || *method == Method::HEAD;
        if !only_looks && token.scope() < Scope::Write {
            let detail = format!("the token {:?} may only look; its scope is read, not write", token.name());
            return Err(Box::new(Problem::new(StatusCode::FORBIDDEN, detail).into_response()));
        }
        Ok(Who(token.name().to_owned()))
    }
}

/// A page in a browser can reach this machine, too. It cannot hide where it comes from, and a name that it has made to
/// point here is not one of ours.
fn is_from_a_page(authority: Option<&str>, headers: &HeaderMap) -> bool {
    // HTTP/2 has it in the address.
    let host = authority.or_else(|| headers.get(HOST)?.to_str().ok());
    let is_ours = host.is_some_and(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    });
    headers.contains_key(ORIGIN) || !is_ours
}

pub(super) async fn admit(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    match guard.who(&request) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            match tokio::time::timeout(PATIENCE, next.run(request)).await {
                Ok(response) => response,
                Err(_) => {
                    let detail = format!("it was not complete within {PATIENCE:?}");
                    Problem::new(StatusCode::REQUEST_TIMEOUT, detail).into_response()
                }
            }
        }
        Err(refused) => *refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_a_browser_is_told_from_a_program() {
        let headers = |host: &str| HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
        for host in
            ["127.0.0.1:8082", "localhost:8082", "[::1]:8082", "localhost", "127.0.0.1", "LOCALHOST:1"]
        {
            assert!(!is_from_a_page(None, &headers(host)), "{host}");
            assert!(!is_from_a_page(Some(host), &HeaderMap::new()), "{host}");
        }
        for host in ["evil.example:8082", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"] {
            assert!(is_from_a_page(None, &headers(host)), "{host}");
            // Whatever else it says.
            assert!(is_from_a_page(Some(host), &headers("localhost")), "{host}");
        }
        let mut own = headers("localhost:8082");
        own.insert(ORIGIN, HeaderValue::from_static("http://localhost:3000"));
        assert!(is_from_a_page(None, &own) && is_from_a_page(None, &HeaderMap::new()));
    }
}
