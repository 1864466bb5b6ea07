//! Graceful shutdown: requests in progress are completed, up to a deadline of 10 s; idle connections are closed after 1
//! s.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use slidegate::ManualClock;

use crate::harness::{Server, read_last_response};

const BODY: &str = r#"{"policy": "api", "key": "a"}"#;

/// Sends the head of a request and waits until the server has read it. The body is still missing.
pub(crate) fn begin_request(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = BODY.len();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut interim = [0; 25];
    std::io::Read::read_exact(&mut stream, &mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// Spins until the server waits for requests in progress and for idle connections. The clock does not advance.
pub(crate) fn until_draining(server: &Server) {
    until_clock_has_sleepers(&server.clock);
}

/// Spins until both timers of a shutdown sleep on `clock`, which only one server may use.
pub(crate) fn until_clock_has_sleepers(clock: &ManualClock) {
    while clock.sleepers() < 2 {
        std::thread::yield_now();
    }
}

#[test]
fn shutdown_completes_a_request_in_progress() {
    let mut server = Server::start();
    let mut stream = begin_request(server.address);
    server.begin_shutdown();
    until_draining(&server);
    assert!(TcpStream::connect(server.address).is_err(), "the listener is closed");
    stream.write_all(BODY.as_bytes()).unwrap();
    assert_eq!(read_last_response(&mut stream).decision()["remaining"], 99);
    server.join();
}

#[test]
fn shutdown_waits_ten_seconds_for_an_unfinished_request() {
    for waited_ms in [9999, 10_000] {
        let mut server = Server::start();
        let mut stream = begin_request(server.address);
        server.begin_shutdown();
        until_draining(&server);
        server.clock.advance(waited_ms);
        if waited_ms < 10_000 {
            stream.write_all(BODY.as_bytes()).unwrap();
            assert_eq!(
                read_last_response(&mut stream).decision()["remaining"],
                99,
                "completed before the deadline"
            );
        }
        server.join();
    }
}

#[test]
fn an_idle_connection_delays_the_shutdown_by_the_grace_period_only() {
    let mut server = Server::start();
    let _idle = TcpStream::connect(server.address).unwrap();
    server.begin_shutdown();
    until_draining(&server);
    server.clock.advance(1000);
    server.join();
}
