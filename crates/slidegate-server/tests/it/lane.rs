//! Plain requests are answered without hyper, and nobody can tell.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::rig::{Server, one, request_with};
use crate::stopping::until_draining;

/// Anything that says how a connection goes on makes a request one for hyper. This says so and changes nothing.
const FOR_HYPER: &str = "te: trailers\r\n";
/// Another for hyper, so that a connection that began plainly ends by itself.
const LAST: &str = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const TOKENS: &str = "
policies: {api: {quotas: [100/1m]}}
tokens: [{name: app, token: 0123456789abcdef}]
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
    let reply = server.check(r#"{"policy": "api", "key": "a"}"#);
    let date = reply.header("date").unwrap();
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
    let server = Server::of(TOKENS);
    let status = |lines: &str| {
        let body = br#"{"policy": "api", "key": "a"}"#;
        request_with(server.address, "POST", "/v1/check", lines, body).status
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

#[test]
fn whoever_is_answered_while_it_stops_is_told_that_it_was_the_last_time() {
    let mut server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(check("a").as_bytes()).unwrap();
    assert_eq!(one(&mut stream).header("connection"), None);
    // Half of a request, so that the connection is not idle when it is told to stop.
    let whole = check("a");
    let (begun, rest) = whole.split_at(whole.len() - 1);
    stream.write_all(begun.as_bytes()).unwrap();
    server.ask_to_stop();
    until_draining(&server);
    let _ = stream.write_all(rest.as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    server.join();
    // If the rest took too long to come, there is no answer; if there is one, it says that it is the last.
    assert!(text.is_empty() || text.contains("connection: close"), "{text}");
}
