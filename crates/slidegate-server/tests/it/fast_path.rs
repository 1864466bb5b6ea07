//! The fast path serves plain requests without hyper, with the same bytes as hyper.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::harness::{Server, read_last_response, read_response, request_with_headers};
use crate::shutdown::until_draining;

/// A connection-related header without effect, which takes a request off the fast path to hyper.
const FOR_HYPER: &str = "te: trailers\r\n";
/// A last request, for hyper, that closes the connection.
const LAST: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const TOKENS: &str = "
policies: {api: {quotas: [100/1m]}}
tokens: [{name: app, token: 0123456789abcdef, verbs: [check, peek, refund, reset]}]
";

fn plain(verb: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /v1/{verb} HTTP/1.1\r\nhost: a\r\n{lines}content-length: {length}\r\n\r\n{body}")
}

fn check(key: &str) -> String {
    plain("check", "", &format!(r#"{{"policy": "api", "key": "{key}"}}"#))
}

/// Sends each part in its own write and returns all response bytes without `date` headers.
fn exchange(server: &Server, parts: &[&str]) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    for part in parts {
        stream.write_all(part.as_bytes()).unwrap();
    }
    without_dates(&mut stream)
}

fn without_dates(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect()
}

#[test]
fn the_fast_path_gives_the_same_bytes_as_hyper() {
    let [fast, hyper] = [(); 2].map(|()| Server::start());
    let large = format!(r#"{{"policy": "api", "key": "{}"}}"#, "k".repeat(5000));
    let batch = format!("[{}]", [r#"{"policy": "api", "key": "a"}"#; 90].join(","));
    for body in [
        r#"{"policy": "api", "key": "a"}"#,
        r#"{"policy": "api", "key": "a", "cost": 99}"#,
        r#"{"policy": "api", "key": "a", "cost": 2}"#,
        r#"{"policy": "api", "key": "a", "cost": 1000000}"#,
        r#"{"policy": "api", "tier": "premium", "key": "größe \"1\""}"#,
        r#"  {"quotas": ["5/1m", "7/1h token-bucket"], "key": "a"}"#,
        r#"{"policy": "login", "key": "a"}"#,
        r#"[{"policy": "api", "key": "b"}, {"policy": "login", "key": "b"}]"#,
        "[]",
        "",
        "nothing",
        "\u{0}",
        r#"{"policy": "none", "key": "a"}"#,
        r#"{"policy": "api"}"#,
        r#"{"policy": "api", "key": "a", "cost": -1}"#,
        r#"{"policy": "api", "key": "a", "more": 1}"#,
        r#"{"policy": "api", "key": "a""#,
        &large,
        &batch,
    ] {
        for verb in ["peek", "check", "refund", "check", "reset"] {
            let fast_response = exchange(&fast, &[&plain(verb, "", body), LAST]);
            let hyper_response = exchange(&hyper, &[&plain(verb, FOR_HYPER, body), LAST]);
            assert!(fast_response.starts_with("HTTP/1.1 "), "{verb} {body}: {fast_response:?}");
            assert_eq!(fast_response, hyper_response, "{verb} {body}");
        }
    }
}

#[test]
fn a_response_has_a_date() {
    let server = Server::start();
    let response = server.check(r#"{"policy": "api", "key": "a"}"#);
    let date = response.header("date").unwrap();
    assert!(date.ends_with(" GMT") && date.len() == "Sun, 15 Nov 2026 00:00:00 GMT".len(), "{date}");
}

#[test]
fn pipelined_requests_may_switch_to_hyper() {
    let server = Server::start();
    let requests =
        [check("a"), check("a"), plain("check", FOR_HYPER, r#"{"policy": "api", "key": "a"}"#), check("a")];
    let text = exchange(&server, &[&requests.concat(), LAST]);
    let left: Vec<_> = text
        .match_indices(r#","limit":100,"remaining":"#)
        .map(|(at, found)| &text[at + found.len()..at + found.len() + 2])
        .collect();
    assert_eq!(left, ["99", "98", "97", "96"], "{text}");
    assert!(text.ends_with("\r\n\r\nok\n"), "{text}");
}

#[test]
fn a_request_may_be_split_anywhere() {
    let server = Server::start();
    let request = check("a") + LAST;
    let first = exchange(&server, &[&request]);
    for cut in 1..request.len() {
        let again = Server::start();
        let parts = request.split_at(cut);
        assert_eq!(exchange(&again, &[parts.0, parts.1]), first, "{cut}");
    }
}

#[test]
fn complete_requests_before_a_half_close_get_responses() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let request = check("a");
    stream.write_all([&request, &request, &request[..request.len() - 1]].concat().as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let text = without_dates(&mut stream);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    assert_eq!(server.check(r#"{"policy": "api", "key": "a"}"#).decision()["remaining"], 97);
}

#[test]
fn the_fast_path_checks_tokens() {
    let server = Server::with_config(TOKENS);
    let status = |lines: &str| {
        let body = br#"{"policy": "api", "key": "a"}"#;
        request_with_headers(server.address, "POST", "/v1/check", lines, body).status
    };
    for lines in
        ["", "authorization: Bearer 0123456789abcdee\r\n", "authorization: Basic 0123456789abcdef\r\n"]
    {
        assert_eq!(status(lines), 401, "{lines}");
    }
    for lines in ["Authorization: bearer 0123456789abcdef\r\n", "X-Slidegate-Token: 0123456789abcdef\r\n"] {
        assert_eq!(status(lines), 200, "{lines}");
    }
}

/// The shutdown begins while half of a request is on the fast path. The rest of it is for the fast path or for hyper.
#[test]
fn a_request_in_progress_at_shutdown_gets_the_last_response() {
    let body = r#"{"policy": "api", "key": "a"}"#;
    for (sent_header, rest) in [("", ""), ("", FOR_HYPER), ("kept: a\r\n", ""), ("kept: a\r\n", FOR_HYPER)] {
        let mut server = Server::start();
        let mut stream = TcpStream::connect(server.address).unwrap();
        // Also on a connection with an earlier request.
        if !sent_header.is_empty() {
            stream.write_all(check("a").as_bytes()).unwrap();
            assert_eq!(read_response(&mut stream).header("connection"), None);
        }
        let request = plain("check", &format!("{sent_header}{rest}"), body);
        let cut = "POST /v1/check HTTP/1.1\r\nhost: a\r\n".len() + sent_header.len();
        stream.write_all(&request.as_bytes()[..cut]).unwrap();
        // The server is single-threaded: after responses to later requests it has read this one, so it is not idle.
        for _ in 0..3 {
            server.check(r#"{"policy": "api", "key": "other"}"#).decision();
        }
        server.begin_shutdown();
        until_draining(&server);
        stream.write_all(&request.as_bytes()[cut..]).unwrap();
        let last = read_last_response(&mut stream);
        assert_eq!(
            (last.status, last.header("connection")),
            (200, Some("close")),
            "{sent_header} {rest} {last:?}"
        );
        server.join();
    }
}

#[test]
fn http_2_after_http_1_is_rejected() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(check("a").as_bytes()).unwrap();
    read_response(&mut stream).decision();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut response = Vec::new();
    // The connection may be reset because of unread bytes.
    let _ = stream.read_to_end(&mut response);
    assert!(response.is_empty() || response.starts_with(b"HTTP/1.1 4"), "{response:?}");
}

#[test]
fn each_request_of_a_long_pipeline_gets_a_response() {
    let server = Server::start();
    let count = 200;
    let text = exchange(&server, &[&check("a").repeat(count), LAST]);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), count + 1);
    assert_eq!(text.matches(r#""allowed":true"#).count(), 100);
}
