//! Stopping: what has begun is finished, and what does not finish is not waited for without end.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use slidegate::ManualClock;

use crate::harness::{Server, reply};

const BODY: &str = r#"{"policy": "api", "key": "a"}"#;

/// A request whose body is still to come, and of which the server has seen the head.
pub(crate) fn begin(address: SocketAddr) -> TcpStream {
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

/// Spins until the server waits for its requests to end, and for idle connections; no time passes.
pub(crate) fn until_draining(server: &Server) {
    until_waiting(&server.clock);
}

/// The same for any server that has this clock to itself.
pub(crate) fn until_waiting(clock: &ManualClock) {
    while clock.sleepers() < 2 {
        std::thread::yield_now();
    }
}

#[test]
fn a_request_that_has_begun_is_answered() {
    let mut server = Server::start();
    let mut stream = begin(server.address);
    server.ask_to_stop();
    until_draining(&server);
    assert!(TcpStream::connect(server.address).is_err(), "nobody new is let in");
    stream.write_all(BODY.as_bytes()).unwrap();
    assert_eq!(reply(&mut stream).decision()["remaining"], 99);
    server.join();
}

#[test]
fn a_request_that_does_not_end_is_waited_for_ten_seconds() {
    for waited_ms in [9999, 10_000] {
        let mut server = Server::start();
        let mut stream = begin(server.address);
        server.ask_to_stop();
        until_draining(&server);
        server.clock.advance(waited_ms);
        if waited_ms < 10_000 {
            stream.write_all(BODY.as_bytes()).unwrap();
            assert_eq!(reply(&mut stream).decision()["remaining"], 99, "there was time left");
        }
        server.join();
    }
}

#[test]
fn a_connection_that_is_idle_holds_it_up_for_the_grace_period_alone() {
    let mut server = Server::start();
    let _idle = TcpStream::connect(server.address).unwrap();
    server.ask_to_stop();
    until_draining(&server);
    server.clock.advance(1000);
    server.join();
}
