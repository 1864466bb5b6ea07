//! Few words that ask for very many, by those who do not listen to them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;
use slidegate::{ManualClock, MemoryStore};
use slidegate_server::{Door, Limits};

use super::SOON;
use super::http2_client::{Client, DATA};
use crate::harness::{START_MS, Server, request};
use crate::process::{ServeProcess, TempFile, slidegate};

/// As many as fit into what is answered without hyper.
const BATCH: usize = 640;

/// Sixteen quotas whose names are as long as names may be. All of them deny.
fn config() -> String {
    let quota = |place: usize| json!({"limit": 1, "window": "1h", "name": format!("{place:0>256}")});
    let quotas: Vec<_> = (0..16).map(quota).collect();
    json!({"policies": {"w": {"quotas": quotas}, "api": {"quotas": ["1000000/1m"]}}}).to_string()
}

/// Asks in 16 kB for nearly seven million, which is more than the two systems between would keep for anybody.
fn batch() -> String {
    format!("[{}]", vec![r#"{"policy":"w","key":"a"}"#; BATCH].join(","))
}

/// After this each answer names all quotas twice.
fn exhaust(address: SocketAddr) {
    let response = request(address, "POST", "/v1/check", br#"{"policy":"w","key":"a"}"#);
    assert_eq!(response.decision()["allowed"], true);
}

/// The ways to ask, with or without hyper.
const LINES: [&str; 2] = ["", "te: trailers\r\n"];

fn ask(address: SocketAddr, lines: &str) -> TcpStream {
    let (mut stream, body) = (TcpStream::connect(address).unwrap(), batch());
    let head = format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\n{lines}content-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

/// Whoever has heard how an answer begins knows that there was room for it.
fn is_answered(stream: &mut TcpStream) -> bool {
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    match &first {
        b"HTTP/1.1 200" => true,
        b"HTTP/1.1 503" => false,
        other => panic!("{}", other.escape_ascii()),
    }
}

fn is_heard_by_http2(client: &mut Client) -> bool {
    // No window for more than a refusal.
    let mut said = Vec::new();
    while said.is_empty() {
        let frame = client.next().unwrap();
        if frame.kind == DATA {
            said = frame.payload;
        }
    }
    said.starts_with(b"[")
}

fn crowd<T>(server: &ServeProcess, mut come: impl FnMut() -> (T, bool)) {
    let mut inside = Vec::new();
    loop {
        let (guest, is_answered) = come();
        inside.push(guest);
        if !is_answered {
            break;
        }
        assert!(inside.len() < 50, "there is always room for one more");
    }
    assert!(inside.len() > 5, "there was room for no more than {}", inside.len());
    // Without room for all, and with room for answers that are not as large.
    for count in [2, 200] {
        let small = server.check(&json!(vec![json!({"policy": "api", "key": "b"}); count]));
        assert_eq!(small.decision()[1]["allowed"], true, "whoever asks for little is answered");
    }
}

#[test]
fn answers_to_batches_have_only_so_much_room_together() {
    let config = TempFile::new("listening", &config());
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    exhaust(server.address());
    let whole = || request(server.address(), "POST", "/v1/peek", batch().as_bytes());
    for lines in LINES {
        crowd(&server, || {
            let mut stream = ask(server.address(), lines);
            let is_answered = is_answered(&mut stream);
            (stream, is_answered)
        });
        while whole().status != 200 {}
    }
    crowd(&server, || {
        let mut client = Client::connect(server.address(), 1);
        client.ask(1, "/v1/peek", &batch());
        let is_heard = is_heard_by_http2(&mut client);
        (client, is_heard)
    });
    while whole().status != 200 {}
}

fn impatient() -> Server {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let options = Door { limits: Limits { head_timeout: SOON, ..Limits::default() }, ..Door::default() };
    Server::with_config_and_store(&config(), options, store, clock)
}

/// There is always some of it that is taken, but it would take far too long.
#[test]
fn a_large_answer_is_not_kept_for_whoever_takes_it_bit_by_bit() {
    let server = impatient();
    exhaust(server.address);
    for lines in LINES {
        let mut stream = ask(server.address, lines);
        let (mut bit, mut taken, mut head) = ([0; 2], 0, Vec::new());
        while let Ok(count @ 1..) = stream.read(&mut bit) {
            taken += count;
            if head.len() < 1000 {
                head.extend_from_slice(&bit[..count]);
            }
        }
        let head = String::from_utf8_lossy(&head);
        let (_, rest) = head.split_once("content-length: ").unwrap();
        let length: usize = rest.split_once('\r').unwrap().0.parse().unwrap();
        assert!(taken < length, "{taken} of {length} were taken");
    }
}

#[test]
fn nor_with_http2() {
    let server = impatient();
    exhaust(server.address);
    let mut client = Client::connect(server.address, 0);
    client.ask(1, "/v1/peek", &batch());
    let mut taken = 0;
    client.open(0, 1 << 30);
    client.open(1, 200);
    while let Some(frame) = client.next() {
        if frame.kind == DATA {
            taken += frame.payload.len();
            assert!(!frame.is_end(), "all {taken} bytes were taken");
            client.open(1, 200);
        }
    }
    assert!(taken > 0, "it was hung up on at once");
}
