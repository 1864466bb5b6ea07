//! Changes on nodes that share a store, and on a node without its store.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{POLICIES, limit, ok_json, put, send, serve, until_expired, until_limit};
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
