//! HTTP/2, where many requests share a connection and none of them may keep it for ever.

use std::time::Duration;

use slidegate_server::Limits;

use super::http2_client::{Client, DATA, Frame, GO_AWAY, HEADERS, PING};
use super::{BODY, SOON, behind};
use crate::harness::Server;

/// How often a server may ask whether somebody is there before it should have hung up.
const MOST_PINGS: usize = 50;

fn impatient() -> Server {
    behind(Limits { head_timeout: SOON, ..Limits::default() })
}

/// With an answer of more than 100 kB.
fn batch() -> String {
    format!("[{}]", vec![r#"{"policy": "login", "key": "a"}"#; 1000].join(","))
}

/// Reads until the server hangs up, which it must before it has asked too often whether anybody is there.
fn until_hung_up(client: &mut Client) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = client.next() {
        frames.push(frame);
        let pings = frames.iter().filter(|frame| frame.kind == PING).count();
        assert!(pings < MOST_PINGS, "it is still there");
    }
    frames
}

#[test]
fn whoever_only_answers_pings_is_hung_up_on() {
    let server = impatient();
    until_hung_up(&mut Client::connect(server.address, 65_535));
    let mut client = Client::connect(server.address, 65_535);
    client.ask(1, "/v1/check", BODY);
    let frames = until_hung_up(&mut client);
    assert!(frames.iter().any(|frame| frame.stream == 1 && frame.is_end()), "not before it was answered");
}

#[test]
fn whoever_takes_no_answer_is_hung_up_on() {
    let server = impatient();
    for body in [BODY, &batch()] {
        let mut client = Client::connect(server.address, 0);
        for stream in [1, 3, 5] {
            client.ask(stream, "/v1/peek", body);
        }
        let frames = until_hung_up(&mut client);
        assert!(frames.iter().all(|frame| frame.kind != DATA), "{frames:?}");
    }
}

/// One answer that nobody takes, and many that are taken.
#[test]
fn an_answer_that_is_not_taken_is_not_kept_because_others_are() {
    let server = impatient();
    let mut client = Client::connect(server.address, 0);
    client.ask(1, "/v1/peek", &batch());
    let mut is_answered = |stream: u32| {
        client.ask(stream, "/v1/peek", BODY);
        for window in [0, stream] {
            client.open(window, 10_000);
        }
        loop {
            match client.next() {
                None => return false,
                Some(frame) if frame.stream == stream && frame.is_end() => return true,
                Some(_) => {}
            }
        }
    };
    assert!((1..100_000).any(|number| !is_answered(2 * number + 1)), "it is still kept");
}

#[test]
fn no_more_is_answered_than_a_client_takes() {
    let server = behind(Limits::default());
    let mut client = Client::connect(server.address, 0);
    // All of them together fit into what anybody may say before the server has told how much that is.
    let (streams, batch) = (20, format!("[{}]", [BODY; 100].join(",")));
    for number in 0..streams {
        client.ask(2 * number + 1, "/v1/peek", &batch);
    }
    let (mut begun, mut pongs, mut ended) = (0, 0, 0);
    while pongs < 20 {
        let frame = client.next().unwrap();
        assert_ne!(frame.kind, GO_AWAY, "{frame:?}");
        begun += usize::from(frame.kind == HEADERS);
        if frame.is_pong() || (frame.kind == HEADERS && begun == 8) {
            pongs += usize::from(frame.is_pong());
            client.ping();
        }
    }
    assert_eq!(begun, 8);
    client.set_window(1 << 20);
    client.open(0, 1 << 30);
    while ended < streams {
        ended += u32::from(client.next().unwrap().is_end());
    }
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server =
        behind(Limits { body_timeout: SOON, head_timeout: Duration::from_hours(1), ..Limits::default() });
    let mut client = Client::connect(server.address, 65_535);
    client.begin(1, "/v1/check");
    let mut said = Vec::new();
    loop {
        let frame = client.next().unwrap();
        if frame.kind == DATA {
            said.extend_from_slice(&frame.payload);
        }
        if frame.is_end() {
            break;
        }
    }
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains(r#""status":408"#) && said.contains("not complete within 200ms"), "{said}");
    assert_eq!(server.check(BODY).decision()["remaining"], 99, "and nothing was spent");
}
