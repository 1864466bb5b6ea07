//! Changes where nodes share a store, and where the store forgets.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{POLICIES, ask, done, get, limit, put, serve, until_expired, until_limit};
use crate::process::{ServeProcess, TempFile};

/// The audit says once that a change has ended, however many nodes have seen it.
fn is_written_down_once(store: &str) {
    let config = TempFile::new("expires", POLICIES);
    let store = ["--store", store];
    let nodes = [serve(&config, &store), serve(&config, &store), serve(&config, &store)];
    let first = json!({"quotas": ["7/1h"], "for": "100ms", "note": "ticket 42"});
    let set = put(&nodes[0], "/v1/policies/api/quotas", &first);
    let ended = until_expired(&nodes[1], 1);
    let entry = &ended[0];
    assert_eq!((&entry["by"], &entry["at"]), (&json!("expiry"), &set["after"]["until"]), "{entry}");
    assert_eq!((&entry["before"], &entry["after"]), (&set["after"], &json!({"quotas": ["2/1h"]})), "{entry}");
    assert_eq!(
        (&entry["policy"], &entry["of"], &entry["note"]),
        (&json!("api"), &json!("quotas"), &json!("ticket 42"))
    );
    // Until another one has ended, every node has looked again.
    put(&nodes[2], "/v1/policies/login/mode", &json!({"mode": "off", "for": "100ms"}));
    for node in &nodes {
        let ended = until_expired(node, 2);
        let policies: Vec<_> = ended.iter().map(|entry| &entry["policy"]).collect();
        assert_eq!(policies, ["login", "api"], "{ended:?}");
    }
}

#[test]
fn the_end_of_a_change_is_written_down_once_by_all_nodes_on_one_redis() {
    let redis = Server::start(Flavour::Redis);
    is_written_down_once(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn the_end_of_a_change_is_written_down_once_by_all_nodes_on_one_postgres() {
    let postgres = Postgres::start();
    is_written_down_once(&format!("{}?budget_ms=5000", postgres.url()));
}

/// What one node changes is in force on the other, also on one that starts later, and when the file is read again.
fn is_seen_by_all(store: &str) {
    let config = TempFile::new("nodes", POLICIES);
    let store = ["--store", store];
    let [one, other] = [serve(&config, &store), serve(&config, &store)];
    put(&one, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert_eq!(limit(&one, "a"), 7);
    until_limit(&other, "a", 7);
    // By turns, and neither is lost.
    put(&other, "/v1/policies/api/keys/b", &json!({"quotas": ["70/1h"]}));
    put(&one, "/v1/policies/api/keys/c", &json!({"quotas": ["700/1h"]}));
    until_limit(&other, "c", 700);
    until_limit(&one, "b", 70);
    let third = serve(&config, &store);
    assert_eq!((limit(&third, "a"), limit(&third, "b")), (json!(7), json!(70)));
    std::fs::write(config.path(), POLICIES.replace("quotas: [2/1h]", "quotas: [3/1h]")).unwrap();
    third.send_signal("HUP");
    done(&ask(&one, "DELETE", "/v1/policies/api/quotas", &Value::Null));
    until_limit(&third, "a", 3);
    assert_eq!(limit(&third, "b"), 70);
}

#[test]
fn all_nodes_on_one_redis_see_a_change() {
    let redis = Server::start(Flavour::Redis);
    is_seen_by_all(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn all_nodes_on_one_postgres_see_a_change() {
    let postgres = Postgres::start();
    is_seen_by_all(&format!("{}?budget_ms=5000", postgres.url()));
}

#[test]
fn a_store_that_has_forgotten_is_told_again() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("forgotten", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    redis.command(&["FLUSHALL"]).ok();
    until("the note is back", || match redis.command(&["EXISTS", "sg:note"]).int() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    assert_eq!(limit(&serve(&config, &["--store", &store]), "a"), 7);
}

#[test]
fn a_store_that_comes_back_with_an_older_book_is_told_the_newer_one() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("older", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    // As from a backup.
    assert_eq!(redis.command(&["COPY", "sg:note", "old"]).int(), 1);
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    assert_eq!(redis.command(&["COPY", "old", "sg:note", "REPLACE"]).int(), 1);
    let is_there = |needle: &str| {
        let note = redis.command(&["GET", "sg:note"]).text();
        if note.contains(needle) { Ok(()) } else { Err(note) }
    };
    until("the newer one is back", || is_there("login"));
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
}

#[test]
fn a_node_that_knows_nothing_does_not_undo_what_others_know() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("fresh", POLICIES);
    let old = serve(&config, &["--store", &store]);
    put(&old, "/v1/policies/api/keys/a", &json!({"quotas": ["70/1h"]}));
    redis.command(&["FLUSHALL"]).ok();
    let fresh = serve(&config, &["--store", &store]);
    put(&fresh, "/v1/policies/api/keys/b", &json!({"quotas": ["700/1h"]}));
    for server in [&old, &fresh] {
        until_limit(server, "a", 70);
        until_limit(server, "b", 700);
    }
}

#[test]
fn a_service_that_starts_without_its_store_says_that_it_knows_no_changes() {
    let config = TempFile::new("unknown", POLICIES);
    let server = serve(&config, &["--store", "redis://127.0.0.1:1"]);
    assert_eq!(server.get("/readyz").json()["changes_known"], false);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_changes_known 0"), "{metrics}");
    let refused = ask(&server, "PUT", "/v1/policies/api/mode", &json!({"mode": "off"}));
    assert!(refused.status == 503 && refused.body.contains("nothing was changed"), "{refused:?}");
}

/// Nobody has to be asked whether it is over.
#[test]
fn a_change_ends_although_the_store_is_away() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("ends-alone", POLICIES);
    let server = serve(&config, &["--store", &redis.url()]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"], "for": "2s"}));
    redis.kill();
    let decided = server.check(&json!({"policy": "api", "key": "a"})).decision();
    assert_eq!((&decided["source"], &decided["limit"]), (&json!("fallback"), &json!(7)), "{decided}");
    until_limit_here(&server, 2);
}

/// Whoever only looks is not answered without the store.
fn until_limit_here(server: &ServeProcess, wanted: u64) {
    until("the limit of the file", || {
        let decided = server.check(&json!({"policy": "api", "key": "a"})).decision();
        if decided["limit"] == json!(wanted) { Ok(()) } else { Err(decided.to_string()) }
    });
}

/// Whether the document in Redis has `needle`.
fn is_kept(redis: &Server, needle: &str) -> Result<(), String> {
    let note = redis.command(&["GET", "sg:note"]).text();
    if note.contains(needle) { Ok(()) } else { Err(note) }
}

/// Two nodes that both know one change: both have seen a document in the store.
fn acquainted(config: &TempFile, redis: &Server) -> [ServeProcess; 2] {
    let store = format!("{}?budget_ms=5000", redis.url());
    let nodes = [(); 2].map(|()| serve(config, &["--store", &store]));
    put(&nodes[0], "/v1/policies/api/keys/known", &json!({"quotas": ["9/1h"]}));
    until_limit(&nodes[1], "known", 9);
    nodes
}

fn set_key(node: &ServeProcess, key: &str, limit: u64) {
    put(node, &format!("/v1/policies/api/keys/{key}"), &json!({"quotas": [format!("{limit}/1h")]}));
}

#[test]
fn no_change_is_lost_when_another_node_changes_a_flushed_store_first() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("flushed", POLICIES);
    let nodes = acquainted(&config, &redis);
    for round in 100..103 {
        let (first, second) = (format!("first{round}"), format!("second{round}"));
        set_key(&nodes[0], &first, round);
        redis.command(&["FLUSHALL"]).ok();
        // Before this node has read the change.
        set_key(&nodes[1], &second, round);
        for node in &nodes {
            until_limit(node, &first, round);
            until_limit(node, &second, round);
        }
    }
    let audit = get(&nodes[1], "/v1/audit");
    assert_eq!(audit["audit"].as_array().unwrap().len(), 7, "{audit}");
    assert_eq!(audit, get(&nodes[0], "/v1/audit"));
}

#[test]
fn an_older_document_brings_back_nothing_that_was_removed_or_replaced() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("backup", POLICIES);
    let nodes = acquainted(&config, &redis);
    set_key(&nodes[0], "removed", 20);
    set_key(&nodes[0], "replaced", 30);
    until_limit(&nodes[1], "replaced", 30);
    assert_eq!(redis.command(&["COPY", "sg:note", "old"]).int(), 1);
    done(&ask(&nodes[0], "DELETE", "/v1/policies/api/keys/removed", &Value::Null));
    set_key(&nodes[0], "replaced", 31);
    set_key(&nodes[0], "new", 40);
    until_limit(&nodes[1], "new", 40);
    set_key(&nodes[0], "newest", 50);
    assert_eq!(redis.command(&["COPY", "old", "sg:note", "REPLACE"]).int(), 1);
    // A node changes the restored document before it has read the newest change.
    for number in 0..9 {
        set_key(&nodes[1], &format!("other{number}"), 60);
    }
    for node in &nodes {
        for (key, limit) in [("newest", 50), ("new", 40), ("replaced", 31), ("removed", 2), ("other8", 60)] {
            until_limit(node, key, limit);
        }
    }
    until("the store has all of it", || is_kept(&redis, "newest"));
    let third = serve(&config, &["--store", &format!("{}?budget_ms=5000", redis.url())]);
    for (key, limit) in [("newest", 50), ("replaced", 31), ("removed", 2), ("other0", 60)] {
        until_limit(&third, key, limit);
    }
}

#[test]
fn two_nodes_that_change_at_once_lose_nothing_although_the_store_forgets() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("writers", POLICIES);
    let nodes = acquainted(&config, &redis);
    let count = 15;
    std::thread::scope(|scope| {
        for (name, node) in ["a", "b"].iter().zip(&nodes) {
            let redis = &redis;
            scope.spawn(move || {
                for number in 0..count {
                    if number % 3 == 0 {
                        redis.command(&["FLUSHALL"]).ok();
                    }
                    set_key(node, &format!("{name}{number}"), 70);
                }
            });
        }
    });
    for node in &nodes {
        for number in 0..count {
            until_limit(node, &format!("a{number}"), 70);
            until_limit(node, &format!("b{number}"), 70);
        }
    }
}
