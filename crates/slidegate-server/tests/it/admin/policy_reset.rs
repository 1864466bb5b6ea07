//! Reset of all keys of a policy: by the admin API, on the command line, and on every node.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{
    POLICIES, READ, WRITE, admin_address, audit_entries, ok_json, put, send, send_with_token, serve,
};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const RESET: &str = "/v1/policies/api/reset";

fn check(server: &ServeProcess, policy: &str, key: &str) -> Value {
    server.check(&json!({"policy": policy, "key": key, "cost": 2})).decision()
}

/// Exhausts the limits of two keys.
fn exhaust_limits(server: &ServeProcess) {
    for key in ["a", "b"] {
        assert_eq!(check(server, "api", key)["allowed"], true);
        assert_eq!(check(server, "api", key)["allowed"], false);
    }
}

#[test]
fn a_reset_of_a_policy_is_audited() {
    let config = TempFile::new("forget", POLICIES);
    let server = serve(&config, &[]);
    exhaust_limits(&server);
    assert_eq!(check(&server, "login", "a")["remaining"], 1);
    // The tier of the key does not affect its count.
    put(&server, "/v1/policies/api/keys/b", &json!({"tier": "premium"}));
    let reset = ok_json(&send(&server, "POST", RESET, &json!({"note": "ticket 42"})));
    assert_eq!((&reset["done"], &reset["keys"], &reset["kept"]), (&json!(true), &Value::Null, &json!(true)));
    let entry = &audit_entries(&server, "reset")[0];
    assert_eq!(&reset["audit"], entry);
    assert_eq!(
        json!([entry["by"], entry["policy"], entry["of"], entry["name"], entry["after"], entry["note"]]),
        json!(["(no token)", "api", "keys", null, null, "ticket 42"])
    );
    assert_eq!(check(&server, "api", "a")["remaining"], 0);
    assert_eq!(check(&server, "api", "b")["remaining"], 3);
    let other = server.post("/v1/peek", &json!({"policy": "login", "key": "a"})).decision();
    assert_eq!(other["remaining"], 1, "the counts of another policy remain");
    // A reset does not remove changes.
    let changes = ok_json(&send(&server, "GET", "/v1/changes", &Value::Null));
    assert_eq!(changes["changes"].as_array().unwrap().len(), 1);
}

#[test]
fn an_invalid_reset_of_a_policy_is_rejected() {
    let tokens = format!(
        "{POLICIES}\nadmin:\n  tokens:\n    - {{name: viewer, token: {READ}}}\n    - {{name: ops, token: {WRITE}, scope: write}}\n"
    );
    let config = TempFile::new("forget-scopes", &tokens);
    let server = serve(&config, &[]);
    exhaust_limits(&server);
    for (token, path, body, status) in [
        ("", RESET, json!({}), 401),
        (READ, RESET, json!({}), 403),
        (WRITE, "/v1/policies/unknown/reset", json!({}), 404),
        (WRITE, RESET, json!({"cost": 1}), 422),
        (WRITE, RESET, json!({"note": "x".repeat(501)}), 422),
        (WRITE, RESET, json!([]), 400),
    ] {
        assert_eq!(
            send_with_token(&server, token, "POST", path, &body).status,
            status,
            "{token} {path} {body}"
        );
    }
    assert_eq!(send_with_token(&server, WRITE, "DELETE", RESET, &Value::Null).status, 405);
    assert_eq!(check(&server, "api", "a")["allowed"], false, "nothing was reset");
    ok_json(&send_with_token(&server, WRITE, "POST", RESET, &Value::Null));
    assert_eq!(check(&server, "api", "a")["allowed"], true);
}

/// A reset through one node also clears the denials that another node has cached.
fn assert_reset_on_all_nodes(store: &str) {
    let config = TempFile::new("forget-nodes", POLICIES);
    let [local, remote] = [0; 2].map(|_| serve(&config, &["--store", store]));
    exhaust_limits(&local);
    let is_cached = || (check(&local, "api", "a")["source"] == "cache").then_some(()).ok_or(String::new());
    until("the denial is cached", is_cached);
    let reset = ok_json(&send(&remote, "POST", RESET, &Value::Null));
    assert_eq!((&reset["done"], &reset["keys"]), (&json!(true), &json!(2)));
    until("the other node allows the key", || {
        let decision = check(&local, "api", "a");
        if decision["allowed"] == true { Ok(()) } else { Err(decision.to_string()) }
    });
    assert_eq!(check(&remote, "api", "b")["allowed"], true);
}

#[test]
fn a_reset_reaches_all_nodes_on_one_redis() {
    for flavour in Flavour::ALL {
        let redis = Server::start(flavour);
        assert_reset_on_all_nodes(&format!("{}?budget_ms=5000", redis.url()));
    }
}

#[test]
fn a_reset_reaches_all_nodes_on_one_postgres() {
    for options in ["budget_ms=5000", "budget_ms=5000&durable=true"] {
        let postgres = Postgres::start();
        assert_reset_on_all_nodes(&format!("{}?{options}", postgres.url()));
    }
}

#[test]
fn the_reset_command_works_on_a_store_and_on_the_admin_api() {
    let redis = Server::start(Flavour::Redis);
    let url = redis.url();
    let config = TempFile::new("forget-shell", &POLICIES.replace("  api:", "  an/api ä:"));
    let server = serve(&config, &["--store", &url]);
    let admin = format!("http://{}", admin_address(&server));
    let reset =
        |more: &[&str]| outcome(slidegate().args(["reset", "--all", "--policy", "an/api ä"]).args(more));
    let with_config = ["--config", config.path(), "--store", &url];
    for (more, expected) in [
        (&["--admin", &admin][..], "reset: 2 keys of an/api ä\n"),
        (&["--store", &url], "reset: 2 keys of an/api ä\n"),
        (&with_config, "reset: 2 keys of an/api ä\n"),
        (&["--store", &url, "--json"], "{\"done\":true,\"keys\":2}\n"),
    ] {
        for key in ["a", "b"] {
            assert_eq!(check(&server, "an/api ä", key)["allowed"], true, "{more:?}");
        }
        let (code, out, err) = reset(more);
        assert_eq!((code, out.as_str()), (0, expected), "{err}");
        until("the reset has reached the node", || {
            let seen = server.post("/v1/peek", &json!({"policy": "an/api ä", "key": "a"})).decision();
            if seen["remaining"] == 2 { Ok(()) } else { Err(seen.to_string()) }
        });
    }
    let memory_server = serve(&config, &[]);
    let (code, out, err) = reset(&["--admin", &format!("http://{}", admin_address(&memory_server))]);
    assert_eq!((code, out.as_str()), (0, "reset: all keys of an/api ä\n"), "{err}");
}

#[test]
fn the_reset_command_names_missing_arguments() {
    let config = TempFile::new("forget-wrong", POLICIES);
    let server = serve(&config, &[]);
    let admin = format!("http://{}", admin_address(&server));
    let all = ["reset", "--all", "--policy", "api"];
    for (words, expected) in [
        (&["reset"][..], "<KEY>"),
        (&["reset", "--all"], "--policy <NAME>"),
        (&["reset", "a", "--all", "--policy", "api"], "cannot be used with"),
        (&["reset", "--all", "--quota", "1/1m"], "cannot be used with"),
        (&["reset", "a", "--policy", "api", "--admin", &admin], "cannot be used with"),
        (&["reset", "--policy", "api", "--admin", &admin], "--all"),
        (&["check", "--policy", "api"], "<KEY>"),
        (&all, "counts in memory belong to one process; name the admin API of a service with --admin URL"),
        (
            &["reset", "--all", "--policy", "no", "--admin", &admin],
            "there is no policy \"no\"; known: \"api\", \"login\"\n",
        ),
        (
            &[
                "reset",
                "--all",
                "--policy",
                "no",
                "--config",
                config.path(),
                "--store",
                "redis://127.0.0.1:1",
            ],
            "there is no policy \"no\"; known: \"api\", \"login\"\n",
        ),
        (
            &["reset", "--all", "--policy", "api", "--admin", server.url()],
            "is this the URL of the admin API?",
        ),
    ] {
        let (code, out, err) = outcome(slidegate().args(words));
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert!(err.contains(expected), "{words:?}: {expected} in {err}");
    }
}
