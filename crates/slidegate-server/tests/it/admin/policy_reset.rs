//! All keys of a policy are forgotten: by the admin API, at the shell, and on every node.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use super::{POLICIES, READ, WRITE, admin_address, ask, ask_as, audited, done, put, serve};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const RESET: &str = "/v1/policies/api/reset";

fn check(server: &ServeProcess, policy: &str, key: &str) -> Value {
    server.check(&json!({"policy": policy, "key": key, "cost": 2})).decision()
}

/// Spends all that two keys have.
fn spend(server: &ServeProcess) {
    for key in ["a", "b"] {
        assert_eq!(check(server, "api", key)["allowed"], true);
        assert_eq!(check(server, "api", key)["allowed"], false);
    }
}

#[test]
fn all_keys_of_a_policy_are_forgotten_and_that_is_audited() {
    let config = TempFile::new("forget", POLICIES);
    let server = serve(&config, &[]);
    spend(&server);
    assert_eq!(check(&server, "login", "a")["remaining"], 1);
    // In another tier it is the same count.
    put(&server, "/v1/policies/api/keys/b", &json!({"tier": "premium"}));
    let said = done(&ask(&server, "POST", RESET, &json!({"note": "ticket 42"})));
    assert_eq!((&said["done"], &said["keys"], &said["kept"]), (&json!(true), &Value::Null, &json!(true)));
    let entry = &audited(&server, "reset")[0];
    assert_eq!(&said["audit"], entry);
    assert_eq!(
        json!([entry["by"], entry["policy"], entry["of"], entry["name"], entry["after"], entry["note"]]),
        json!(["(no token)", "api", "keys", null, null, "ticket 42"])
    );
    assert_eq!(check(&server, "api", "a")["remaining"], 0);
    assert_eq!(check(&server, "api", "b")["remaining"], 3);
    let other = server.post("/v1/peek", &json!({"policy": "login", "key": "a"})).decision();
    assert_eq!(other["remaining"], 1, "another policy counts on");
    // What has been changed is no count.
    let changes = done(&ask(&server, "GET", "/v1/changes", &Value::Null));
    assert_eq!(changes["changes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_reset_of_a_policy_that_makes_no_sense_is_refused() {
    let tokens = format!(
        "{POLICIES}\nadmin:\n  tokens:\n    - {{name: viewer, token: {READ}}}\n    - {{name: ops, token: {WRITE}, scope: write}}\n"
    );
    let config = TempFile::new("forget-scopes", &tokens);
    let server = serve(&config, &[]);
    spend(&server);
    for (token, path, body, status) in [
        ("", RESET, json!({}), 401),
        (READ, RESET, json!({}), 403),
        (WRITE, "/v1/policies/nobody/reset", json!({}), 404),
        (WRITE, RESET, json!({"cost": 1}), 422),
        (WRITE, RESET, json!({"note": "x".repeat(501)}), 422),
        (WRITE, RESET, json!([]), 400),
    ] {
        assert_eq!(ask_as(&server, token, "POST", path, &body).status, status, "{token} {path} {body}");
    }
    assert_eq!(ask_as(&server, WRITE, "DELETE", RESET, &Value::Null).status, 405);
    assert_eq!(check(&server, "api", "a")["allowed"], false, "nothing was forgotten");
    done(&ask_as(&server, WRITE, "POST", RESET, &Value::Null));
    assert_eq!(check(&server, "api", "a")["allowed"], true);
}

/// What one node forgets is not denied by another one, which remembers denials for longer than a second.
fn is_forgotten_by_all(store: &str) {
    let config = TempFile::new("forget-nodes", POLICIES);
    let [here, elsewhere] = [0; 2].map(|_| serve(&config, &["--store", store]));
    spend(&here);
    let remembers = || (check(&here, "api", "a")["source"] == "cache").then_some(()).ok_or(String::new());
    until("the denial is remembered", remembers);
    let said = done(&ask(&elsewhere, "POST", RESET, &Value::Null));
    assert_eq!((&said["done"], &said["keys"]), (&json!(true), &json!(2)));
    until("the other node lets it in", || {
        let answer = check(&here, "api", "a");
        if answer["allowed"] == true { Ok(()) } else { Err(answer.to_string()) }
    });
    assert_eq!(check(&elsewhere, "api", "b")["allowed"], true);
}

#[test]
fn a_policy_is_forgotten_by_all_nodes_on_one_redis() {
    for flavour in Flavour::ALL {
        let redis = Server::start(flavour);
        is_forgotten_by_all(&format!("{}?budget_ms=5000", redis.url()));
    }
}

#[test]
fn a_policy_is_forgotten_by_all_nodes_on_one_postgres() {
    for options in ["budget_ms=5000", "budget_ms=5000&durable=true"] {
        let postgres = Postgres::start();
        is_forgotten_by_all(&format!("{}?{options}", postgres.url()));
    }
}

#[test]
fn the_shell_forgets_in_a_store_and_by_the_admin_api() {
    let redis = Server::start(Flavour::Redis);
    let url = redis.url();
    let config = TempFile::new("forget-shell", &POLICIES.replace("  api:", "  an/api ä:"));
    let server = serve(&config, &["--store", &url]);
    let admin = format!("http://{}", admin_address(&server));
    let reset =
        |more: &[&str]| outcome(slidegate().args(["reset", "--all", "--policy", "an/api ä"]).args(more));
    let with_config = ["--config", config.path(), "--store", &url];
    for (more, expected) in [
        (&["--admin", &admin][..], "forgotten: 2 keys of an/api ä\n"),
        (&["--store", &url], "forgotten: 2 keys of an/api ä\n"),
        (&with_config, "forgotten: 2 keys of an/api ä\n"),
        (&["--store", &url, "--json"], "{\"done\":true,\"keys\":2}\n"),
    ] {
        for key in ["a", "b"] {
            assert_eq!(check(&server, "an/api ä", key)["allowed"], true, "{more:?}");
        }
        let (code, out, err) = reset(more);
        assert_eq!((code, out.as_str()), (0, expected), "{err}");
        until("the node has heard of it", || {
            let seen = server.post("/v1/peek", &json!({"policy": "an/api ä", "key": "a"})).decision();
            if seen["remaining"] == 2 { Ok(()) } else { Err(seen.to_string()) }
        });
    }
    let of_memory = serve(&config, &[]);
    let (code, out, err) = reset(&["--admin", &format!("http://{}", admin_address(&of_memory))]);
    assert_eq!((code, out.as_str()), (0, "forgotten: all keys of an/api ä\n"), "{err}");
}

#[test]
fn the_shell_says_what_is_missing_to_forget_a_policy() {
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
        (&all, "counts in memory belong to the process that has them; name its admin API with --admin URL"),
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
            "is this the address of its admin API?",
        ),
    ] {
        let (code, out, err) = outcome(slidegate().args(words));
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert!(err.contains(expected), "{words:?}: {expected} in {err}");
    }
}
