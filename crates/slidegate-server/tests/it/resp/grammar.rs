//! Grammar of `SLIDEGATE.CHECK` and similar commands: tiers, and quotas of the request.

use slidegate_testkit::Connection;

use super::{RespServer, command, five_integers};

fn send(client: &mut Connection, words: &[&str]) -> [i64; 5] {
    five_integers(client.command(words).unwrap())
}

#[test]
fn a_check_may_name_a_tier() {
    let server = RespServer::start();
    let mut client = server.connect();
    assert_eq!(send(&mut client, &["SLIDEGATE.CHECK", "api", "k", "TIER", "premium"])[..3], [1, 1000, 999]);
    assert_eq!(
        send(&mut client, &["SLIDEGATE.CHECK", "api", "k", "9", "tier", "premium"])[..3],
        [1, 1000, 990]
    );
    assert_eq!(send(&mut client, &["SLIDEGATE.PEEK", "api", "k"])[..3], [1, 100, 90], "counts carry over");
    assert_eq!(send(&mut client, &["SLIDEGATE.REFUND", "api", "k", "4", "TIER", "premium"])[2], 994);
    assert_eq!(send(&mut client, &["SLIDEGATE.RESET", "api", "k", "TIER", "premium"])[2], 1000);
    assert_eq!(
        send(&mut client, &["SLIDEGATE.CHECK", "api", "TIER", "TIER", "premium"])[2],
        999,
        "a key named TIER"
    );
}

#[test]
fn a_check_may_contain_its_quotas() {
    let server = RespServer::start();
    let mut client = server.connect();
    let check = ["SLIDEGATE.CHECK", "user:1", "QUOTAS", "10/1s", "1000/1h"];
    assert_eq!(send(&mut client, &check), [1, 10, 9, -1, 2000], "the numbers of the tightest quota");
    let cost = ["SLIDEGATE.CHECK", "user:1", "quotas", "10/1s", "1000/1h", "cost", "9"];
    assert_eq!(send(&mut client, &cost)[..3], [1, 10, 0]);
    let other_order = ["SLIDEGATE.PEEK", "user:1", "QUOTAS", "1000/1h", "10/1s"];
    assert_eq!(send(&mut client, &other_order)[..3], [0, 10, 0], "the same counts in any order");
    let refund = ["SLIDEGATE.REFUND", "user:1", "QUOTAS", "10/1s", "1000/1h", "COST", "3"];
    assert_eq!(send(&mut client, &refund)[2], 3);
    assert_eq!(send(&mut client, &["SLIDEGATE.RESET", "user:1", "QUOTAS", "10/1s", "1000/1h"])[2], 10);
    let strict = ["SLIDEGATE.CHECK", "user:1", "QUOTAS", "5/15m strict-window"];
    assert_eq!(send(&mut client, &strict)[..3], [1, 5, 4], "a quota with its algorithm is one argument");
    assert_eq!(send(&mut client, &["SLIDEGATE.CHECK", "user:2", "QUOTAS", "10/1s", "1000/1h"])[2], 9);
    assert_eq!(
        send(&mut client, &["SLIDEGATE.CHECK", "user:2", "QUOTAS", "7/1s"])[2],
        6,
        "other quotas, other counts"
    );
    assert_eq!(send(&mut client, &["SLIDEGATE.CHECK", "user:2", "QUOTAS", "10/1s", "1000/1h"])[2], 8);
}

/// A key often contains a name that a client chose.
#[test]
fn a_key_equal_to_a_keyword_is_a_key() {
    let server = RespServer::start();
    let mut client = server.connect();
    for key in ["QUOTAS", "quotas", "TIER", "COST", "1", "10/1s"] {
        assert_eq!(send(&mut client, &["SLIDEGATE.CHECK", "api", key])[..3], [1, 100, 99], "{key}");
        assert_eq!(send(&mut client, &["SLIDEGATE.CHECK", "api", key, "2"])[..3], [1, 100, 97], "{key}");
        let tier = ["SLIDEGATE.CHECK", "api", key, "TIER", "premium"];
        assert_eq!(send(&mut client, &tier)[..3], [1, 1000, 996], "{key}");
        let quotas = ["SLIDEGATE.CHECK", key, "QUOTAS", "3/1m", "COST", "2"];
        assert_eq!(send(&mut client, &quotas)[..3], [1, 3, 1], "{key}");
    }
}

#[test]
fn a_command_outside_the_grammar_is_rejected_with_the_reason() {
    let server = RespServer::start();
    let arity = "wrong number of arguments for 'slidegate.check' command";
    let hint = "; quotas of the request follow QUOTAS as LIMIT/WINDOW, such as 100/1m";
    let many = vec!["1/1m"; 17].join(",");
    for (sent, error) in [
        ("SLIDEGATE.CHECK,api,k,TIER", arity.to_owned()),
        ("SLIDEGATE.CHECK,api,k,1,TIER", arity.to_owned()),
        ("SLIDEGATE.CHECK,api,k,1,TIER,premium,1", arity.to_owned()),
        ("SLIDEGATE.CHECK,api,k,TIER,premium,1", arity.to_owned()),
        (
            "SLIDEGATE.CHECK,api,k,1,TEIR,premium",
            "\"TEIR\": unexpected argument; TIER can follow here".to_owned(),
        ),
        (
            "SLIDEGATE.CHECK,api,k,TIER,gold",
            r#"tier: policy "api" has no tier "gold"; known: "premium""#.to_owned(),
        ),
        (
            "SLIDEGATE.CHECK,k,QUOTAS,100",
            format!(r#"policy: there is no policy "k"; known: "api", "login"{hint}"#),
        ),
        (
            "SLIDEGATE.CHECK,k,QUOTAS",
            format!(r#"policy: there is no policy "k"; known: "api", "login"{hint}"#),
        ),
        ("SLIDEGATE.CHECK,k,QUOTAS,COST,2", "quotas: missing after QUOTAS".to_owned()),
        ("SLIDEGATE.CHECK,k,QUOTAS,1/1m,COST", "cost: missing after COST".to_owned()),
        (
            "SLIDEGATE.CHECK,k,QUOTAS,1/1m,COST,x",
            r#"cost: "x" is not a whole number between 0 and 281474976710656"#.to_owned(),
        ),
        ("SLIDEGATE.CHECK,k,QUOTAS,1/1m,COST,1,2", "\"2\": unexpected argument after the cost".to_owned()),
        (
            "SLIDEGATE.CHECK,k,QUOTAS,1/1m,TIER,a",
            "tier: is only valid with policy, not with quotas".to_owned(),
        ),
    ] {
        let words: Vec<&str> = sent.split(',').collect();
        assert_eq!(server.replies_to(command(&words)), format!("-ERR {error}\r\n"), "{sent}");
    }
    for (sent, field) in [
        ("SLIDEGATE.CHECK,k,QUOTAS,1/1m,100".to_owned(), "-ERR quotas[1]: "),
        ("SLIDEGATE.CHECK,k,QUOTAS,1/1m strict-window slots=5".to_owned(), "-ERR quotas[0]: "),
        (format!("SLIDEGATE.CHECK,k,QUOTAS,{many}"), "-ERR quotas: "),
    ] {
        let words: Vec<&str> = sent.split(',').collect();
        let reply = server.replies_to(command(&words));
        assert!(reply.starts_with(field), "{sent}: {reply}");
    }
}
