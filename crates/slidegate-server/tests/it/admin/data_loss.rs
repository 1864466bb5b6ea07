//! Changes after data loss of the store: a lost document, a restored backup, and nodes that write meanwhile.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{POLICIES, get, limit, ok_json, put, send, serve, until_limit};
use crate::process::{ServeProcess, TempFile};

/// A server that stores the document of changes.
enum DocumentServer {
    Redis(Server),
    Postgres(Postgres),
}

impl DocumentServer {
    fn redis() -> Self {
        Self::Redis(Server::start(Flavour::Redis))
    }

    fn postgres() -> Self {
        Self::Postgres(Postgres::start())
    }

    fn serve(&self, config: &TempFile) -> ServeProcess {
        let url = match self {
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
        };
        serve(config, &["--store", &format!("{url}?budget_ms=5000")])
    }

    fn lose_document(&self) {
        match self {
            Self::Redis(server) => {
                server.command(&["FLUSHALL"]).ok();
            }
            Self::Postgres(server) => {
                server.sql("DELETE FROM slidegate.shared_document");
            }
        }
    }

    fn back_up_document(&self) {
        match self {
            Self::Redis(server) => assert_eq!(server.command(&["COPY", "sg:note", "backup"]).int(), 1),
            Self::Postgres(server) => {
                server.sql("CREATE TABLE backup AS TABLE slidegate.shared_document");
            }
        }
    }

    fn restore_document(&self) {
        match self {
            Self::Redis(server) => {
                assert_eq!(server.command(&["COPY", "backup", "sg:note", "REPLACE"]).int(), 1);
            }
            Self::Postgres(server) => {
                server.sql(
                    "DELETE FROM slidegate.shared_document; \
                     INSERT INTO slidegate.shared_document SELECT * FROM backup",
                );
            }
        }
    }

    /// Returns the document, or an empty text without one.
    fn document(&self) -> String {
        match self {
            Self::Redis(server) => match server.command(&["EXISTS", "sg:note"]).int() {
                1 => server.command(&["GET", "sg:note"]).text(),
                _ => String::new(),
            },
            Self::Postgres(server) => {
                let rows = server.sql("SELECT text FROM slidegate.shared_document");
                rows.first().and_then(|row| row[0].clone()).unwrap_or_default()
            }
        }
    }

    fn until_document_contains(&self, text: &str) {
        until(&format!("{text} is in the document"), || {
            let document = self.document();
            if document.contains(text) { Ok(()) } else { Err(document) }
        });
    }
}

fn set_key(node: &ServeProcess, key: &str, limit: u64) {
    put(node, &format!("/v1/policies/api/keys/{key}"), &json!({"quotas": [format!("{limit}/1h")]}));
}

/// Starts two nodes that have both read a document from the store.
fn nodes_with_change(config: &TempFile, store: &DocumentServer) -> [ServeProcess; 2] {
    let nodes = [(); 2].map(|()| store.serve(config));
    set_key(&nodes[0], "known", 9);
    until_limit(&nodes[1], "known", 9);
    nodes
}

fn changes_are_restored_to_a_store_that_lost_them(store: &DocumentServer) {
    let config = TempFile::new("lost", POLICIES);
    let server = store.serve(&config);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    store.lose_document();
    store.until_document_contains("7/1h");
    assert_eq!(limit(&store.serve(&config), "a"), 7);
}

fn a_newer_document_replaces_a_restored_backup(store: &DocumentServer) {
    let config = TempFile::new("older", POLICIES);
    let server = store.serve(&config);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    store.back_up_document();
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    store.restore_document();
    store.until_document_contains("login");
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
}

fn a_fresh_node_keeps_lost_changes_of_others(store: &DocumentServer) {
    let config = TempFile::new("fresh", POLICIES);
    let old = store.serve(&config);
    set_key(&old, "a", 70);
    store.lose_document();
    let fresh = store.serve(&config);
    set_key(&fresh, "b", 700);
    for server in [&old, &fresh] {
        until_limit(server, "a", 70);
        until_limit(server, "b", 700);
    }
}

fn concurrent_changes_around_a_loss_are_all_kept(store: &DocumentServer) {
    let config = TempFile::new("flushed", POLICIES);
    let nodes = nodes_with_change(&config, store);
    for round in 100..103 {
        let (first, second) = (format!("first{round}"), format!("second{round}"));
        set_key(&nodes[0], &first, round);
        store.lose_document();
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

fn a_restored_backup_does_not_revive_removed_or_replaced_changes(store: &DocumentServer) {
    let config = TempFile::new("backup", POLICIES);
    let nodes = nodes_with_change(&config, store);
    set_key(&nodes[0], "removed", 20);
    set_key(&nodes[0], "replaced", 30);
    until_limit(&nodes[1], "replaced", 30);
    store.back_up_document();
    ok_json(&send(&nodes[0], "DELETE", "/v1/policies/api/keys/removed", &Value::Null));
    set_key(&nodes[0], "replaced", 31);
    set_key(&nodes[0], "new", 40);
    until_limit(&nodes[1], "new", 40);
    set_key(&nodes[0], "newest", 50);
    store.restore_document();
    // A node changes the restored document before it has read the newest change.
    for number in 0..9 {
        set_key(&nodes[1], &format!("other{number}"), 60);
    }
    for node in &nodes {
        for (key, limit) in [("newest", 50), ("new", 40), ("replaced", 31), ("removed", 2), ("other8", 60)] {
            until_limit(node, key, limit);
        }
    }
    store.until_document_contains("newest");
    let third = store.serve(&config);
    for (key, limit) in [("newest", 50), ("replaced", 31), ("removed", 2), ("other0", 60)] {
        until_limit(&third, key, limit);
    }
}

fn concurrent_writers_lose_no_change_when_the_store_loses_it(store: &DocumentServer) {
    let config = TempFile::new("writers", POLICIES);
    let nodes = nodes_with_change(&config, store);
    let count = 15;
    std::thread::scope(|scope| {
        for (name, node) in ["a", "b"].iter().zip(&nodes) {
            scope.spawn(move || {
                for number in 0..count {
                    if number % 3 == 0 {
                        store.lose_document();
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

/// Defines each test for Redis and for PostgreSQL.
macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        mod on_redis {
            use super::DocumentServer;

            $(#[test]
            fn $name() {
                super::$name(&DocumentServer::redis());
            })+
        }

        mod on_postgres {
            use super::DocumentServer;

            $(#[test]
            fn $name() {
                super::$name(&DocumentServer::postgres());
            })+
        }
    };
}

on_each_store!(
    changes_are_restored_to_a_store_that_lost_them,
    a_newer_document_replaces_a_restored_backup,
    a_fresh_node_keeps_lost_changes_of_others,
    concurrent_changes_around_a_loss_are_all_kept,
    a_restored_backup_does_not_revive_removed_or_replaced_changes,
    concurrent_writers_lose_no_change_when_the_store_loses_it,
);
