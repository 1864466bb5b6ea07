//! Connections: slow ones, idle ones, those that only write, those that are there when it stops.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate_config::Limits;
use slidegate_testkit::until;

use super::{PASSWORD, Resp, command};
use crate::shutdown::until_clock_has_sleepers;

/// So short that a test need not wait, and so long that a busy machine makes it.
const SOON: Duration = Duration::from_millis(200);

fn impatient() -> Resp {
    Resp::with(Limits { body_timeout: SOON, ..Limits::default() }, None)
}

/// Whether the other side has ended it, be it politely or not.
fn is_over(stream: &mut TcpStream) -> bool {
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
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn half_a_command_is_not_waited_for_and_an_idle_connection_is() {
    let server = impatient();
    let mut idle = server.stream();
    ping(&mut idle);
    let whole = command(&["CL.THROTTLE", "k", "1", "1", "60"]);
    for said in ["*", "*1\r\n$4\r\nPI", "PIN", &whole[..whole.len() - 1]] {
        let mut slow = server.stream();
        slow.write_all(said.as_bytes()).unwrap();
        assert!(is_over(&mut slow), "after {said:?}");
    }
    // It has been silent for longer than all of them.
    ping(&mut idle);
    idle.write_all(whole.as_bytes()).unwrap();
    let mut answer = [0; 26];
    idle.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"*5\r\n:0\r\n:2\r\n:1\r\n"), "none of the halves was counted");
}

/// Whether it is silent, or talks all the time.
#[test]
fn who_says_no_password_is_not_waited_for() {
    let server = Resp::closed(Limits { head_timeout: 5 * SOON, ..Limits::default() });
    let mut known = server.stream();
    known.write_all(format!("AUTH {PASSWORD}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 5];
    known.read_exact(&mut answer).unwrap();
    assert!(is_over(&mut server.stream()), "who says nothing");
    let mut talker = server.stream();
    while talker.write_all(b"PING\r\n").is_ok() && talker.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
    assert!(is_over(&mut talker), "who says something else");
    ping(&mut known);
    // No better than before.
    known.write_all(b"RESET\r\n").unwrap();
    assert!(is_over(&mut known), "who has been known");
}

#[test]
fn a_command_may_come_in_pieces() {
    let server = Resp::start();
    let mut stream = server.stream();
    for byte in command(&["PING", "a\r\nb"]).bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$4\r\na\r\nb\r\n");
}

/// Who writes and never reads fills what the system and the server keep for it, and no more.
#[test]
fn who_writes_without_reading_is_held_up_and_then_let_go() {
    let server = impatient();
    let mut stream = server.stream();
    let echo = command(&["ECHO", &"a".repeat(60_000)]);
    // Far more than what both sides' sockets hold.
    let written = (0..10_000).take_while(|_| stream.write_all(echo.as_bytes()).is_ok()).count();
    assert!(written < 10_000, "all of it was taken");
    ping(&mut server.stream());
}

/// More than is kept for whoever does not read, but those who do get to it.
#[test]
fn who_writes_much_before_reading_gets_every_answer() {
    const COUNT: usize = 200_000;
    let server = Resp::start();
    let mut stream = server.stream();
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        for _ in 0..COUNT / 1000 {
            stream.write_all("PING\r\n".repeat(1000).as_bytes()).unwrap();
        }
        stream
    });
    let mut answer = vec![0; 7 * COUNT];
    reader.read_exact(&mut answer).unwrap();
    assert!(answer.chunks(7).all(|pong| pong == b"+PONG\r\n"));
    drop(writer.join());
}

#[test]
fn what_is_no_command_ends_the_connection_with_a_reason() {
    let server = Resp::start();
    for (said, why) in [
        ("*1025\r\n", "invalid multibulk length"),
        ("*1\r\n$65537\r\n", "invalid bulk length"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("ECHO \"a\r\n", "unbalanced quotes in request"),
    ] {
        let answer = server.answer(format!("PING\r\n{said}PING\r\n"));
        assert_eq!(answer, format!("+PONG\r\n-ERR Protocol error: {why}\r\n"), "{said:?}");
    }
    let many = format!("*100\r\n{}", "$1000\r\n".to_owned() + &"a".repeat(1000) + "\r\n").repeat(1);
    let large = many.clone() + &format!("$1000\r\n{}\r\n", "a".repeat(1000)).repeat(70);
    let answer = server.answer(large);
    assert_eq!(answer, "-ERR Protocol error: too big request\r\n");
}

#[test]
fn a_stop_ends_idle_connections_and_answers_what_has_begun() {
    let mut server = Resp::start();
    let [mut idle, mut late, mut begun] = [(); 3].map(|()| server.stream());
    ping(&mut idle);
    ping(&mut late);
    begun.write_all(b"PING\r\n*1\r\n$4\r\nPI").unwrap();
    let mut first = [0; 7];
    begun.read_exact(&mut first).unwrap();
    server.begin_shutdown();
    until_clock_has_sleepers(&server.clock);
    // A command that crosses the stop is answered, and the connection ends with that.
    server.clock.advance(999);
    late.write_all(b"PING\r\nPING\r\n").unwrap();
    let mut answers = Vec::new();
    late.read_to_end(&mut answers).unwrap();
    assert_eq!(answers, b"+PONG\r\n+PONG\r\n");
    server.clock.advance(1);
    assert!(is_over(&mut idle));
    drop((idle, late));
    begun.write_all(b"NG\r\n").unwrap();
    let mut rest = Vec::new();
    begun.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"+PONG\r\n");
    server.join();
}

#[test]
fn one_connection_too_many_is_closed() {
    let server = Resp::with(Limits { connections: 1, ..Limits::default() }, None);
    let mut inside = server.stream();
    ping(&mut inside);
    assert!(is_over(&mut server.stream()));
    ping(&mut inside);
}

/// Sends one command after the other until the connection ends. Whether each was answered that was sent before the end
/// was there to be read.
fn are_all_answered(mut stream: TcpStream, answered: &AtomicUsize) -> bool {
    stream.set_nodelay(true).unwrap();
    loop {
        stream.set_nonblocking(true).unwrap();
        let is_over = matches!(stream.peek(&mut [0]), Ok(0));
        stream.set_nonblocking(false).unwrap();
        if is_over {
            return true;
        }
        let mut pong = [0; 7];
        if stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut pong)).is_err() {
            return false;
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_stop_loses_no_command_on_kept_connections() {
    for round in 0..3 {
        let mut server = Resp::start();
        let answered = AtomicUsize::new(0);
        let lost: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..48)
                .map(|_| {
                    let (stream, answered) = (server.stream(), &answered);
                    scope.spawn(move || usize::from(!are_all_answered(stream, answered)))
                })
                .collect();
            until("all are in use", || match answered.load(Ordering::Relaxed) {
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
