//! The proxy's faults, between a client and a real server.
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

/// Counts on a connection of its own, which may be closed even before it is ready.
fn count(proxy: &FaultProxy) -> io::Result<i64> {
    Ok(Connection::open(proxy.address())?.command(&INCR)?.int())
}

const INCR: [&str; 2] = ["INCR", "n"];
const INCR_BYTES: u64 = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".len() as u64;
const ONE_BYTES: u64 = ":1\r\n".len() as u64;

#[test]
fn it_passes_and_counts() {
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
fn stalled_it_holds_requests_until_released() {
    let (server, proxy) = rig();
    let mut old = connect(&proxy);
    assert_eq!(old.command(&INCR).unwrap().int(), 1);
    let passed = (proxy.bytes_to_server(), proxy.bytes_to_client());

    proxy.stall();
    let mut new = connect(&proxy);
    let asking = [thread::spawn(move || old.command(&INCR)), thread::spawn(move || new.command(&INCR))];
    until("the new connection is accepted", || {
        if proxy.connections() == 2 { Ok(()) } else { Err(proxy.connections().to_string()) }
    });
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), passed);

    proxy.pass();
    let mut answers = asking.map(|asking| asking.join().unwrap().unwrap().int());
    answers.sort_unstable();
    assert_eq!(answers, [2, 3]);
}

#[test]
fn stalled_it_holds_replies_too() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    let asking = thread::spawn(move || connection.command(&["BLPOP", "list", "0"]));
    until("the server has the request", || match server.command(&["INFO", "clients"]).text() {
        info if info.contains("blocked_clients:1") => Ok(()),
        info => Err(info),
    });
    proxy.stall();
    assert_eq!(server.command(&["LPUSH", "list", "a"]).int(), 1);
    assert_eq!(server.command(&["LLEN", "list"]).int(), 0, "the server has answered");
    assert_eq!(proxy.bytes_to_client(), 0);
    proxy.pass();
    assert_eq!(asking.join().unwrap().unwrap().array()[1].text(), "a");
}

/// Longer than any test lives: who waits for its end waits in vain.
const NEVER: Duration = Duration::from_hours(1);
const SHORT: Duration = Duration::from_millis(1);

#[test]
fn slow_it_holds_each_chunk_for_a_while_in_both_directions() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.slow(SHORT);
    assert_eq!(connection.command(&INCR).unwrap().int(), 1, "a while has an end");

    let asking =
        thread::spawn(move || connection.command(&["BLPOP", "list", "0"]).map(|reply| (reply, connection)));
    until("the server has the request", || match server.command(&["INFO", "clients"]).text() {
        info if info.contains("blocked_clients:1") => Ok(()),
        info => Err(info),
    });
    proxy.slow(NEVER);
    let passed = proxy.bytes_to_client();
    assert_eq!(server.command(&["LPUSH", "list", "a"]).int(), 1);
    assert_eq!(server.command(&["LLEN", "list"]).int(), 0, "the server has answered");
    assert_eq!(proxy.bytes_to_client(), passed);
    proxy.pass();
    let (reply, mut connection) = asking.join().unwrap().unwrap();
    assert_eq!(reply.array()[1].text(), "a");

    proxy.slow(NEVER);
    let passed = proxy.bytes_to_server();
    let asking = thread::spawn(move || connection.command(&INCR));
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    assert_eq!(proxy.bytes_to_server(), passed);
    proxy.pass();
    assert_eq!(asking.join().unwrap().unwrap().int(), 2, "and nobody waits for it any longer");
}

#[test]
fn trickling_it_passes_one_byte_at_a_time_in_both_directions() {
    let (server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.trickle(SHORT);
    assert_eq!(connection.command(&INCR).unwrap().int(), 1, "every byte comes");
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), (INCR_BYTES, ONE_BYTES));

    let asking =
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
    let (_, mut connection) = asking.join().unwrap().unwrap();

    proxy.trickle(NEVER);
    let asking = thread::spawn(move || connection.command(&INCR));
    until("the first byte of the request has passed", || match proxy.bytes_to_server() - passed.0 {
        1 => Ok(()),
        bytes => Err(bytes.to_string()),
    });
    assert_eq!(server.command(&["GET", "n"]).int(), 1);
    proxy.pass();
    assert_eq!(asking.join().unwrap().unwrap().int(), 2);
}

#[test]
fn cut_reaches_those_who_are_slow_or_trickle() {
    let (server, proxy) = rig();
    for slow in [FaultProxy::slow, FaultProxy::trickle] {
        let mut connection = connect(&proxy);
        assert_eq!(connection.command(&["PING"]).unwrap().text(), "PONG");
        slow(&proxy, NEVER);
        let asking = thread::spawn(move || connection.command(&INCR));
        proxy.cut();
        assert!(asking.join().unwrap().is_err());
        proxy.pass();
    }
    assert_eq!(server.command(&["EXISTS", "n"]).int(), 0);
}

#[test]
fn cut_resets_all_connections_and_welcomes_new_ones() {
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
fn cut_reaches_those_who_are_stalled() {
    let (server, proxy) = rig();
    proxy.stall();
    let mut connection = connect(&proxy);
    until(
        "the connection is accepted",
        || if proxy.connections() == 1 { Ok(()) } else { Err(String::new()) },
    );
    let asking = thread::spawn(move || connection.command(&INCR));
    proxy.cut();
    assert!(asking.join().unwrap().is_err());
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
    // Once is once.
    let mut connection = connect(&proxy);
    assert_eq!(connection.command(&INCR).unwrap().int(), 4);
    proxy.cut_next_reply();
    assert!(connection.command(&INCR).is_err());
    assert_eq!(server.command(&["GET", "n"]).int(), 5);
}

#[test]
fn a_limit_counts_over_several_replies() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.cut_reply_after(":1\r\n:".len());
    assert_eq!(connection.command(&INCR).unwrap().int(), 1);
    assert!(connection.command(&INCR).is_err());
}

#[test]
fn passing_it_cuts_no_reply_any_more() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    proxy.cut_next_reply();
    proxy.pass();
    assert_eq!(connection.command(&INCR).unwrap().int(), 1);
}

#[test]
fn refusing_it_closes_new_connections_only() {
    let (_server, proxy) = rig();
    let mut old = connect(&proxy);
    old.command(&INCR).unwrap();
    proxy.refuse();
    assert!(count(&proxy).is_err());
    assert_eq!(old.command(&INCR).unwrap().int(), 2);
    proxy.pass();
    assert_eq!(count(&proxy).unwrap(), 3);
}

#[test]
fn a_dead_server_is_a_reset_and_it_recovers() {
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
fn dropped_it_listens_no_more() {
    let (_server, proxy) = rig();
    let mut connection = connect(&proxy);
    connection.command(&INCR).unwrap();
    let address = proxy.address();
    drop(proxy);
    assert!(connection.command(&INCR).is_err());
    until("the port is closed", || match Connection::open(address) {
        Ok(_) => Err("it is open".to_owned()),
        Err(error) => Ok(error),
    });
}
