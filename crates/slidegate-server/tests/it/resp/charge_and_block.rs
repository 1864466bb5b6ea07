//! `SLIDEGATE.CHARGE`, `SLIDEGATE.INSPECT`, `SLIDEGATE.BLOCK` and `SLIDEGATE.RESET`.

use super::{RespServer, command, five_integers};

#[test]
fn a_charge_counts_beyond_the_limit() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    assert_eq!(send("SLIDEGATE.CHARGE api k"), [1, 100, 99, -1, 120_000]);
    assert_eq!(send("slidegate.charge api k 99"), [1, 100, 0, -1, 120_000], "up to the limit it is allowed");
    assert_eq!(send("SLIDEGATE.CHARGE api k 50")[..3], [0, 100, 0]);
    assert_eq!(send("SLIDEGATE.REFUND api k 60")[2], 10, "150 were counted");
    assert_eq!(send("SLIDEGATE.CHARGE api k 20 TIER premium")[..3], [1, 1000, 890]);
    assert_eq!(send("SLIDEGATE.CHARGE k QUOTAS 2/1m COST 3")[..3], [0, 2, 0]);
    assert_eq!(send("SLIDEGATE.CHECK k QUOTAS 2/1m")[0], 0);
}

#[test]
fn inspect_returns_the_parts_of_a_count() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &[&str]| format!("{:?}", client.command(words).unwrap());
    let _ = send(&["SLIDEGATE.CHECK", "api", "k", "10"]);
    server.clock.advance(90_000);
    let _ = send(&["SLIDEGATE.CHECK", "api", "k", "3"]);
    let windows = send(&["SLIDEGATE.INSPECT", "api", "k"]);
    let numbers = |text: &str| -> Vec<i64> {
        text.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|word| word.parse().ok()).collect()
    };
    assert_eq!(numbers(&windows), [1, 100, 92, -1, 90_000, 8, 10, 3, -1], "{windows}");
    let quota = "5/1h sliding-log";
    let _ = send(&["SLIDEGATE.CHECK", "l", "QUOTAS", quota]);
    server.clock.advance(700);
    let log = send(&["slidegate.inspect", "l", "QUOTAS", quota]);
    assert_eq!(numbers(&log)[5..], [1, 0, 1, 700], "{log}");
}

#[test]
fn a_blocked_key_is_denied_until_the_block_ends() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    assert_eq!(send("SLIDEGATE.BLOCK api k 300000"), [1, 100, 0, -1, 300_000]);
    assert_eq!(send("SLIDEGATE.CHECK api k"), [0, 100, 0, 300_000, 300_000]);
    assert_eq!(send("SLIDEGATE.CHECK api k TIER premium")[..4], [0, 1000, 0, 300_000], "in any tier");
    assert_eq!(send("SLIDEGATE.CHECK api other")[0], 1);
    server.clock.advance(299_999);
    assert_eq!(send("SLIDEGATE.PEEK api k")[..4], [0, 100, 0, 1]);
    server.clock.advance(1);
    assert_eq!(send("SLIDEGATE.CHECK api k")[..3], [1, 100, 99]);
    assert_eq!(send("slidegate.block api k 60000")[..3], [1, 100, 0]);
    assert_eq!(send("SLIDEGATE.BLOCK api k 0")[..3], [1, 100, 99], "0 ends the block");
}

#[test]
fn reset_returns_1_only_if_the_key_existed() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    assert_eq!(send("SLIDEGATE.RESET api k"), [0, 100, 100, -1, 0]);
    send("SLIDEGATE.CHECK api k");
    assert_eq!(send("SLIDEGATE.RESET api k"), [1, 100, 100, -1, 0]);
    send("SLIDEGATE.BLOCK api k 60000");
    assert_eq!(send("SLIDEGATE.RESET api k"), [1, 100, 100, -1, 0], "a blocked key exists");
    assert_eq!(send("SLIDEGATE.RESET api k"), [0, 100, 100, -1, 0]);
    assert_eq!(send("SLIDEGATE.RESET k QUOTAS 2/1m")[0], 0);
}

#[test]
fn an_invalid_block_is_rejected() {
    let server = RespServer::start();
    let arity = "wrong number of arguments for 'slidegate.block' command";
    let range = "is not a whole number between 0 and 31622400000";
    for (sent, error) in [
        ("SLIDEGATE.BLOCK api k", arity.to_owned()),
        ("SLIDEGATE.BLOCK api k 1 1", arity.to_owned()),
        ("SLIDEGATE.BLOCK api k 1m", format!("ms: \"1m\" {range}")),
        ("SLIDEGATE.BLOCK api k 31622400001", format!("ms: \"31622400001\" {range}")),
        ("SLIDEGATE.BLOCK apo k 1", r#"policy: there is no policy "apo"; known: "api", "login""#.to_owned()),
    ] {
        let words: Vec<&str> = sent.split(' ').collect();
        assert_eq!(server.replies_to(command(&words)), format!("-ERR {error}\r\n"), "{sent}");
    }
}
