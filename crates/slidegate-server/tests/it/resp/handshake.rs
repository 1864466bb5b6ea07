//! Commands that clients send on connecting, among them those for authentication.

use slidegate_config::Limits;

use super::{PASSWORD, RespServer, command};

#[test]
fn commands_of_connecting_clients_get_the_expected_replies() {
    let server = RespServer::start();
    let hello = |opening: &str, version: u8, number: u8| {
        format!(
            "{opening}\r\n$6\r\nserver\r\n$9\r\nslidegate\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:{version}\r\n\
             $2\r\nid\r\n:{number}\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    assert_eq!(server.replies_to("HELLO\r\n"), hello("*14", 2, 1));
    assert_eq!(server.replies_to("hello 3\r\n"), hello("%7", 3, 2));
    assert_eq!(
        server.replies_to("HELLO 3 SETNAME me\r\nCLIENT GETNAME\r\n"),
        hello("%7", 3, 3) + "$2\r\nme\r\n"
    );
    assert_eq!(server.replies_to("HELLO 2 AUTH default x\r\n"), hello("*14", 2, 4));
    for (sent, reply) in [
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("HELLO 3 SETNAME", "-ERR syntax error\r\n"),
        ("PING", "+PONG\r\n"),
        ("ping 'a b'", "$3\r\na b\r\n"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("ECHO \"\\x00\"", "$1\r\n\0\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT a", "-ERR value is not an integer or out of range\r\n"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        (
            "CLIENT SETNAME 'a b'",
            "-ERR Client names cannot contain spaces, newlines or special characters, nor more than 128 of them.\r\n",
        ),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CLIENT ID a", "-ERR wrong number of arguments for 'client|id' command\r\n"),
        ("CLIENT KILL", "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.\r\n"),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command\r\n"),
        ("COMMAND", "*0\r\n"),
        ("COMMAND COUNT", ":0\r\n"),
        ("COMMAND DOCS", "*0\r\n"),
        ("RESET", "+RESET\r\n"),
        (
            "AUTH secret",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?\r\n",
        ),
        ("AUTH default x", "+OK\r\n"),
        ("get a", "-ERR unknown command 'get', with args beginning with: 'a' \r\n"),
        ("QUIT\r\nPING", "+OK\r\n"),
    ] {
        assert_eq!(server.replies_to(format!("{sent}\r\n")), reply, "{sent}");
    }
    let info = server.replies_to("INFO\r\n");
    assert!(info.contains("redis_version:7.0.0\r\n") && info.contains("loading:0\r\n"), "{info}");
}

#[test]
fn commands_need_authentication() {
    let server = RespServer::with_password(Limits::default());
    let noauth = "-NOAUTH Authentication required.\r\n";
    let throttle = command(&["CL.THROTTLE", "k", "1", "1", "60"]);
    let first = "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n";
    for sent in [&throttle, "SLIDEGATE.CHECK nothing k\r\n", "PING\r\n", "NO\r\n", "CLIENT ID\r\n"] {
        assert_eq!(server.replies_to(sent), noauth, "{sent}");
    }
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(
        server.replies_to(format!("AUTH S{}\r\n{throttle}", &PASSWORD[1..])),
        format!("{wrong}{noauth}")
    );
    assert!(server.replies_to("HELLO 3\r\n").starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(server.replies_to(format!("HELLO 3 AUTH default S{}\r\n", &PASSWORD[1..])), wrong);
    assert_eq!(server.replies_to(command(&["AUTH", "\u{0}"])), wrong);
    assert_eq!(server.replies_to(format!("AUTH {PASSWORD}\r\n{throttle}")), format!("+OK\r\n{first}"));
    assert_eq!(server.replies_to(format!("AUTH any-user {PASSWORD}\r\nPING\r\n")), "+OK\r\n+PONG\r\n");
    let replies = server.replies_to(format!("HELLO 3 AUTH default {PASSWORD}\r\nPING\r\n"));
    assert!(replies.starts_with("%7\r\n") && replies.ends_with("+PONG\r\n"), "{replies}");
    assert_eq!(
        server.replies_to(format!("AUTH {PASSWORD}\r\nRESET\r\nPING\r\n")),
        format!("+OK\r\n+RESET\r\n{noauth}")
    );
    for invalid in ["SETNAME", "SETNAME 'a b'", "NONSENSE"] {
        let reply = server.replies_to(format!("HELLO 3 AUTH default {PASSWORD} {invalid}\r\nPING\r\n"));
        assert!(reply.starts_with("-ERR") && reply.ends_with(noauth), "{invalid}: {reply}");
    }
    let guesses = "AUTH a\r\nHELLO 3 AUTH a b\r\nRESET\r\n".repeat(100);
    let reply = server.replies_to(format!("{guesses}AUTH {PASSWORD}\r\n{throttle}"));
    assert_eq!(reply.matches(wrong).count(), 10, "{reply}");
    assert!(reply.ends_with(wrong), "{reply}");
    let reply = server.replies_to("*11\r\n");
    assert_eq!(reply, "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

/// A web page can make a browser send HTTP requests to any port.
#[test]
fn an_http_request_ends_the_connection() {
    let server = RespServer::start();
    for first in ["POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", "host: a\r\n", "post\r\n"] {
        let reply = server.replies_to(format!("{first}\r\nCL.THROTTLE http 0 1 60\r\n"));
        assert!(!reply.contains(":0"), "{first}: {reply}");
    }
    let reply = server.replies_to("CL.THROTTLE http 0 1 60\r\n");
    assert!(reply.starts_with("*5\r\n:0\r\n"), "no command behind an HTTP request was counted: {reply}");
}
