//! Changes on nodes that share a store, and after data loss of the store.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{POLICIES, get, limit, ok_json, put, send, serve, until_expired, until_limit};
use crate::process::{ServeProcess, TempFile};

/// Asserts that the audit has one entry for an expired change, although three nodes see it expire.
fn assert_expiry_is_audited_once(store: &str) {
    let config = TempFile::new("expires", POLICIES);
    let store = ["--store", store];
    let nodes = [serve(&config, &store), serve(&config, &store), serve(&config, &store)];
    let first = json!({"quotas": ["7/1h"], "for": "100ms", "note": "ticket 42"});
    let set = put(&nodes[0], "/v1/policies/api/quotas", &first);
    let expired = until_expired(&nodes[1], 1);
    let entry = &expired[0];
    assert_eq!((&entry["by"], &entry["at"]), (&json!("expiry"), &set["after"]["until"]), "{entry}");
    assert_eq!((&entry["before"], &entry["after"]), (&set["after"], &json!({"quotas": ["2/1h"]})), "{entry}");
    assert_eq!(
        (&entry["policy"], &entry["of"], &entry["note"]),
        (&json!("api"), &json!("quotas"), &json!("ticket 42"))
    );
    // A second expiry on each node proves that the first was not written again meanwhile.
    put(&nodes[2], "/v1/policies/login/mode", &json!({"mode": "off", "for": "100ms"}));
    for node in &nodes {
        let expired = until_expired(node, 2);
        let policies: Vec<_> = expired.iter().map(|entry| &entry["policy"]).collect();
        assert_eq!(policies, ["login", "api"], "{expired:?}");
    }
}

#[test]
fn nodes_on_one_redis_audit_an_expiry_once() {
    let redis = Server::start(Flavour::Redis);
    assert_expiry_is_audited_once(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn nodes_on_one_postgres_audit_an_expiry_once() {
    let postgres = Postgres::start();
    assert_expiry_is_audited_once(&format!("{}?budget_ms=5000", postgres.url()));
}

/// Asserts that a change of one node applies on all nodes, on a node that starts later and after a reload.
fn assert_change_reaches_all_nodes(store: &str) {
    let config = TempFile::new("nodes", POLICIES);
    let store = ["--store", store];
    let [one, other] = [serve(&config, &store), serve(&config, &store)];
    put(&one, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert_eq!(limit(&one, "a"), 7);
    until_limit(&other, "a", 7);
    // Changes of alternating nodes are all kept.
    put(&other, "/v1/policies/api/keys/b", &json!({"quotas": ["70/1h"]}));
    put(&one, "/v1/policies/api/keys/c", &json!({"quotas": ["700/1h"]}));
    until_limit(&other, "c", 700);
    until_limit(&one, "b", 70);
    let third = serve(&config, &store);
    assert_eq!((limit(&third, "a"), limit(&third, "b")), (json!(7), json!(70)));
    std::fs::write(config.path(), POLICIES.replace("quotas: [2/1h]", "quotas: [3/1h]")).unwrap();
    third.send_signal("HUP");
    ok_json(&send(&one, "DELETE", "/v1/policies/api/quotas", &Value::Null));
    until_limit(&third, "a", 3);
    assert_eq!(limit(&third, "b"), 70);
}

#[test]
fn a_change_reaches_all_nodes_on_one_redis() {
    let redis = Server::start(Flavour::Redis);
    assert_change_reaches_all_nodes(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn a_change_reaches_all_nodes_on_one_postgres() {
    let postgres = Postgres::start();
    assert_change_reaches_all_nodes(&format!("{}?budget_ms=5000", postgres.url()));
}

#[test]
fn changes_are_restored_to_a_flushed_store() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("forgotten", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    redis.command(&["FLUSHALL"]).ok();
    until("the document is back", || match redis.command(&["EXISTS", "sg:note"]).int() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    assert_eq!(limit(&serve(&config, &["--store", &store]), "a"), 7);
}

#[test]
fn a_newer_document_replaces_a_restored_backup() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("older", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    // Restores an older document, as from a backup.
    assert_eq!(redis.command(&["COPY", "sg:note", "old"]).int(), 1);
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    assert_eq!(redis.command(&["COPY", "old", "sg:note", "REPLACE"]).int(), 1);
    let document_has = |needle: &str| {
        let document = redis.command(&["GET", "sg:note"]).text();
        if document.contains(needle) { Ok(()) } else { Err(document) }
    };
    until("the newer document is back", || document_has("login"));
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
}

#[test]
fn a_fresh_node_on_a_flushed_store_keeps_changes_of_others() {
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
fn a_node_without_its_store_reports_unknown_changes() {
    let config = TempFile::new("unknown", POLICIES);
    let server = serve(&config, &["--store", "redis://127.0.0.1:1"]);
    assert_eq!(server.get("/readyz").json()["changes_known"], false);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_changes_known 0"), "{metrics}");
    let rejection = send(&server, "PUT", "/v1/policies/api/mode", &json!({"mode": "off"}));
    assert!(rejection.status == 503 && rejection.body.contains("nothing was changed"), "{rejection:?}");
}

/// Expiry needs only the clock of the node.
#[test]
fn a_change_expires_without_the_store() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("ends-alone", POLICIES);
    let server = serve(&config, &["--store", &redis.url()]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"], "for": "2s"}));
    redis.kill();
    let decision = server.check(&json!({"policy": "api", "key": "a"})).decision();
    assert_eq!((&decision["source"], &decision["limit"]), (&json!("fallback"), &json!(7)), "{decision}");
    until_limit_of_checks(&server, 2);
}

/// Waits for the limit by checks, because a peek needs the store.
fn until_limit_of_checks(server: &ServeProcess, expected: u64) {
    until("the limit of the file", || {
        let decision = server.check(&json!({"policy": "api", "key": "a"})).decision();
        if decision["limit"] == json!(expected) { Ok(()) } else { Err(decision.to_string()) }
    });
}

/// Returns `Ok` if the document in Redis contains `needle`.
fn document_contains(redis: &Server, needle: &str) -> Result<(), String> {
    let document = redis.command(&["GET", "sg:note"]).text();
    if document.contains(needle) { Ok(()) } else { Err(document) }
}

/// Starts two nodes that have both read a document from the store.
fn nodes_with_change(config: &TempFile, redis: &Server) -> [ServeProcess; 2] {
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
fn concurrent_changes_after_a_flush_are_all_kept() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("flushed", POLICIES);
    let nodes = nodes_with_change(&config, &redis);
    for round in 100..103 {
        let (first, second) = (format!("first{round}"), format!("second{round}"));
        set_key(&nodes[0], &first, round);
        redis.command(&["FLUSHALL"]).ok();
        // The second node has not read the first change yet.
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
fn a_restored_backup_does_not_revive_removed_or_replaced_changes() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("backup", POLICIES);
    let nodes = nodes_with_change(&config, &redis);
    set_key(&nodes[0], "removed", 20);
    set_key(&nodes[0], "replaced", 30);
    until_limit(&nodes[1], "replaced", 30);
    assert_eq!(redis.command(&["COPY", "sg:note", "old"]).int(), 1);
    ok_json(&send(&nodes[0], "DELETE", "/v1/policies/api/keys/removed", &Value::Null));
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
    until("the store has the newest document", || document_contains(&redis, "newest"));
    let third = serve(&config, &["--store", &format!("{}?budget_ms=5000", redis.url())]);
    for (key, limit) in [("newest", 50), ("replaced", 31), ("removed", 2), ("other0", 60)] {
        until_limit(&third, key, limit);
    }
}

#[test]
fn concurrent_writers_lose_no_change_when_the_store_is_flushed() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("writers", POLICIES);
    let nodes = nodes_with_change(&config, &redis);
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
