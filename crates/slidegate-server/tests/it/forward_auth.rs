//! `/forward-auth`: the decision for a proxy that checks each request before it forwards it.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::harness::{Response, Server, read_last_response, request_with_headers};
use crate::process::{ServeProcess, TempFile, slidegate};

const FILE: &str = "
trusted_proxies: [127.0.0.1/32]
policies:
  api: {quotas: [{limit: 2, window: 1m, algorithm: fixed-window, name: burst}, {limit: 100, window: 1d, name: daily}]}
  keyed: {quotas: [1/1m], key: {header: x-api-key}}
  both: {quotas: [1/1m], key: [address, {header: x-api-key}]}
  old: {quotas: [1/1m], headers: legacy-delta}
";

fn forward(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let lines =
        headers.iter().fold(String::new(), |all, (name, value)| all + &format!("{name}: {value}\r\n"));
    let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    read_last_response(&mut stream)
}

fn forwarded(address: &str) -> [(&'static str, &str); 1] {
    [("x-forwarded-for", address)]
}

#[test]
fn an_allowed_request_gets_204_and_a_denied_request_a_problem_document() {
    let server = Server::with_config(FILE);
    let client = forwarded("203.0.113.7");
    for (path, left) in [("/forward-auth/api", 1), ("/forward-auth/api/some/path?and=query", 0)] {
        let allowed = forward(&server, "GET", path, &client);
        assert_eq!((allowed.status, allowed.body.as_str()), (204, ""), "{allowed:?}");
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""burst";q=2;w=60, "daily";q=100;w=86400"#));
        let limits = allowed.header("ratelimit").unwrap();
        assert!(limits.starts_with(&format!(r#""burst";r={left};t="#)), "{limits}");
        assert_eq!(allowed.header("retry-after"), None);
    }
    for method in ["GET", "POST", "DELETE", "OPTIONS", "PATCH", "PURGE"] {
        let denied = forward(&server, method, "/forward-auth/api/", &client);
        assert_eq!(denied.status, 429, "{method}: {denied:?}");
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        assert_eq!(denied.header("retry-after"), Some("60"));
        assert!(denied.header("ratelimit").unwrap().starts_with(r#""burst";r=0;t=60, "daily";r=98;"#));
        assert_eq!(
            denied.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "quota exceeded", "status": 429, "violated-policies": ["burst"],
                "detail": "too many requests, try again in 60000 ms",
            })
        );
    }
    assert_eq!(forward(&server, "HEAD", "/forward-auth/api", &client).status, 429);
}

#[test]
fn the_status_codes_are_configurable_within_limits() {
    let server = Server::with_config(FILE);
    let client = forwarded("203.0.113.7");
    for _ in 0..2 {
        assert_eq!(forward(&server, "GET", "/forward-auth/api?deny_status=403", &client).status, 204);
    }
    for status in [401, 403, 429] {
        let denied = forward(&server, "GET", &format!("/forward-auth/api?deny_status={status}&a=b"), &client);
        assert_eq!((denied.status, &denied.json()["status"]), (status, &json!(status)));
        assert_eq!(denied.header("retry-after"), Some("60"), "{denied:?}");
    }
    let other = forwarded("203.0.113.8");
    assert_eq!(
        forward(&server, "GET", "/forward-auth/api?allow_status=200&path=/a?deny_status=9", &other).status,
        200
    );
    let rejection = forward(&server, "GET", "/forward-auth/api?allow_status=403", &other);
    assert_eq!((rejection.status, &rejection.json()["field"]), (422, &json!("allow_status")));
    for wrong in ["200", "302", "500", "503", "4030", "", "x"] {
        let rejection = forward(&server, "GET", &format!("/forward-auth/api?deny_status={wrong}"), &client);
        assert_eq!((rejection.status, &rejection.json()["field"]), (422, &json!("deny_status")));
        assert_eq!(rejection.json()["detail"], format!("{wrong:?} is not one of 401, 403, 429"));
    }
}

/// Proxies append the URI of the client, as a path below the policy or behind `path=`.
#[test]
fn a_client_cannot_choose_the_status() {
    let server = Server::with_config(FILE);
    let client = forwarded("203.0.113.7");
    let (prefix, pinned) = ("/forward-auth/api", "/forward-auth/api?allow_status=200&deny_status=429&path=");
    assert_eq!(forward(&server, "GET", &format!("{prefix}/?allow_status=1"), &client).status, 204);
    assert_eq!(forward(&server, "GET", &format!("{pinned}/?&allow_status=204"), &client).status, 200);
    for option in ["deny_status=401", "deny_status=503", "deny_status=x", "allow_status=1", "deny_status"] {
        for path in ["/", "/x", "/%ff", "/x/y"] {
            for uri in [format!("{path}?{option}"), format!("{path}?&{option}"), format!("{path}&{option}")] {
                for before in [prefix, pinned, "/forward-auth/api?path="] {
                    let denied = forward(&server, "GET", &format!("{before}{uri}"), &client);
                    assert_eq!(denied.status, 429, "{before}{uri}: {denied:?}");
                }
            }
        }
    }
}

#[test]
fn only_a_trusted_proxy_names_the_client() {
    let server = Server::with_config(FILE);
    let is_denied =
        |entry: &str| forward(&server, "GET", "/forward-auth/old", &forwarded(entry)).status == 429;
    assert!(!is_denied("198.51.100.1"));
    assert!(
        is_denied("198.51.100.1") && is_denied("10.0.0.1, 198.51.100.1"),
        "entries to the left are not trusted"
    );
    assert!(is_denied("8.8.8.8, 198.51.100.1, 127.0.0.1"), "the proxy itself is trusted");
    assert!(is_denied("::ffff:198.51.100.1"));
    assert!(!is_denied("2001:db8::1") && is_denied("2001:db8::2"), "IPv6 addresses are limited by network");
    assert!(!is_denied("198.51.100.2"));
    // Without trusted proxies, the peer is the client.
    let server = Server::with_config("policies: {api: {quotas: [1/1m]}}");
    let is_denied =
        |entry: &str| forward(&server, "GET", "/forward-auth/api", &forwarded(entry)).status == 429;
    assert!(!is_denied("198.51.100.1") && is_denied("198.51.100.2"));
}

#[test]
fn a_request_without_the_headers_of_its_key_is_rejected() {
    let server = Server::with_config(FILE);
    let forward = |policy: &str, headers: &[(&str, &str)]| {
        forward(&server, "GET", &format!("/forward-auth/{policy}"), headers)
    };
    assert_eq!(forward("keyed", &[("x-api-key", "a")]).status, 204);
    assert_eq!(forward("keyed", &[("x-api-key", "a"), ("x-forwarded-for", "1.2.3.4")]).status, 429);
    assert_eq!(forward("keyed", &[("x-api-key", "b")]).status, 204);
    assert_eq!(forward("both", &[("x-api-key", "a"), ("x-forwarded-for", "1.2.3.4")]).status, 204);
    assert_eq!(forward("both", &[("x-api-key", "a"), ("x-forwarded-for", "1.2.3.5")]).status, 204);
    assert_eq!(forward("both", &[("x-api-key", "a"), ("x-forwarded-for", "1.2.3.5")]).status, 429);
    let long = "x".repeat(20_000);
    for (key, status) in [(long.as_str(), 204), (&long, 429), (&long[1..], 204)] {
        assert_eq!(forward("keyed", &[("x-api-key", key)]).status, status, "{} bytes", key.len());
    }
    let rejection = forward("keyed", &[]);
    assert_eq!((rejection.status, &rejection.json()["field"]), (400, &json!("key")), "{rejection:?}");
    let detail = "made of header x-api-key; the request has no header x-api-key, or more than one";
    assert_eq!(rejection.json()["detail"], detail);
    assert_eq!(forward("keyed", &[("x-api-key", "a"), ("x-api-key", "c")]).status, 400);
    let rejection = forward("keyed?deny_status=403", &[]);
    assert_eq!(
        (rejection.status, &rejection.json()["status"]),
        (403, &json!(403)),
        "with the status for the proxy"
    );
}

#[test]
fn headers_follow_the_policy_and_an_unknown_policy_is_not_found() {
    let server = Server::with_config(FILE);
    let allowed = forward(&server, "GET", "/forward-auth/old", &[]);
    assert_eq!((allowed.header("x-ratelimit-limit"), allowed.header("ratelimit")), (Some("1"), None));
    let unknown = forward(&server, "GET", "/forward-auth/nothing", &[]);
    assert_eq!((unknown.status, &unknown.json()["field"]), (404, &json!("policy")));
    assert_eq!(forward(&server, "GET", "/forward-auth/%ff", &[]).status, 400);
    assert_eq!(
        forward(&server, "GET", "/forward-auth/api/%ff", &[]).status,
        204,
        "the path below belongs to the client"
    );
    assert_eq!(forward(&server, "GET", "/forward-auth/", &[]).status, 404);
    assert_eq!(
        forward(&server, "GET", "/forward-auth/a%70i", &[]).status,
        204,
        "the policy is percent-decoded"
    );
}

/// The warning explains why all clients share one key if the proxy is not trusted.
#[test]
fn an_untrusted_forwarded_header_is_logged_once() {
    let config = TempFile::new("untrusted-proxy", &FILE.replace("127.0.0.1/32", ""));
    let log = TempFile::new("log", "");
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    let mut server = ServeProcess::start_with_log(&mut command, File::create(log.path()).unwrap().into());
    let forward = |policy: &str| {
        let path = format!("/forward-auth/{policy}");
        let lines = "x-forwarded-for: 203.0.113.7\r\nx-api-key: k\r\n";
        request_with_headers(server.address(), "GET", &path, lines, b"").status
    };
    assert_eq!(["keyed", "api", "api"].map(forward), [204; 3]);
    // Proxies do not log the error of an unknown policy, so the server logs it.
    assert_eq!(["nope", "nope"].map(forward), [404; 2]);
    server.signal_and_wait("TERM");
    let logged = fs::read_to_string(log.path()).unwrap();
    assert_eq!(logged.matches("there is no policy \"nope\"").count(), 1, "{logged}");
    let warnings: Vec<&str> =
        logged.lines().filter(|line| line.contains("ignored X-Forwarded-For")).collect();
    assert!(
        warnings.len() == 1 && warnings[0].contains("127.0.0.1") && warnings[0].contains("trusted_proxies"),
        "{logged}"
    );
}
