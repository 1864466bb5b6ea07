//! Plain requests are answered without hyper, and nobody can tell.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::harness::{Server, read_last_response, read_response, request_with_headers};
use crate::shutdown::until_draining;

/// Anything that says how a connection goes on makes a request one for hyper. This says so and changes nothing.
const FOR_HYPER: &str = "te: trailers\r\n";
/// Another for hyper, so that a connection that began plainly ends by itself.
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

/// All that comes back for `parts`, each sent by itself, without the dates.
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
fn hyper_would_have_said_the_same() {
    let [plainly, by_hyper] = [(); 2].map(|()| Server::start());
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
            let ours = exchange(&plainly, &[&plain(verb, "", body), LAST]);
            let theirs = exchange(&by_hyper, &[&plain(verb, FOR_HYPER, body), LAST]);
            assert!(ours.starts_with("HTTP/1.1 "), "{verb} {body}: {ours:?}");
            assert_eq!(ours, theirs, "{verb} {body}");
        }
    }
}

#[test]
fn a_date_is_always_told() {
    let server = Server::start();
    let response = server.check(r#"{"policy": "api", "key": "a"}"#);
    let date = response.header("date").unwrap();
    assert!(date.ends_with(" GMT") && date.len() == "Sun, 15 Nov 2026 00:00:00 GMT".len(), "{date}");
}

#[test]
fn many_may_come_at_once_and_hyper_takes_over_in_between() {
    let server = Server::start();
    let asked =
        [check("a"), check("a"), plain("check", FOR_HYPER, r#"{"policy": "api", "key": "a"}"#), check("a")];
    let text = exchange(&server, &[&asked.concat(), LAST]);
    let left: Vec<_> = text
        .match_indices(r#","limit":100,"remaining":"#)
        .map(|(at, found)| &text[at + found.len()..at + found.len() + 2])
        .collect();
    assert_eq!(left, ["99", "98", "97", "96"], "{text}");
    assert!(text.ends_with("\r\n\r\nok\n"), "{text}");
}

#[test]
fn it_does_not_matter_where_a_request_is_cut() {
    let server = Server::start();
    let whole = check("a") + LAST;
    let first = exchange(&server, &[&whole]);
    for cut in 1..whole.len() {
        let again = Server::start();
        let parts = whole.split_at(cut);
        assert_eq!(exchange(&again, &[parts.0, parts.1]), first, "{cut}");
    }
}

#[test]
fn whoever_says_that_it_was_all_is_still_answered() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let whole = check("a");
    stream.write_all([&whole, &whole, &whole[..whole.len() - 1]].concat().as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let text = without_dates(&mut stream);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    assert_eq!(server.check(r#"{"policy": "api", "key": "a"}"#).decision()["remaining"], 97);
}

#[test]
fn tokens_are_asked_for_on_the_lane_too() {
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

/// With half of a request on the lane when it is told to stop: the rest may be plain, or hyper's.
#[test]
fn what_has_begun_when_it_stops_is_answered_for_the_last_time() {
    let body = r#"{"policy": "api", "key": "a"}"#;
    for (begun, rest) in [("", ""), ("", FOR_HYPER), ("kept: a\r\n", ""), ("kept: a\r\n", FOR_HYPER)] {
        let mut server = Server::start();
        let mut stream = TcpStream::connect(server.address).unwrap();
        // A connection that was used before is no other.
        if !begun.is_empty() {
            stream.write_all(check("a").as_bytes()).unwrap();
            assert_eq!(read_response(&mut stream).header("connection"), None);
        }
        let whole = plain("check", &format!("{begun}{rest}"), body);
        let cut = "POST /v1/check HTTP/1.1\r\nhost: a\r\n".len() + begun.len();
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        // The server does one thing after the other: when somebody later is answered, this was read, and is not idle.
        for _ in 0..3 {
            server.check(r#"{"policy": "api", "key": "other"}"#).decision();
        }
        server.begin_shutdown();
        until_draining(&server);
        stream.write_all(&whole.as_bytes()[cut..]).unwrap();
        let last = read_last_response(&mut stream);
        assert_eq!((last.status, last.header("connection")), (200, Some("close")), "{begun} {rest} {last:?}");
        server.join();
    }
}

#[test]
fn who_began_with_http_1_does_not_go_on_with_http_2() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(check("a").as_bytes()).unwrap();
    read_response(&mut stream).decision();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut answer = Vec::new();
    // It may be reset, with something unread.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
}

#[test]
fn many_at_once_are_answered_in_turns_and_none_is_lost() {
    let server = Server::start();
    let count = 200;
    let text = exchange(&server, &[&check("a").repeat(count), LAST]);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), count + 1);
    assert_eq!(text.matches(r#""allowed":true"#).count(), 100);
}
