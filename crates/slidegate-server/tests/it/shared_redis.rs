//! Limits shared through real Redis and Valkey servers.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::{Cluster, Flavour, Sentinels, Server};

use crate::process::{ServeProcess, TempFile, outcome, slidegate};

/// Budget of 20 s, so that a busy machine does not cause a fallback.
const LONG_BUDGET: &str = "?budget_ms=20000";

fn serve(store: &str) -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--store", store]))
}

fn check(store: &str, more: &[&str]) -> (i32, String, String) {
    outcome(slidegate().args(["check", "user:1", "--store", store]).args(more))
}

#[test]
fn two_servers_share_one_limit_exactly() {
    const LIMIT: usize = 50;
    for flavour in Flavour::ALL {
        let redis = Server::start(flavour);
        let store = redis.url() + LONG_BUDGET;
        let servers = [serve(&store), serve(&store)];
        let body = json!({"quotas": [format!("{LIMIT}/1d sliding-log")], "key": "user:1"});
        let count_allowed = |server: &ServeProcess| -> usize {
            let decisions = (0..LIMIT / 2).map(|_| server.check(&body).decision());
            decisions.filter(|decision| decision["allowed"] == true).count()
        };
        let allowed: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = servers
                .iter()
                .cycle()
                .take(8)
                .map(|server| scope.spawn(move || count_allowed(server)))
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert_eq!(allowed, LIMIT, "{flavour:?}");
        for server in &servers {
            assert_eq!(server.check(&body).decision()["remaining"], 0, "{flavour:?}");
        }
    }
}

#[test]
fn a_batch_is_decided_by_the_store() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&(redis.url() + LONG_BUDGET));
    let request = |key: &str| json!({"policy": "api", "key": key, "cost": 60});
    let decisions = server.check(&json!([request("a"), request("b"), request("a")])).decision();
    let allowed: Vec<&Value> =
        decisions.as_array().unwrap().iter().map(|decision| &decision["allowed"]).collect();
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn runs_of_the_check_command_share_their_counts() {
    let redis = Server::start(Flavour::Redis);
    let store = redis.url() + LONG_BUDGET;
    let quota = ["--quota", "3/1d sliding-log"];
    assert_eq!(
        check(&store, &quota),
        (0, "allowed: 2 of 3 left, full again in 86400.001 s\n".into(), String::new())
    );
    let (code, stdout, _) = check(&store, &quota);
    assert!(code == 0 && stdout.starts_with("allowed: 1 of 3 left"), "{stdout}");
    // A server on the same store continues the count.
    let body = json!({"quotas": ["3/1d sliding-log"], "key": "user:1"});
    assert_eq!(serve(&store).check(&body).decision()["remaining"], 0);
    let (code, stdout, stderr) = check(&store, &quota);
    assert!(code == 1 && stdout.starts_with("denied by 3/1d: retry in ") && stderr.is_empty(), "{stdout}");
    // Another prefix has its own counts.
    assert_eq!(check(&format!("{store}&prefix=other"), &quota).0, 0);
}

#[test]
fn the_store_comes_from_flag_environment_or_file_and_is_printed_at_startup() {
    let redis = Server::start(Flavour::Redis);
    let (url, shown) = (redis.url() + "/2" + LONG_BUDGET, format!("store: {}/2", redis.url()));
    let serve_on_free_port = || {
        let mut command = slidegate();
        command.args(["serve", "--http", "127.0.0.1:0"]);
        command
    };
    let file = TempFile::new("store", &format!("store: {url}\n"));
    let from_file = |command: &mut Command| ServeProcess::start(command.args(["--config", file.path()]));
    assert_eq!(from_file(&mut serve_on_free_port()).startup_lines[1], shown);
    // The environment overrides the store of the file.
    let overriding_the_file = from_file(serve_on_free_port().env("SLIDEGATE_STORE", "memory:"));
    assert_eq!(overriding_the_file.startup_lines[1], "store: memory:");
    let server =
        ServeProcess::start(serve_on_free_port().args(["--store", &url]).env("SLIDEGATE_STORE", "memory:"));
    assert_eq!(server.startup_lines[1], shown);
    server.check(&json!({"policy": "api", "key": "a"})).decision();
    let mut connection = redis.connect().unwrap();
    connection.command(&["SELECT", "2"]).unwrap().ok();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap().int(), 1);
}

/// Checks twice against a limit of 1 and expects the second check to be denied.
fn assert_limit_of_one(store: &str) {
    let quota = ["--quota", "1/1d sliding-log"];
    for expected in [0, 1] {
        let (code, stdout, stderr) = check(store, &quota);
        assert_eq!(code, expected, "{store}: {stdout}{stderr}");
    }
}

fn comma_separated(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn every_scheme_of_redis_urls_works() {
    let redis = Server::builder(Flavour::Redis).tls().unix_socket().start();
    let prefixed = |url: String, prefix: &str| format!("{url}{LONG_BUDGET}&prefix={prefix}");
    assert_limit_of_one(&prefixed(redis.url(), "a"));
    assert_limit_of_one(&prefixed(format!("valkey://{}", redis.address()), "b"));
    assert_limit_of_one(&prefixed(format!("redis+unix://{}", redis.socket_path().display()), "c"));
    let authority = redis.tls().ca_path();
    let tls = format!("{}{LONG_BUDGET}&prefix=d&ca={}", redis.tls().url(), authority.display());
    assert_limit_of_one(&tls);
    let sentinels = Sentinels::start_many(1, &redis, "main");
    assert_limit_of_one(&prefixed(
        format!("redis+sentinel://{}/main", comma_separated(&sentinels.addresses())),
        "e",
    ));
    let cluster = Cluster::start(Flavour::Redis);
    assert_limit_of_one(&prefixed(format!("redis+cluster://{}", comma_separated(&cluster.addresses())), "f"));
}

#[test]
fn a_denial_is_cached_until_a_refund() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&(redis.url() + LONG_BUDGET));
    let body = json!({"quotas": ["1/1d sliding-log"], "key": "user:1"});
    assert_eq!(server.check(&body).decision()["source"], "store");
    let denied = server.check(&body).decision();
    assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("store")));
    // The store is suspended, so the denial can only come from the cache.
    redis.stop_signal();
    let cached = server.check(&body).decision();
    assert_eq!((&cached["allowed"], &cached["source"]), (&json!(false), &json!("cache")));
    redis.continue_signal();
    server.refund(&body).decision();
    assert_eq!(server.check(&body).decision()["allowed"], true);
}
