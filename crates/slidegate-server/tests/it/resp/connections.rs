//! Slow connections, idle ones, ones that never read, and ones that are open at shutdown.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate_config::Limits;
use slidegate_testkit::until;

use super::{PASSWORD, RespServer, command};
use crate::shutdown::until_clock_has_sleepers;

/// Short enough for a quick test, long enough for a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

fn server_with_short_timeout() -> RespServer {
    RespServer::with_limits_and_passwords(Limits { body_timeout: SHORT_TIMEOUT, ..Limits::default() }, None)
}

/// Reads until the server closes or resets the connection; false after a timeout.
fn is_ended(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn an_incomplete_command_times_out_and_an_idle_connection_does_not() {
    let server = server_with_short_timeout();
    let mut idle = server.stream();
    ping(&mut idle);
    let throttle = command(&["CL.THROTTLE", "k", "1", "1", "60"]);
    for sent in ["*", "*1\r\n$4\r\nPI", "PIN", &throttle[..throttle.len() - 1]] {
        let mut slow = server.stream();
        slow.write_all(sent.as_bytes()).unwrap();
        assert!(is_ended(&mut slow), "after {sent:?}");
    }
    // This connection was idle longer than all the others.
    ping(&mut idle);
    idle.write_all(throttle.as_bytes()).unwrap();
    let mut reply = [0; 26];
    idle.read_exact(&mut reply).unwrap();
    assert!(reply.starts_with(b"*5\r\n:0\r\n:2\r\n:1\r\n"), "no incomplete command was counted");
}

#[test]
fn an_unauthenticated_connection_times_out_even_if_it_sends_commands() {
    let server = RespServer::with_password(Limits { head_timeout: 5 * SHORT_TIMEOUT, ..Limits::default() });
    let mut authenticated = server.stream();
    authenticated.write_all(format!("AUTH {PASSWORD}\r\n").as_bytes()).unwrap();
    let mut reply = [0; 5];
    authenticated.read_exact(&mut reply).unwrap();
    assert!(is_ended(&mut server.stream()), "a silent connection");
    let mut active = server.stream();
    while active.write_all(b"PING\r\n").is_ok() && active.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
    assert!(is_ended(&mut active), "a connection that sends other commands");
    ping(&mut authenticated);
    // RESET ends the authentication.
    authenticated.write_all(b"RESET\r\n").unwrap();
    assert!(is_ended(&mut authenticated), "a connection after RESET");
}

#[test]
fn a_command_may_arrive_byte_by_byte() {
    let server = RespServer::start();
    let mut stream = server.stream();
    for byte in command(&["PING", "a\r\nb"]).bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"$4\r\na\r\nb\r\n");
}

/// Memory for replies that a client does not read is bounded.
#[test]
fn a_client_that_never_reads_is_disconnected() {
    let server = server_with_short_timeout();
    let mut stream = server.stream();
    let echo = command(&["ECHO", &"a".repeat(60_000)]);
    // Far more than the socket buffers of both sides hold.
    let written = (0..10_000).take_while(|_| stream.write_all(echo.as_bytes()).is_ok()).count();
    assert!(written < 10_000, "the server accepted all commands");
    ping(&mut server.stream());
}

/// The replies exceed the bound for unread ones, but this client reads them.
#[test]
fn a_long_pipeline_gets_every_reply() {
    const COUNT: usize = 200_000;
    let server = RespServer::start();
    let mut stream = server.stream();
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        for _ in 0..COUNT / 1000 {
            stream.write_all("PING\r\n".repeat(1000).as_bytes()).unwrap();
        }
        stream
    });
    let mut replies = vec![0; 7 * COUNT];
    reader.read_exact(&mut replies).unwrap();
    assert!(replies.chunks(7).all(|pong| pong == b"+PONG\r\n"));
    drop(writer.join());
}

#[test]
fn a_protocol_error_ends_the_connection_with_the_reason() {
    let server = RespServer::start();
    for (sent, reason) in [
        ("*1025\r\n", "invalid multibulk length"),
        ("*1\r\n$65537\r\n", "invalid bulk length"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("ECHO \"a\r\n", "unbalanced quotes in request"),
    ] {
        let replies = server.replies_to(format!("PING\r\n{sent}PING\r\n"));
        assert_eq!(replies, format!("+PONG\r\n-ERR Protocol error: {reason}\r\n"), "{sent:?}");
    }
    let many = format!("*100\r\n{}", "$1000\r\n".to_owned() + &"a".repeat(1000) + "\r\n").repeat(1);
    let large = many.clone() + &format!("$1000\r\n{}\r\n", "a".repeat(1000)).repeat(70);
    let reply = server.replies_to(large);
    assert_eq!(reply, "-ERR Protocol error: too big request\r\n");
}

#[test]
fn shutdown_ends_idle_connections_and_completes_started_commands() {
    let mut server = RespServer::start();
    let [mut idle, mut late, mut started] = [(); 3].map(|()| server.stream());
    ping(&mut idle);
    ping(&mut late);
    started.write_all(b"PING\r\n*1\r\n$4\r\nPI").unwrap();
    let mut first = [0; 7];
    started.read_exact(&mut first).unwrap();
    server.begin_shutdown();
    until_clock_has_sleepers(&server.clock);
    // Commands that arrive during the shutdown are executed, and then the connection ends.
    server.clock.advance(999);
    late.write_all(b"PING\r\nPING\r\n").unwrap();
    let mut replies = Vec::new();
    late.read_to_end(&mut replies).unwrap();
    assert_eq!(replies, b"+PONG\r\n+PONG\r\n");
    server.clock.advance(1);
    assert!(is_ended(&mut idle));
    drop((idle, late));
    started.write_all(b"NG\r\n").unwrap();
    let mut rest = Vec::new();
    started.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"+PONG\r\n");
    server.join();
}

#[test]
fn a_connection_beyond_the_maximum_is_closed() {
    let server = RespServer::with_limits_and_passwords(Limits { connections: 1, ..Limits::default() }, None);
    let mut accepted = server.stream();
    ping(&mut accepted);
    assert!(is_ended(&mut server.stream()));
    ping(&mut accepted);
}

/// Sends one command after another until the server ends the connection; false if a command sent before the end was
/// visible gets no reply.
fn are_all_commands_completed(mut stream: TcpStream, completed: &AtomicUsize) -> bool {
    stream.set_nodelay(true).unwrap();
    loop {
        stream.set_nonblocking(true).unwrap();
        let is_ended = matches!(stream.peek(&mut [0]), Ok(0));
        stream.set_nonblocking(false).unwrap();
        if is_ended {
            return true;
        }
        let mut pong = [0; 7];
        if stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut pong)).is_err() {
            return false;
        }
        completed.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn shutdown_loses_no_command_on_open_connections() {
    for round in 0..3 {
        let mut server = RespServer::start();
        let completed = AtomicUsize::new(0);
        let lost: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..48)
                .map(|_| {
                    let (stream, completed) = (server.stream(), &completed);
                    scope.spawn(move || usize::from(!are_all_commands_completed(stream, completed)))
                })
                .collect();
            until("all clients send commands", || match completed.load(Ordering::Relaxed) {
                count if count >= 2000 => Ok(()),
                count => Err(count.to_string()),
            });
            server.begin_shutdown();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert_eq!(lost, 0, "round {round}");
        server.join();
    }
}
