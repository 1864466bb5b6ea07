//! The reply to each command.

use super::{RespServer, command, five_integers};

#[test]
fn cl_throttle_replies_like_redis_cell() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    // Limited, limit, remaining, retry after, reset after.
    assert_eq!(send("CL.THROTTLE user123 15 30 60 1"), [0, 16, 15, -1, 2]);
    assert_eq!(send("cl.throttle user123 15 30 60"), [0, 16, 14, -1, 4]);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 0"), [0, 16, 14, -1, 4], "a quantity of 0 is a peek");
    assert_eq!(send("CL.THROTTLE user123 15 30 60 14"), [0, 16, 0, -1, 32]);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 0"), [0, 16, 0, -1, 32]);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 1"), [1, 16, 0, 2, 32]);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 3"), [1, 16, 0, 6, 32]);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 17"), [1, 16, 0, -1, 32], "never");
    assert_eq!(send("CL.THROTTLE other 15 30 60 17"), [1, 16, 16, -1, 0], "never; nothing is spent");
    server.clock.advance(1);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 1"), [1, 16, 0, 2, 32], "rounded up");
    server.clock.advance(1999);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 1"), [0, 16, 0, -1, 32]);
    server.clock.advance(31_999);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 0"), [0, 16, 15, -1, 1]);
    server.clock.advance(1);
    assert_eq!(send("CL.THROTTLE user123 15 30 60 0"), [0, 16, 16, -1, 0]);
}

#[test]
fn a_key_has_one_bucket_for_all_rates() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    assert_eq!(send("CL.THROTTLE k 9 10 10 6"), [0, 10, 4, -1, 6]);
    assert_eq!(
        send("CL.THROTTLE k 4 10 10 1"),
        [1, 5, 0, 1, 5],
        "the smaller bucket caps the debt of 6 at 5"
    );
    assert_eq!(send("CL.THROTTLE k 19 10 10 1"), [0, 20, 14, -1, 6]);
    assert_eq!(send("CL.THROTTLE k 19 10 10 -3"), [0, 20, 17, -1, 3], "a negative quantity refunds");
    assert_eq!(send("CL.THROTTLE k 19 10 10 -9"), [0, 20, 20, -1, 0], "a refund is at most the debt");
}

#[test]
fn invalid_arguments_of_cl_throttle_are_rejected_with_redis_cells_errors() {
    let server = RespServer::start();
    let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    for (sent, error) in [
        ("cl.throttle", usage),
        ("cl.throttle k 1 1", usage),
        ("cl.throttle k 1 1 1 1 1", usage),
        ("cl.throttle k a 1 1", "Couldn't parse as integer: a"),
        ("cl.throttle k 1 1.5 1", "Couldn't parse as integer: 1.5"),
        ("cl.throttle k 1 1 99999999999999999999", "Couldn't parse as integer: 99999999999999999999"),
        ("cl.throttle k 1 1 1 x", "Couldn't parse as integer: x"),
        ("cl.throttle k 1 0 1", "Zero rates are not supported"),
        ("cl.throttle k 1 1 0", "Zero rates are not supported"),
        ("cl.throttle k -1 1 1", "max_burst: -1 is less than 0"),
        ("cl.throttle k 1 -1 1", "count per period: -1 is less than 0"),
        ("cl.throttle k 1 1 31622401", "period: 31622401 is more than 366 days of seconds"),
        ("cl.throttle k 281474976710656 1 1", "max_burst: 281474976710656 is more than 281474976710655"),
        (
            "cl.throttle k 1 281474976710657 1",
            "count per period: 281474976710657 is not between 1 and 2^48 (281474976710656)",
        ),
        ("cl.throttle k 1 1 1 281474976710657", "quantity: 281474976710657 is not between -2^48 and 2^48"),
    ] {
        let words: Vec<&str> = sent.split(' ').collect();
        assert_eq!(server.replies_to(command(&words)), format!("-Cell error: {error}\r\n"), "{sent}");
    }
    for key in [String::new(), "k".repeat(4097)] {
        let length = key.len();
        let reply = server.replies_to(command(&["CL.THROTTLE", &key, "1", "1", "1"]));
        assert_eq!(reply, format!("-ERR key: {length} bytes; 1 to 4096 bytes are allowed\r\n"));
    }
    let longest = server.replies_to(command(&["CL.THROTTLE", &"k".repeat(4096), "1", "1", "1"]));
    assert_eq!(longest, "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n");
}

#[test]
fn a_check_applies_a_configured_policy() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    // Allowed, limit, remaining, retry after, reset after.
    assert_eq!(send("SLIDEGATE.CHECK api user:1"), [1, 100, 99, -1, 120_000]);
    assert_eq!(send("slidegate.check api user:1 9"), [1, 100, 90, -1, 120_000]);
    assert_eq!(send("SLIDEGATE.PEEK api user:1 91"), [0, 100, 90, 66_000, 120_000]);
    assert_eq!(send("SLIDEGATE.CHECK api user:1 101"), [0, 100, 90, -1, 120_000], "never");
    assert_eq!(send("SLIDEGATE.REFUND api user:1 4"), [1, 100, 94, -1, 120_000]);
    assert_eq!(send("SLIDEGATE.RESET api user:1"), [1, 100, 100, -1, 0]);
    assert_eq!(
        send("SLIDEGATE.CHECK login user:1"),
        [1, 2, 1, -1, 2000],
        "the numbers of the tightest quota"
    );
}

#[test]
fn an_invalid_check_is_rejected_with_the_reason() {
    let server = RespServer::start();
    for (sent, error) in [
        ("SLIDEGATE.CHECK api", "ERR wrong number of arguments for 'slidegate.check' command"),
        ("SLIDEGATE.PEEK api k 1 1", "ERR wrong number of arguments for 'slidegate.peek' command"),
        ("SLIDEGATE.CHECK apo k", r#"ERR policy: there is no policy "apo"; known: "api", "login""#),
        ("SLIDEGATE.CHECK api k -1", r#"ERR cost: "-1" is not a whole number between 0 and 281474976710656"#),
        ("SLIDEGATE.CHECK api k x", r#"ERR cost: "x" is not a whole number between 0 and 281474976710656"#),
    ] {
        let words: Vec<&str> = sent.split(' ').collect();
        assert_eq!(server.replies_to(command(&words)), format!("-{error}\r\n"));
    }
    let reply = server.replies_to(command(&["SLIDEGATE.CHECK", "a\r\n+OK", "k"]));
    let error = r#"ERR policy: there is no policy "a\r\n+OK"; known: "api", "login""#;
    assert_eq!(reply, format!("-{error}\r\n"), "a client cannot inject reply lines");
}

#[test]
fn replies_of_a_pipeline_keep_its_order_despite_errors() {
    let server = RespServer::start();
    let sent = [
        command(&["PING"]),
        command(&["CL.THROTTLE", "k", "1", "1", "60"]),
        "CL.THROTTLE 'k' 1 1 60\r\n\r\n".to_owned(),
        command(&["NO", "a", "b"]),
        command(&["SLIDEGATE.CHECK", "api", "k"]),
        "*0\r\n".to_owned(),
        command(&["CL.THROTTLE", "k", "1", "1", "60"]),
        command(&["ECHO", "end"]),
    ];
    assert_eq!(
        server.replies_to(sent.concat()),
        "+PONG\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n\
         -ERR unknown command 'NO', with args beginning with: 'a' 'b' \r\n\
         *5\r\n:1\r\n:100\r\n:99\r\n:-1\r\n:120000\r\n*5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n$3\r\nend\r\n"
    );
}
