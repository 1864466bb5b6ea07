//! HTTP/2: no client and no stream keeps a connection or its buffers forever.

use std::time::Duration;

use slidegate_config::Limits;

use super::http2_client::{Client, DATA, Frame, GO_AWAY, HEADERS, PING};
use super::{BODY, SHORT_TIMEOUT, with_limits};
use crate::harness::Server;

/// Number of keep-alive pings after which the server should have closed the connection.
const MAX_PINGS: usize = 50;

fn server_with_short_timeout() -> Server {
    with_limits(Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() })
}

/// A batch with a response of more than 100 kB.
fn batch() -> String {
    format!("[{}]", vec![r#"{"policy": "login", "key": "a"}"#; 1000].join(","))
}

/// Reads frames until the server closes the connection, which must happen within `MAX_PINGS` pings.
fn frames_until_close(client: &mut Client) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = client.next_frame() {
        frames.push(frame);
        let pings = frames.iter().filter(|frame| frame.kind == PING).count();
        assert!(pings < MAX_PINGS, "the connection is still open");
    }
    frames
}

#[test]
fn a_client_that_only_acknowledges_pings_times_out() {
    let server = server_with_short_timeout();
    frames_until_close(&mut Client::connect(server.address, 65_535));
    let mut client = Client::connect(server.address, 65_535);
    client.send_request(1, "/v1/check", BODY);
    let frames = frames_until_close(&mut client);
    assert!(
        frames.iter().any(|frame| frame.stream == 1 && frame.is_end_of_stream()),
        "no response before the close"
    );
}

#[test]
fn a_client_with_a_closed_window_times_out() {
    let server = server_with_short_timeout();
    for body in [BODY, &batch()] {
        let mut client = Client::connect(server.address, 0);
        for stream in [1, 3, 5] {
            client.send_request(stream, "/v1/peek", body);
        }
        let frames = frames_until_close(&mut client);
        assert!(frames.iter().all(|frame| frame.kind != DATA), "{frames:?}");
    }
}

/// The client takes no byte of one response and all bytes of many others.
#[test]
fn an_unread_response_times_out_although_others_are_read() {
    let server = server_with_short_timeout();
    let mut client = Client::connect(server.address, 0);
    client.send_request(1, "/v1/peek", &batch());
    let mut gets_response = |stream: u32| {
        client.send_request(stream, "/v1/peek", BODY);
        for window in [0, stream] {
            client.add_window(window, 10_000);
        }
        loop {
            match client.next_frame() {
                None => return false,
                Some(frame) if frame.stream == stream && frame.is_end_of_stream() => return true,
                Some(_) => {}
            }
        }
    };
    assert!((1..100_000).any(|number| !gets_response(2 * number + 1)), "the connection is still open");
}

#[test]
fn the_server_limits_concurrent_unread_responses() {
    let server = with_limits(Limits::default());
    let mut client = Client::connect(server.address, 0);
    // All bodies together fit into the default windows, which hold before the settings of the server arrive.
    let (streams, batch) = (20, format!("[{}]", [BODY; 100].join(",")));
    for number in 0..streams {
        client.send_request(2 * number + 1, "/v1/peek", &batch);
    }
    let (mut started, mut ping_acks, mut ended) = (0, 0, 0);
    while ping_acks < 20 {
        let frame = client.next_frame().unwrap();
        assert_ne!(frame.kind, GO_AWAY, "{frame:?}");
        started += usize::from(frame.kind == HEADERS);
        if frame.is_ping_ack() || (frame.kind == HEADERS && started == 8) {
            ping_acks += usize::from(frame.is_ping_ack());
            client.ping();
        }
    }
    assert_eq!(started, 8);
    client.set_window(1 << 20);
    client.add_window(0, 1 << 30);
    while ended < streams {
        ended += u32::from(client.next_frame().unwrap().is_end_of_stream());
    }
}

#[test]
fn an_incomplete_body_times_out() {
    let server = with_limits(Limits {
        body_timeout: SHORT_TIMEOUT,
        head_timeout: Duration::from_hours(1),
        ..Limits::default()
    });
    let mut client = Client::connect(server.address, 65_535);
    client.send_headers(1, "/v1/check");
    let mut body = Vec::new();
    loop {
        let frame = client.next_frame().unwrap();
        if frame.kind == DATA {
            body.extend_from_slice(&frame.payload);
        }
        if frame.is_end_of_stream() {
            break;
        }
    }
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains(r#""status":408"#) && body.contains("not complete within 200ms"), "{body}");
    assert_eq!(server.check(BODY).decision()["remaining"], 99, "nothing was charged");
}
