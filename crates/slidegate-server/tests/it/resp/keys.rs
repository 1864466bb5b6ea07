//! `DEL`, `EXISTS`, `TTL` and `PTTL` for keys of `CL.THROTTLE`.

use slidegate_testkit::{Connection, Flavour, Postgres, Reply, Server, until};

use super::{PASSWORD, RespServer, address_of, command, five_integers};
use crate::process::{ServeProcess, TempFile, slidegate};

fn int(client: &mut Connection, words: &str) -> i64 {
    let words: Vec<&str> = words.split(' ').collect();
    client.command(&words).unwrap().int()
}

fn throttle(client: &mut Connection, words: &str) -> [i64; 5] {
    let words: Vec<&str> = words.split(' ').collect();
    five_integers(client.command(&words).unwrap())
}

#[test]
fn a_key_exists_while_its_bucket_has_debt() {
    let server = RespServer::start();
    let mut client = server.connect();
    assert_eq!(int(&mut client, "EXISTS k"), 0);
    assert_eq!((int(&mut client, "TTL k"), int(&mut client, "PTTL k")), (-2, -2));
    throttle(&mut client, "CL.THROTTLE k 9 10 100 3");
    assert_eq!(int(&mut client, "exists k other k"), 2, "EXISTS counts a repeated key again");
    assert_eq!((int(&mut client, "TTL k"), int(&mut client, "PTTL k")), (30, 30_000));
    server.clock.advance(1);
    assert_eq!(
        (int(&mut client, "ttl k"), int(&mut client, "pttl k")),
        (30, 29_999),
        "seconds are rounded up"
    );
    server.clock.advance(29_998);
    assert_eq!(
        (int(&mut client, "TTL k"), int(&mut client, "PTTL k"), int(&mut client, "EXISTS k")),
        (1, 1, 1)
    );
    server.clock.advance(1);
    assert_eq!(
        (int(&mut client, "TTL k"), int(&mut client, "EXISTS k"), int(&mut client, "DEL k")),
        (-2, 0, 0)
    );
}

#[test]
fn the_time_to_live_follows_the_rate_of_the_key() {
    let server = RespServer::start();
    let mut client = server.connect();
    for (rate, ms) in
        [("9 10 100", 10_000), ("9 10 200", 20_000), ("0 1 31622400", 31_622_400_000), ("15 1000 1", 1)]
    {
        throttle(&mut client, &format!("CL.THROTTLE {ms} {rate}"));
        assert_eq!(int(&mut client, &format!("PTTL {ms}")), ms, "{rate}");
        throttle(&mut client, &format!("CL.THROTTLE {ms} {rate} 0"));
        assert_eq!(int(&mut client, &format!("PTTL {ms}")), ms, "{rate}");
    }
}

#[test]
fn a_deleted_key_starts_with_a_full_bucket_for_every_rate() {
    let server = RespServer::start();
    let mut client = server.connect();
    assert_eq!(throttle(&mut client, "CL.THROTTLE k 9 10 10 6")[2], 4);
    assert_eq!(throttle(&mut client, "CL.THROTTLE k 9 10 20 1")[2], 3, "one key, one bucket");
    throttle(&mut client, "CL.THROTTLE l 0 1 60");
    assert_eq!(int(&mut client, "DEL k absent l k"), 2, "DEL counts a repeated key once");
    assert_eq!(int(&mut client, "EXISTS k l"), 0);
    assert_eq!(throttle(&mut client, "CL.THROTTLE k 9 10 10 0")[2], 10);
    assert_eq!(throttle(&mut client, "CL.THROTTLE k 9 10 20 0")[2], 10);
    assert_eq!(throttle(&mut client, "CL.THROTTLE l 0 1 60")[0], 0);
}

#[test]
fn keys_of_policies_are_not_touched() {
    let server = RespServer::start();
    let mut client = server.connect();
    assert_eq!(throttle(&mut client, "SLIDEGATE.CHECK api k")[2], 99);
    assert_eq!((int(&mut client, "EXISTS k"), int(&mut client, "DEL k")), (0, 0));
    assert_eq!(throttle(&mut client, "SLIDEGATE.PEEK api k")[2], 99);
}

#[test]
fn invalid_commands_for_keys_are_rejected_like_in_redis() {
    let server = RespServer::start();
    for (sent, name) in
        [("DEL", "del"), ("EXISTS", "exists"), ("TTL", "ttl"), ("TTL a b", "ttl"), ("PTTL", "pttl")]
    {
        let words: Vec<&str> = sent.split(' ').collect();
        let error = format!("-ERR wrong number of arguments for '{name}' command\r\n");
        assert_eq!(server.replies_to(command(&words)), error, "{sent}");
    }
    server.replies_to(command(&["CL.THROTTLE", "k", "0", "1", "60"]));
    let long = "l".repeat(4097);
    let reply = server.replies_to(command(&["DEL", "k", &long]));
    assert_eq!(reply, "-ERR key: 4097 bytes; 1 to 4096 bytes are allowed\r\n");
    assert_eq!(
        server.replies_to(command(&["EXISTS", "k"])),
        ":1\r\n",
        "DEL with an invalid key deletes nothing"
    );
}

#[test]
fn commands_for_keys_need_authentication() {
    let server = RespServer::with_password(slidegate_config::Limits::default());
    for sent in ["DEL k", "EXISTS k", "TTL k", "PTTL k", "THROTTLE k 1 1 1"] {
        let words: Vec<&str> = sent.split(' ').collect();
        assert_eq!(server.replies_to(command(&words)), "-NOAUTH Authentication required.\r\n", "{sent}");
        let authenticated = command(&["AUTH", PASSWORD]) + &command(&words);
        assert!(!server.replies_to(authenticated).contains("-NOAUTH"), "{sent}");
    }
}

#[test]
fn a_token_deletes_keys_only_with_the_verb_reset() {
    let token = |name: &str, verbs: &str| {
        format!("{{name: {name}, token: 0123456789abcdef-{name}, verbs: [{verbs}]}}")
    };
    let tokens = [token("app", "check, peek"), token("ops", "reset")].join(", ");
    let config = format!("tokens: [{tokens}]\npolicies: {{api: {{quotas: [9/1m]}}}}\n");
    let file = TempFile::new("resp-key-verbs", &config);
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--config", file.path()];
    let server = ServeProcess::start(slidegate().args(arguments));
    let mut app = Connection::open(address_of(&server)).unwrap();
    app.command(&["AUTH", "0123456789abcdef-app"]).unwrap();
    throttle(&mut app, "CL.THROTTLE k 9 10 3600");
    throttle(&mut app, "THROTTLE k 9 10 3600");
    assert_eq!(int(&mut app, "EXISTS k"), 1);
    let assert_rejected = |client: &mut Connection, words: &[&str]| match client.command(words).unwrap() {
        Reply::Error(error) => assert!(error.starts_with("NOPERM "), "{error}"),
        other => panic!("{other:?}"),
    };
    assert_rejected(&mut app, &["DEL", "k"]);
    assert_rejected(&mut app, &["SLIDEGATE.BLOCK", "api", "k", "1"]);
    assert_rejected(&mut app, &["CL.THROTTLE", "k", "9", "10", "3600", "-1"]);
    let mut ops = Connection::open(address_of(&server)).unwrap();
    ops.command(&["AUTH", "0123456789abcdef-ops"]).unwrap();
    assert_rejected(&mut ops, &["TTL", "k"]);
    assert_rejected(&mut ops, &["THROTTLE", "k", "9", "10", "3600"]);
    assert_eq!(int(&mut ops, "DEL k"), 1);
}

#[test]
fn replies_of_commands_for_keys_keep_the_pipeline_order() {
    let server = RespServer::start();
    let throttle = command(&["CL.THROTTLE", "k", "1", "1", "60"]);
    let sent = [
        throttle.clone(),
        command(&["EXISTS", "k", "k", "a"]),
        "TTL k\r\n".to_owned(),
        command(&["DEL", "k", "a"]),
        command(&["TTL", "k"]),
        throttle,
        command(&["PING"]),
    ];
    let first = "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n";
    let expected = format!("{first}:2\r\n:60\r\n:1\r\n:-2\r\n{first}+PONG\r\n");
    assert_eq!(server.replies_to(sent.concat()), expected);
}

fn serve(store: &str) -> ServeProcess {
    let config = "degrade: {on_failure: local}\npolicies: {api: {quotas: [100/1m]}}\n";
    let file = TempFile::new("resp-keys", config);
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", store, "--config"];
    ServeProcess::start(slidegate().args(arguments).arg(file.path()))
}

fn keys_over(store: &str) {
    let server = serve(store);
    let mut client = Connection::open(address_of(&server)).unwrap();
    throttle(&mut client, "CL.THROTTLE k 9 10 3600 2");
    throttle(&mut client, "CL.THROTTLE l 9 10 3600 10");
    assert_eq!(throttle(&mut client, "CL.THROTTLE l 9 10 3600")[0], 1, "a denial that may be cached");
    assert_eq!(int(&mut client, "EXISTS k l m"), 2, "{store}");
    let ttl = int(&mut client, "TTL k");
    assert!((600..=720).contains(&ttl), "{store}: {ttl}");
    assert_eq!(int(&mut client, "DEL k l m"), 2, "{store}");
    assert_eq!((int(&mut client, "TTL k"), int(&mut client, "EXISTS k l m")), (-2, 0), "{store}");
    assert_eq!(throttle(&mut client, "CL.THROTTLE l 9 10 3600")[..3], [0, 10, 9], "{store}");
}

#[test]
fn keys_are_found_and_deleted_in_redis_and_in_postgres() {
    let redis = Server::start(Flavour::Redis);
    keys_over(&(redis.url() + "?budget_ms=20000"));
    let postgres = Postgres::start();
    keys_over(&(postgres.url() + "?budget_ms=20000"));
}

/// A fallback has none of the store's counts.
#[test]
fn commands_for_keys_fail_while_the_store_is_unavailable() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&redis.url());
    let mut client = Connection::open(address_of(&server)).unwrap();
    throttle(&mut client, "CL.THROTTLE k 9 10 3600");
    redis.kill();
    until("checks are decided without the store", || {
        match client.command(&["CL.THROTTLE", "k", "9", "10", "3600"]).unwrap() {
            Reply::Array(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    for words in [&["EXISTS", "k"][..], &["TTL", "k"], &["DEL", "k", "l"]] {
        match client.command(words).unwrap() {
            Reply::Error(error) if error.starts_with("UNAVAILABLE ") => {}
            other => panic!("{words:?}: {other:?}"),
        }
    }
}
