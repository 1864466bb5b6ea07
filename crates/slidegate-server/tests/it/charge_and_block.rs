//! Charges, blocks, resets, limits of 0 and the additional fields of a peek.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server as Redis};

use crate::harness::{Response, Server};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const MAX_BLOCK_MS: u64 = 366 * 86_400_000;

#[test]
fn a_charge_counts_beyond_the_limit_and_expires_with_its_window() {
    let server = Server::start();
    let send = |verb: &str, cost: u64| {
        let body = json!({"quotas": ["10/1m fixed-window"], "key": "a", "cost": cost});
        server.post(&format!("/v1/{verb}"), body.to_string()).decision()
    };
    let summary =
        |decision: &Value| json!([decision["allowed"], decision["quotas"][0]["used"], decision["remaining"]]);
    assert_eq!(summary(&send("charge", 7)), json!([true, 7, 3]));
    let over = send("charge", 7);
    assert_eq!(summary(&over), json!([false, 14, 0]));
    assert_eq!((&over["violated"], &over["source"]), (&json!(["10/1m"]), &json!("store")));
    assert_eq!(summary(&send("check", 1)), json!([false, 14, 0]));
    assert_eq!(summary(&send("peek", 0)), json!([false, 14, 0]), "the limit is exceeded");
    assert_eq!(summary(&send("refund", 4)), json!([true, 10, 0]));
    assert_eq!(summary(&send("peek", 0)), json!([true, 10, 0]));
    server.clock.advance(60_000);
    assert_eq!(summary(&send("check", 1)), json!([true, 1, 9]));
}

#[test]
fn a_block_denies_a_key_until_it_expires_or_a_reset() {
    let server = Server::start();
    let send = |verb: &str, more: &Value| {
        let mut body = json!({"policy": "api", "key": "a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(&format!("/v1/{verb}"), body.to_string()).decision()
    };
    let nothing = json!({});
    let summary =
        |decision: &Value| json!([decision["allowed"], decision["remaining"], decision["retry_after_ms"]]);
    assert_eq!(summary(&send("check", &nothing)), json!([true, 99, null]));
    assert_eq!(summary(&send("block", &json!({"for_ms": 600_000}))), json!([true, 0, null]));
    assert_eq!(summary(&send("check", &nothing)), json!([false, 0, 600_000]));
    server.clock.advance(599_999);
    assert_eq!(summary(&send("peek", &json!({"tier": "premium"}))), json!([false, 0, 1]), "in every tier");
    server.clock.advance(1);
    assert_eq!(summary(&send("check", &nothing)), json!([true, 99, null]));
    // A shorter block replaces the longer one, and a reset ends it.
    for for_ms in [MAX_BLOCK_MS, 5] {
        assert_eq!(send("block", &json!({"for_ms": for_ms}))["allowed"], true);
        assert_eq!(summary(&send("check", &nothing)), json!([false, 0, for_ms]));
    }
    assert_eq!(send("reset", &nothing)["found"], true);
    assert_eq!(summary(&send("check", &nothing)), json!([true, 99, null]));
}

#[test]
fn forget_removes_all_counts_and_blocks_of_a_policy() {
    let server = Server::start();
    let request = |verb: &str, body: Value| server.post(&format!("/v1/{verb}"), body.to_string());
    for key in ["a", "b"] {
        request("check", json!({"policy": "api", "key": key, "cost": 60}));
        request("check", json!({"policy": "login", "key": key}));
    }
    request("block", json!({"policy": "api", "key": "a", "for_ms": 600_000}));
    let response = request("forget", json!({"policy": "api"}));
    assert_eq!(response.status, 200);
    assert_eq!(
        response.json(),
        json!({"policy": "api", "done": true, "keys": null}),
        "the memory store does not count the keys"
    );
    for key in ["a", "b"] {
        let peek = |policy: &str| request("peek", json!({"policy": policy, "key": key})).decision();
        assert_eq!((&peek("api")["allowed"], &peek("api")["remaining"]), (&json!(true), &json!(100)));
        assert_eq!(peek("login")["quotas"][0]["used"], 1, "another policy keeps its counts");
    }
}

#[test]
fn an_invalid_forget_changes_nothing() {
    let server = Server::start();
    let request = |verb: &str, body: &str| server.post(&format!("/v1/{verb}"), body);
    request("check", r#"{"policy": "api", "key": "a", "cost": 60}"#);
    for (body, status, detail) in [
        (r#"{"policy": "other"}"#, 404, r#"there is no policy "other""#),
        (r#"{"policy": "api", "key": "a"}"#, 422, "unknown field `key`"),
        ("{}", 422, "is missing"),
        (r#"{"policy": 5}"#, 422, "expected a string"),
        (r#"[{"policy": "api"}]"#, 422, "expected"),
        ("policy", 400, "expected"),
        ("", 400, "EOF"),
    ] {
        let rejection = request("forget", body);
        assert_eq!(rejection.status, status, "{body}: {:?}", rejection.json());
        let message = rejection.json()["detail"].as_str().unwrap().to_owned();
        assert!(message.contains(detail), "{body}: {message}");
    }
    let peeked = request("peek", r#"{"policy": "api", "key": "a"}"#).decision();
    assert_eq!(peeked["remaining"], 40);
}

#[test]
fn forget_reaches_every_node_and_returns_the_number_of_keys() {
    let redis = Redis::start(Flavour::Redis);
    let postgres = Postgres::start();
    for url in [redis.url(), postgres.url()] {
        let config = TempFile::new("forget", "policies: {api: {quotas: [10/1h]}}\n");
        let url = format!("{url}?budget_ms=5000");
        let args = ["serve", "--http", "127.0.0.1:0", "--config", config.path(), "--store", &url];
        let nodes = [(); 2].map(|()| ServeProcess::start(slidegate().args(args)));
        for key in ["a", "b", "c"] {
            nodes[0].check(&json!({"policy": "api", "key": key, "cost": 10}));
        }
        let response = nodes[1].post("/v1/forget", &json!({"policy": "api"}));
        assert_eq!(response.status, 200, "{url}");
        assert_eq!(response.json(), json!({"policy": "api", "done": true, "keys": 3}), "{url}");
        for node in &nodes {
            let peeked = node.post("/v1/peek", &json!({"policy": "api", "key": "a"})).decision();
            assert_eq!(peeked["remaining"], 10, "{url}");
        }
    }
}

#[test]
fn for_ms_is_required_by_blocks_and_rejected_elsewhere() {
    let server = Server::start();
    let send = |path: &str, body: &Value| -> Response { server.post(path, body.to_string()) };
    for (path, field, more) in [
        ("/v1/block", "for_ms", json!({})),
        ("/v1/block", "for_ms", json!({"for_ms": 0})),
        ("/v1/block", "for_ms", json!({"for_ms": MAX_BLOCK_MS + 1})),
        ("/v1/block", "for_ms", json!({"for_ms": "10m"})),
        ("/v1/block", "for_ms", json!({"for_ms": 1.5})),
        ("/v1/block", "cost", json!({"for_ms": 5, "cost": 1})),
        ("/v1/check", "for_ms", json!({"for_ms": 5})),
        ("/v1/charge", "for_ms", json!({"for_ms": 5, "cost": 1})),
        ("/v1/reset", "for_ms", json!({"for_ms": 5})),
    ] {
        let mut body = json!({"policy": "api", "key": "a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = send(path, &body);
        assert_eq!(
            (response.status, &response.json()["field"]),
            (422, &json!(field)),
            "{path} {more}: {response:?}"
        );
    }
    // Only the invalid request of a batch is rejected.
    let one = |key: &str, for_ms: u64| json!({"policy": "api", "key": key, "for_ms": for_ms});
    let batch = send("/v1/block", &json!([one("x", 1000), one("y", 0), one("z", 2000)])).decision();
    assert_eq!((&batch[0]["allowed"], &batch[1]["status"]), (&json!(true), &json!(422)));
    let seen =
        send("/v1/peek", &json!(["x", "y", "z"].map(|key| json!({"policy": "api", "key": key})))).decision();
    let waits: Vec<&Value> =
        seen.as_array().unwrap().iter().map(|decision| &decision["retry_after_ms"]).collect();
    assert_eq!(waits, [&json!(1000), &Value::Null, &json!(2000)]);
}

#[test]
fn a_peek_lists_the_parts_of_a_count_and_a_check_does_not() {
    let server = Server::start();
    let quotas = ["20/1m", "20/2m sliding-log", "20/3m fixed-window"];
    let send = |verb: &str, cost: u64| {
        let body = json!({"quotas": quotas, "key": "a", "cost": cost});
        server.post(&format!("/v1/{verb}"), body.to_string()).decision()
    };
    let parts = |decision: &Value| -> Vec<Value> {
        let each = decision["quotas"].as_array().unwrap().iter();
        each.map(|quota| json!([quota["used"], quota["previous"], quota["current"], quota["oldest_age_ms"]]))
            .collect()
    };
    assert_eq!(
        parts(&send("peek", 0)),
        [json!([0, 0, 0, null]), json!([0, 0, 0, null]), json!([0, 0, 0, null])]
    );
    let check = send("check", 4);
    let names: Vec<&String> = check["quotas"][0].as_object().unwrap().keys().collect();
    let mut expected =
        ["name", "limit", "window_ms", "used", "remaining", "reset_after_ms", "retry_after_ms"];
    expected.sort_unstable();
    assert_eq!(names, expected, "the fields of a check are part of the API");
    server.clock.advance(90_000);
    let _ = send("charge", 3);
    let seen = send("peek", 0);
    // The sliding window counts half of the previous 4.
    assert_eq!(parts(&seen), [json!([5, 4, 3, null]), json!([7, 0, 7, 90_000]), json!([7, 0, 7, null])]);
    let quota = seen["quotas"][0].as_object().unwrap();
    assert!(quota.contains_key("oldest_age_ms"), "null is written out");
    for verb in ["check", "charge", "refund", "reset"] {
        assert!(send(verb, 0)["quotas"][0].get("previous").is_none(), "{verb}");
    }
}

#[test]
fn a_reset_reports_whether_the_key_existed() {
    let server = Server::start();
    let send =
        |verb: &str| server.post(&format!("/v1/{verb}"), r#"{"quotas": ["2/1s"], "key": "a"}"#).decision();
    assert_eq!(send("reset")["found"], false);
    assert!(send("check").get("found").is_none() && send("peek").get("found").is_none());
    assert_eq!(send("reset")["found"], true);
    assert_eq!(send("reset")["found"], false);
    let _ = send("check");
    server.clock.advance(2000);
    assert_eq!(send("reset")["found"], false, "all counts have expired");
}

#[test]
fn a_limit_of_zero_denies_every_cost_above_zero() {
    let file = "policies:\n  closed: {quotas: [0/1h]}\n  open: {quotas: [{limit: 5, window: 1h}], tiers: {none: {quotas: [{limit: 0, window: 1h}]}}}\n";
    let server = Server::with_config(file);
    let send = |body: Value| server.check(body.to_string()).decision();
    for body in [
        json!({"policy": "closed", "key": "a"}),
        json!({"policy": "open", "tier": "none", "key": "a"}),
        json!({"quotas": ["0/1m"], "key": "a"}),
        json!({"quotas": [{"limit": 0, "window": "1m", "algorithm": "token-bucket"}, "5/1m"], "key": "a"}),
    ] {
        let decision = send(body.clone());
        let summary =
            json!([decision["allowed"], decision["never"], decision["limit"], decision["retry_after_ms"]]);
        assert_eq!(summary, json!([false, true, 0, null]), "{body}");
        let mut free = body;
        free["cost"] = json!(0);
        assert_eq!(send(free)["allowed"], true);
    }
    assert_eq!(send(json!({"policy": "open", "key": "a"}))["remaining"], 4);
}

/// Runs all commands on a shared store, through a server and directly.
fn assert_commands_work_on(store: &str) {
    let config = TempFile::new("verbs", "policies:\n  api: {quotas: [5/1h]}\n");
    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--store", store, "--config", config.path()]);
    let server = ServeProcess::start(&mut serve);
    let server_args = ["--server", server.url()];
    let store_args = ["--store", store, "--config", config.path()];
    let run = |words: &[&str], target: &[&str]| {
        let (code, out, err) =
            outcome(slidegate().args(words).args(["user:1", "--policy", "api"]).args(target));
        (code, if out.is_empty() { err } else { out })
    };
    for (words, target, code, expected) in [
        (&["reset"][..], &server_args[..], 0, "nothing to reset: 5 of 5 left\n"),
        (&["charge", "--cost", "3"], &store_args, 0, "charged: 2 of 5 left\n"),
        (&["charge", "--cost", "4"], &server_args, 1, "charged: over 5/1h, within the limit again in "),
        (&["check"], &store_args, 1, "denied by 5/1h: retry in "),
        (&["reset"], &store_args, 0, "reset: 5 of 5 left\n"),
        (&["block", "--for", "1h"], &server_args, 0, "blocked: 0 of 5 left, full again in 3600 s\n"),
        (&["check"], &store_args, 1, "denied by 5/1h: retry in 3"),
        (&["block", "--for", "2h"], &store_args, 0, "blocked: 0 of 5 left, full again in 7200 s\n"),
        (&["check"], &server_args, 1, "denied by 5/1h: retry in 7"),
        (&["reset"], &server_args, 0, "reset: 5 of 5 left\n"),
        (&["check"], &store_args, 0, "allowed: 4 of 5 left"),
        (&["block", "--for", "0s"], &server_args, 2, "error: invalid value '0s' for '--for <TIME>'"),
        (&["block", "--for", "367d"], &server_args, 2, "error: invalid value '367d' for '--for <TIME>'"),
        (
            &["block"],
            &server_args,
            2,
            "error: the following required arguments were not provided:\n  --for <TIME>",
        ),
    ] {
        let (exit_code, output) = run(words, target);
        assert_eq!(exit_code, code, "{words:?}: {output}");
        assert!(output.starts_with(expected), "{words:?}: {expected} in {output}");
    }
    let peek = server.post("/v1/peek", &json!({"policy": "api", "key": "user:1"})).decision();
    assert_eq!(json!([peek["quotas"][0]["current"], peek["quotas"][0]["previous"]]), json!([1, 0]));
}

#[test]
fn charge_and_block_work_on_redis() {
    for flavour in Flavour::ALL {
        let redis = Redis::start(flavour);
        assert_commands_work_on(&format!("{}?budget_ms=5000", redis.url()));
    }
}

#[test]
fn charge_and_block_work_on_postgres() {
    let postgres = Postgres::start();
    assert_commands_work_on(&format!("{}?budget_ms=5000", postgres.url()));
}

#[test]
fn charge_and_block_need_a_persistent_store() {
    for words in [&["charge", "a"][..], &["block", "a", "--for", "1m"]] {
        let (code, out, err) = outcome(slidegate().args(words).args(["--quota", "5/1m"]));
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}");
        assert!(err.contains(&format!("nothing to {}", words[0])), "{err}");
    }
}
