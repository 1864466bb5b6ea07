//! Limits shared through Redis and Valkey: real servers, the real binary.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::{Cluster, Flavour, Sentinels, Server};

use crate::process::{ServeProcess, TempFile, outcome, slidegate};

/// Machines that run tests are busy; whoever does not test the budget gives plenty.
const PATIENT: &str = "?budget_ms=20000";

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
        let store = redis.url() + PATIENT;
        let servers = [serve(&store), serve(&store)];
        let body = json!({"quotas": [format!("{LIMIT}/1d sliding-log")], "key": "user:1"});
        let ask = |server: &ServeProcess| -> usize {
            let answers = (0..LIMIT / 2).map(|_| server.check(&body).decision());
            answers.filter(|answer| answer["allowed"] == true).count()
        };
        let allowed: usize = std::thread::scope(|scope| {
            let askers: Vec<_> =
                servers.iter().cycle().take(8).map(|server| scope.spawn(move || ask(server))).collect();
            askers.into_iter().map(|asker| asker.join().unwrap()).sum()
        });
        assert_eq!(allowed, LIMIT, "{flavour:?}");
        for server in &servers {
            assert_eq!(server.check(&body).decision()["remaining"], 0, "{flavour:?}");
        }
    }
}

#[test]
fn a_batch_is_decided_in_the_store() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&(redis.url() + PATIENT));
    let request = |key: &str| json!({"policy": "api", "key": key, "cost": 60});
    let answers = server.check(&json!([request("a"), request("b"), request("a")])).decision();
    let allowed: Vec<&Value> = answers.as_array().unwrap().iter().map(|answer| &answer["allowed"]).collect();
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn one_run_of_check_sees_what_the_one_before_has_spent() {
    let redis = Server::start(Flavour::Redis);
    let store = redis.url() + PATIENT;
    let quota = ["--quota", "3/1d sliding-log"];
    assert_eq!(
        check(&store, &quota),
        (0, "allowed: 2 of 3 left, whole again in 86400.001 s\n".into(), String::new())
    );
    let (code, stdout, _) = check(&store, &quota);
    assert!(code == 0 && stdout.starts_with("allowed: 1 of 3 left"), "{stdout}");
    // A server over the same store counts the same.
    let body = json!({"quotas": ["3/1d sliding-log"], "key": "user:1"});
    assert_eq!(serve(&store).check(&body).decision()["remaining"], 0);
    let (code, stdout, stderr) = check(&store, &quota);
    assert!(code == 1 && stdout.starts_with("denied by 3/1d: retry in ") && stderr.is_empty(), "{stdout}");
    // Another prefix, other limits.
    assert_eq!(check(&format!("{store}&prefix=other"), &quota).0, 0);
}

#[test]
fn flag_environment_and_file_name_the_store_and_the_greeting_repeats_it() {
    let redis = Server::start(Flavour::Redis);
    let (url, shown) = (redis.url() + "/2" + PATIENT, format!("store: {}/2", redis.url()));
    let on_a_free_port = || {
        let mut command = slidegate();
        command.args(["serve", "--http", "127.0.0.1:0"]);
        command
    };
    let file = TempFile::new("store", &format!("store: {url}\n"));
    let from_file = |command: &mut Command| ServeProcess::start(command.args(["--config", file.path()]));
    assert_eq!(from_file(&mut on_a_free_port()).startup_lines[1], shown);
    // What goes over the file is used, and the file's store is not.
    let over_the_file = from_file(on_a_free_port().env("SLIDEGATE_STORE", "memory:"));
    assert_eq!(over_the_file.startup_lines[1], "store: memory:");
    let server =
        ServeProcess::start(on_a_free_port().args(["--store", &url]).env("SLIDEGATE_STORE", "memory:"));
    assert_eq!(server.startup_lines[1], shown);
    server.check(&json!({"policy": "api", "key": "a"})).decision();
    let mut connection = redis.connect().unwrap();
    connection.command(&["SELECT", "2"]).unwrap().ok();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap().int(), 1);
}

/// Checks twice, and expects the second one to be denied.
fn spends_once(store: &str) {
    let quota = ["--quota", "1/1d sliding-log"];
    for expected in [0, 1] {
        let (code, stdout, stderr) = check(store, &quota);
        assert_eq!(code, expected, "{store}: {stdout}{stderr}");
    }
}

fn listed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn every_way_to_a_server_is_taken() {
    let redis = Server::builder(Flavour::Redis).tls().unix_socket().start();
    let prefixed = |url: String, prefix: &str| format!("{url}{PATIENT}&prefix={prefix}");
    spends_once(&prefixed(redis.url(), "a"));
    spends_once(&prefixed(format!("valkey://{}", redis.address()), "b"));
    spends_once(&prefixed(format!("redis+unix://{}", redis.socket_path().display()), "c"));
    let authority = redis.tls().ca_path();
    let tls = format!("{}{PATIENT}&prefix=d&ca={}", redis.tls().url(), authority.display());
    spends_once(&tls);
    let sentinels = Sentinels::start_many(1, &redis, "main");
    spends_once(&prefixed(format!("redis+sentinel://{}/main", listed(&sentinels.addresses())), "e"));
    let cluster = Cluster::start(Flavour::Redis);
    spends_once(&prefixed(format!("redis+cluster://{}", listed(&cluster.addresses())), "f"));
}

#[test]
fn a_denial_is_remembered_until_it_is_undone() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&(redis.url() + PATIENT));
    let body = json!({"quotas": ["1/1d sliding-log"], "key": "user:1"});
    assert_eq!(server.check(&body).decision()["source"], "store");
    let denied = server.check(&body).decision();
    assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("store")));
    // Without its store it could not know, had it not been told.
    redis.stop_signal();
    let again = server.check(&body).decision();
    assert_eq!((&again["allowed"], &again["source"]), (&json!(false), &json!("cache")));
    redis.continue_signal();
    server.refund(&body).decision();
    assert_eq!(server.check(&body).decision()["allowed"], true);
}
