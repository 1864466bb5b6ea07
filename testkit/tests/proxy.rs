//! Faults of the proxy between a client and a real server.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use slidegate_testkit::{Connection, FaultProxy, Flavour, Server, until};

fn rig() -> (Server, FaultProxy) {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    (server, proxy)
}

fn connect(proxy: &FaultProxy) -> Connection {
    Connection::open(proxy.address()).unwrap()
}

/// Sends one request on a new connection, which the proxy may close before it is ready.
fn count(proxy: &FaultProxy) -> io::Result<i64> {
    Ok(Connection::open(proxy.address())?.command(&INCR)?.int())
}

const INCR: [&str; 2] = ["INCR", "n"];
const INCR_BYTES: u64 = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".len() as u64;
const ONE_BYTES: u64 = ":1\r\n".len() as u64;

#[test]
fn the_proxy_relays_and_counts_bytes() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    assert_eq!(connection.command(&INCR).unwrap().int(), 1);
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), (INCR_BYTES, ONE_BYTES));
    assert_eq!(proxy.connections(), 1);

    let large = "x".repeat(10_000_000);
    connection.command(&["SET", "large", &large]).unwrap().ok();
    assert_eq!(connection.command(&["GET", "large"]).unwrap().text(), large);
    assert_eq!(server.command(&["STRLEN", "large"]).int(), 10_000_000);
}

#[test]
fn a_stalled_proxy_holds_requests_until_it_passes() {
    let (server, proxy) = rig();
    let mut old = connect(&proxy);
    assert_eq!(old.command(&INCR).unwrap().int(), 1);
    let passed = (proxy.bytes_to_server(), proxy.bytes_to_client());

    proxy.stall();
    let mut new = connect(&proxy);
    let pending = [thread::spawn(move || old.command(&INCR)), thread::spawn(move || new.command(&INCR))];
    until("the new connection is accepted", || {
        if proxy.connections() == 2 { Ok(()) } else { Err(proxy.connections().to_string()) }
    });
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), passed);

    proxy.pass();
    let mut replies = pending.map(|request| request.join().unwrap().unwrap().int());
    replies.sort_unstable();
    assert_eq!(replies, [2, 3]);
}

#[test]
fn a_stalled_proxy_holds_replies() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    let pending = thread::spawn(move || connection.command(&["BLPOP", "list", "0"]));
    until("the server has the request", || match server.command(&["INFO", "clients"]).text() {
        info if info.contains("blocked_clients:1") => Ok(()),
        info => Err(info),
    });
    proxy.stall();
    assert_eq!(server.command(&["LPUSH", "list", "a"]).int(), 1);
    assert_eq!(server.command(&["LLEN", "list"]).int(), 0, "the server has replied");
    assert_eq!(proxy.bytes_to_client(), 0);
    proxy.pass();
    assert_eq!(pending.join().unwrap().unwrap().array()[1].text(), "a");
}

/// Longer than any test: a test that waits for its end would hang.
const NEVER: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(1);

#[test]
fn a_slow_proxy_delays_each_chunk_in_both_directions() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.slow(SHORT);
    assert_eq!(connection.command(&INCR).unwrap().int(), 1, "the delay ends");

    let pending =
        thread::spawn(move || connection.command(&["BLPOP", "list", "0"]).map(|reply| (reply, connection)));
    until("the server has the request", || match server.command(&["INFO", "clients"]).text() {
        info if info.contains("blocked_clients:1") => Ok(()),
        info => Err(info),
    });
    proxy.slow(NEVER);
    let passed = proxy.bytes_to_client();
    assert_eq!(server.command(&["LPUSH", "list", "a"]).int(), 1);
    assert_eq!(server.command(&["LLEN", "list"]).int(), 0, "the server has replied");
    assert_eq!(proxy.bytes_to_client(), passed);
    proxy.pass();
    let (reply, mut connection) = pending.join().unwrap().unwrap();
    assert_eq!(reply.array()[1].text(), "a");

    proxy.slow(NEVER);
    let passed = proxy.bytes_to_server();
    let pending = thread::spawn(move || connection.command(&INCR));
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    assert_eq!(proxy.bytes_to_server(), passed);
    proxy.pass();
    assert_eq!(pending.join().unwrap().unwrap().int(), 2, "passing ends a delay in progress");
}

#[test]
fn a_trickling_proxy_relays_one_byte_at_a_time_in_both_directions() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.trickle(SHORT);
    assert_eq!(connection.command(&INCR).unwrap().int(), 1, "every byte passes");
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), (INCR_BYTES, ONE_BYTES));

    let pending =
        thread::spawn(move || connection.command(&["BLPOP", "list", "0"]).map(|reply| (reply, connection)));
    until("the server has the request", || match server.command(&["INFO", "clients"]).text() {
        info if info.contains("blocked_clients:1") => Ok(()),
        info => Err(info),
    });
    let passed = (proxy.bytes_to_server(), proxy.bytes_to_client());
    proxy.trickle(NEVER);
    server.command(&["LPUSH", "list", "a"]);
    until("the first byte of the reply has passed", || match proxy.bytes_to_client() - passed.1 {
        1 => Ok(()),
        bytes => Err(bytes.to_string()),
    });
    proxy.pass();
    let (_, mut connection) = pending.join().unwrap().unwrap();

    proxy.trickle(NEVER);
    let pending = thread::spawn(move || connection.command(&INCR));
    until("the first byte of the request has passed", || match proxy.bytes_to_server() - passed.0 {
        1 => Ok(()),
        bytes => Err(bytes.to_string()),
    });
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    proxy.pass();
    assert_eq!(pending.join().unwrap().unwrap().int(), 2);
}

#[test]
fn a_cut_resets_slow_and_trickling_connections() {
    let (server, proxy) = rig();
    for slow in [FaultProxy::slow, FaultProxy::trickle] {
        let mut connection = connect(&proxy);
        assert_eq!(connection.command(&["PING"]).unwrap().text(), "PONG");
        slow(&proxy, NEVER);
        let pending = thread::spawn(move || connection.command(&INCR));
        proxy.cut();
        assert!(pending.join().unwrap().is_err());
        proxy.pass();
    }
    assert_eq!(server.command(&["EXISTS", "n"]).int(), 0);
}

#[test]
fn a_cut_resets_all_connections_and_accepts_new_ones() {
    let (_server, proxy) = rig();
    let mut connections = [connect(&proxy), connect(&proxy)];
    for connection in &mut connections {
        connection.command(&INCR).unwrap();
    }
    proxy.cut();
    for connection in &mut connections {
        let error = connection.command(&INCR).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
    }
    assert_eq!(count(&proxy).unwrap(), 3);
}

#[test]
fn a_cut_resets_stalled_connections() {
    let (server, proxy) = rig();
    proxy.stall();
    let mut connection = connect(&proxy);
    until(
        "the connection is accepted",
        || if proxy.connections() == 1 { Ok(()) } else { Err(String::new()) },
    );
    let pending = thread::spawn(move || connection.command(&INCR));
    proxy.cut();
    assert!(pending.join().unwrap().is_err());
    assert_eq!(server.command(&["EXISTS", "n"]).int(), 0);
}

#[test]
fn a_cut_reply_leaves_the_request_executed() {
    let (server, proxy) = rig();
    for (bytes, executed) in [(0, 1), (1, 2), (3, 3)] {
        let mut connection = connect(&proxy);
        let before = proxy.bytes_to_client();
        proxy.cut_reply_after(bytes);
        let error = connection.command(&INCR).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(proxy.bytes_to_client() - before, bytes as u64);
        assert_eq!(server.command(&["GET", "n"]).int(), executed);
    }
    // The limit applies once.
    let mut connection = connect(&proxy);
    assert_eq!(connection.command(&INCR).unwrap().int(), 4);
    proxy.cut_next_reply();
    assert!(connection.command(&INCR).is_err());
    assert_eq!(server.command(&["GET", "n"]).int(), 5);
}

#[test]
fn a_reply_limit_spans_several_replies() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.cut_reply_after(":1\r\n:".len());
    assert_eq!(connection.command(&INCR).unwrap().int(), 1);
    assert!(connection.command(&INCR).is_err());
}

#[test]
fn passing_cancels_a_pending_cut() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.cut_next_reply();
    proxy.pass();
    assert_eq!(connection.command(&INCR).unwrap().int(), 1);
}

#[test]
fn only_new_connections_are_closed_at_once() {
    let (_server, proxy) = rig();
    let mut old = connect(&proxy);
    old.command(&INCR).unwrap();
    proxy.refuse_connections();
    assert!(count(&proxy).is_err());
    assert_eq!(old.command(&INCR).unwrap().int(), 2);
    proxy.pass();
    assert_eq!(count(&proxy).unwrap(), 3);
}

#[test]
fn a_dead_server_resets_connections_until_it_restarts() {
    let (server, proxy) = rig();
    let mut old = connect(&proxy);
    old.command(&INCR).unwrap();
    server.kill();
    assert!(old.command(&INCR).is_err());
    assert!(count(&proxy).is_err());
    server.restart();
    assert_eq!(count(&proxy).unwrap(), 1);
}

#[test]
fn a_dropped_proxy_closes_its_port() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    connection.command(&INCR).unwrap();
    let address = proxy.address();
    drop(proxy);
    assert!(connection.command(&INCR).is_err());
    until("the port is closed", || match Connection::open(address) {
        Ok(_) => Err("the port is open".to_owned()),
        Err(error) => Ok(error),
    });
}
