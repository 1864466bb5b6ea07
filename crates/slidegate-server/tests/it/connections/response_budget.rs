//! The shared memory budget of large responses: small batches with huge responses from clients that do not read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;
use slidegate::ManualClock;
use slidegate::store::MemoryStore;
use slidegate_config::Limits;
use slidegate_server::ListenerSettings;

use super::SHORT_TIMEOUT;
use super::http2_client::{Client, DATA};
use crate::harness::{START_MS, Server, request};
use crate::process::{ServeProcess, TempFile, slidegate};

/// As many requests as fit into a body of the fast path.
const BATCH: usize = 640;

/// A policy with 16 quotas of the maximum name length. All of them deny the second request of a key.
fn config() -> String {
    let quota = |number: usize| json!({"limit": 1, "window": "1h", "name": format!("{number:0>256}")});
    let quotas: Vec<_> = (0..16).map(quota).collect();
    json!({"policies": {"w": {"quotas": quotas}, "api": {"quotas": ["1000000/1m"]}}}).to_string()
}

/// A batch of 16 kB with a response of nearly 7 MB, more than the socket buffers of both sides hold.
fn batch() -> String {
    format!("[{}]", vec![r#"{"policy":"w","key":"a"}"#; BATCH].join(","))
}

/// Exhausts all quotas, so that later responses name each quota twice: in `quotas` and in `violated`.
fn exhaust(address: SocketAddr) {
    let response = request(address, "POST", "/v1/check", br#"{"policy":"w","key":"a"}"#);
    assert_eq!(response.decision()["allowed"], true);
}

/// Header lines that select the fast path or hyper.
const HEADER_LINES: [&str; 2] = ["", "te: trailers\r\n"];

fn send_batch(address: SocketAddr, lines: &str) -> TcpStream {
    let (mut stream, body) = (TcpStream::connect(address).unwrap(), batch());
    let head = format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\n{lines}content-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

/// Reads the status: 200 if the budget admitted the response, else 503.
fn is_admitted(stream: &mut TcpStream) -> bool {
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    match &first {
        b"HTTP/1.1 200" => true,
        b"HTTP/1.1 503" => false,
        other => panic!("{}", other.escape_ascii()),
    }
}

fn is_admitted_over_http2(client: &mut Client) -> bool {
    // The window of one byte is enough to distinguish a batch from an error.
    let mut body = Vec::new();
    while body.is_empty() {
        let frame = client.next_frame().unwrap();
        if frame.kind == DATA {
            body = frame.payload;
        }
    }
    body.starts_with(b"[")
}

fn exhaust_budget<T>(server: &ServeProcess, mut send: impl FnMut() -> (T, bool)) {
    let mut clients = Vec::new();
    loop {
        let (client, is_admitted) = send();
        clients.push(client);
        if !is_admitted {
            break;
        }
        assert!(clients.len() < 50, "the budget is never exhausted");
    }
    assert!(clients.len() > 5, "the budget admitted only {}", clients.len());
    // Smaller responses are still admitted: of 2 results, and of 200.
    for count in [2, 200] {
        let small = server.check(&json!(vec![json!({"policy": "api", "key": "b"}); count]));
        assert_eq!(small.decision()[1]["allowed"], true, "smaller responses are still admitted");
    }
}

#[test]
fn large_responses_share_a_budget() {
    let config = TempFile::new("listening", &config());
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    exhaust(server.address());
    let peek_batch = || request(server.address(), "POST", "/v1/peek", batch().as_bytes());
    for lines in HEADER_LINES {
        exhaust_budget(&server, || {
            let mut stream = send_batch(server.address(), lines);
            let is_admitted = is_admitted(&mut stream);
            (stream, is_admitted)
        });
        while peek_batch().status != 200 {}
    }
    exhaust_budget(&server, || {
        let mut client = Client::connect(server.address(), 1);
        client.send_request(1, "/v1/peek", &batch());
        let is_admitted = is_admitted_over_http2(&mut client);
        (client, is_admitted)
    });
    while peek_batch().status != 200 {}
}

fn server_with_short_timeout() -> Server {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let options = ListenerSettings {
        limits: Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() },
        ..ListenerSettings::default()
    };
    Server::with_config_and_store(&config(), options, store, clock)
}

/// The client keeps reading, but too slowly.
#[test]
fn a_large_response_that_is_read_too_slowly_times_out() {
    let server = server_with_short_timeout();
    exhaust(server.address);
    for lines in HEADER_LINES {
        let mut stream = send_batch(server.address, lines);
        let (mut piece, mut read, mut head) = ([0; 2], 0, Vec::new());
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            read += count;
            if head.len() < 1000 {
                head.extend_from_slice(&piece[..count]);
            }
        }
        let head = String::from_utf8_lossy(&head);
        let (_, rest) = head.split_once("content-length: ").unwrap();
        let length: usize = rest.split_once('\r').unwrap().0.parse().unwrap();
        assert!(read < length, "{read} of {length} bytes were read");
    }
}

#[test]
fn a_large_http2_response_that_is_read_too_slowly_times_out() {
    let server = server_with_short_timeout();
    exhaust(server.address);
    let mut client = Client::connect(server.address, 0);
    client.send_request(1, "/v1/peek", &batch());
    let mut read = 0;
    client.add_window(0, 1 << 30);
    client.add_window(1, 200);
    while let Some(frame) = client.next_frame() {
        if frame.kind == DATA {
            read += frame.payload.len();
            assert!(!frame.is_end_of_stream(), "all {read} bytes were read");
            client.add_window(1, 200);
        }
    }
    assert!(read > 0, "the connection was closed at once");
}
