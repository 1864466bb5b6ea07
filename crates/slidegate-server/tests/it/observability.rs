//! Metrics, readiness and log lines.
#![allow(clippy::float_cmp, reason = "whole numbers")]

use std::collections::HashMap;
use std::fs;
use std::process::Stdio;

use serde_json::json;
use slidegate_testkit::{Flavour, Server};

use crate::harness;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

fn start(config: &TempFile, more: &[&str]) -> ServeProcess {
    ServeProcess::start(
        slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]).args(more),
    )
}

/// Scrapes all series with their values.
fn metrics(server: &ServeProcess) -> HashMap<String, f64> {
    let response = server.get("/metrics");
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let lines = response.body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn decisions_are_counted_by_policy_quota_and_outcome() {
    let config = TempFile::new(
        "counted",
        "policies:\n  api: {quotas: [20/1h, 30/1d], tiers: {gold: {quotas: [99/1h]}}}\n  off: {quotas: [1/1h], mode: off}\n  \
         shadowed: {quotas: [1/1h], mode: shadow}\n",
    );
    let server = start(&config, &[]);
    for _ in 0..23 {
        server.check(&json!({"policy": "api", "key": "a"})).decision();
    }
    server.check(&json!({"policy": "api", "key": "b", "tier": "gold"})).decision();
    server.check(&json!([{"policy": "shadowed", "key": "a"}, {"policy": "shadowed", "key": "a"}, {"policy": "off", "key": "a"}]));
    server.check(&json!({"quotas": ["5/1h"], "key": "a"})).decision();
    let unknown = json!({"policy": "nope", "key": "a"});
    assert_eq!(server.check(&unknown).status, 404);
    server.check(&json!([unknown, {"key": 7}, unknown])).decision();
    let seen = metrics(&server);
    let decisions = |policy: &str, tier: &str, source: &str, outcome: &str| {
        let series = format!(
            r#"slidegate_decisions_total{{policy="{policy}",tier="{tier}",source="{source}",outcome="{outcome}"}}"#
        );
        *seen.get(&series).unwrap_or_else(|| panic!("no {series} in {seen:#?}"))
    };
    assert_eq!(decisions("api", "", "store", "allowed"), 20.0);
    assert_eq!(decisions("api", "", "store", "denied"), 3.0);
    assert_eq!(decisions("api", "gold", "store", "allowed"), 1.0);
    assert_eq!(
        (decisions("shadowed", "", "store", "allowed"), decisions("shadowed", "", "store", "shadow")),
        (1.0, 1.0)
    );
    assert_eq!(decisions("off", "", "rule", "allowed"), 1.0);
    assert_eq!(decisions("(in request)", "", "store", "allowed"), 1.0);
    let violations =
        |quota: &str| seen[&format!(r#"slidegate_violations_total{{policy="api",tier="",quota="{quota}"}}"#)];
    assert_eq!((violations("20/1h"), violations("30/1d")), (3.0, 0.0));
    assert_eq!(
        seen[r#"slidegate_near_limit_total{policy="api",tier=""}"#], 2.0,
        "with one left and with none"
    );
    assert_eq!(seen[r#"slidegate_refusals_total{reason="unknown-policy"}"#], 3.0, "each of a batch");
    assert_eq!(seen[r#"slidegate_refusals_total{reason="out-of-range"}"#], 1.0);
    assert_eq!(seen[r#"slidegate_request_seconds_count{verb="check",stage="whole"}"#], 28.0);
    assert_eq!(seen["slidegate_memory_max_keys"], 1_000_000.0);
    assert!(seen["slidegate_memory_keys"] >= 4.0 && seen["slidegate_memory_bytes"] > 0.0);
}

/// The number of series depends on the configuration only.
#[test]
fn requests_create_no_metric_series() {
    let config = TempFile::new("series", "policies: {api: {quotas: [20/1h]}}\n");
    let server = start(&config, &[]);
    server.check(&json!({"policy": "api", "key": "a"}));
    server.check(&json!({"quotas": ["5/1h"], "key": "a"}));
    server.check(&json!({"policy": "nope", "key": "a"}));
    let before = metrics(&server).len();
    for number in 0..50 {
        server.check(&json!({"policy": "api", "key": format!("key {number}")}));
        server.check(&json!({"quotas": [format!("{}/1h", number + 1)], "key": "a"}));
        server.check(
            &json!({"policy": format!("policy {number}"), "key": "a", "tier": format!("tier {number}")}),
        );
    }
    assert_eq!(metrics(&server).len(), before);
}

#[test]
fn readyz_reports_an_invalid_file() {
    let config = TempFile::new("unused", "policies: {api: {quotas: [20/1h]}}\n");
    let server = start(&config, &[]);
    assert_eq!(server.get("/readyz").json(), json!({"ready": true}));
    fs::write(config.path(), "policies: {api: {quotas: [x/1h]}}\n").unwrap();
    server.send_signal("HUP");
    let error = loop {
        let ready = server.get("/readyz");
        assert_eq!(ready.status, 200, "an invalid file does not make the service unready");
        if let Some(error) = ready.json()["config_error"].as_str() {
            break error.to_owned();
        }
    };
    assert!(
        error.contains("policies.api.quotas[0]: limit: \"x\" is not a whole number between 0"),
        "{error}"
    );
    let seen = metrics(&server);
    assert_eq!(seen[r#"slidegate_reloads_total{result="refused"}"#], 1.0);
    assert_eq!(seen["slidegate_config_is_current"], 0.0);
    fs::write(config.path(), "policies: {api: {quotas: [21/1h]}}\n").unwrap();
    while server.get("/readyz").json().get("config_error").is_some() {}
    assert_eq!(metrics(&server)["slidegate_config_is_current"], 1.0);
}

#[test]
fn readyz_reports_a_missing_file() {
    let config = TempFile::new("gone", "policies: {api: {quotas: [20/1h]}}\n");
    let server = start(&config, &[]);
    fs::remove_file(config.path()).unwrap();
    let error = loop {
        if let Some(error) = server.get("/readyz").json()["config_error"].as_str() {
            break error.to_owned();
        }
    };
    assert!(error.contains("No such file"), "{error}");
    assert_eq!(server.check(&json!({"policy": "api", "key": "a"})).decision()["remaining"], 19);
    fs::write(config.path(), "policies: {api: {quotas: [21/1h]}}\n").unwrap();
    while server.get("/readyz").json().get("config_error").is_some() {}
    assert_eq!(server.check(&json!({"policy": "api", "key": "a"})).decision()["remaining"], 19);
}

#[test]
fn readyz_stays_ready_and_reports_an_unavailable_store() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("away", "policies: {api: {quotas: [20/1h]}}\n");
    let server = start(&config, &["--store", &redis.url()]);
    assert_eq!(server.get("/readyz").json(), json!({"ready": true, "breaker": "closed"}));
    redis.kill();
    loop {
        server.check(&json!({"policy": "api", "key": "a"})).decision();
        let ready = server.get("/readyz");
        assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
        if ready.json()["breaker"] != "closed" {
            break;
        }
    }
    let seen = metrics(&server);
    let fallbacks = seen.iter().filter(|(series, _)| series.starts_with("slidegate_fallback_total"));
    assert!(fallbacks.map(|(_, count)| *count).sum::<f64>() > 0.0, "{seen:#?}");
}

/// A store that rejects commands does not open the breaker, so readiness reports the error itself.
#[test]
fn readyz_reports_a_store_that_rejects_commands() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("rejecting", "policies: {api: {quotas: [1000000/1h]}}\n");
    let server = start(&config, &["--store", &format!("{}?budget_ms=5000", redis.url())]);
    let check = || server.check(&json!({"policy": "api", "key": "a"})).decision();
    assert_eq!(check()["source"], "store");
    redis.command(&["ACL", "SETUSER", "default", "-evalsha"]);
    assert_eq!((&check()["source"], &check()["reason"]), (&json!("fallback"), &json!("refused")));
    let ready = server.get("/readyz").json();
    assert_eq!((&ready["ready"], &ready["breaker"]), (&json!(true), &json!("closed")));
    assert_eq!(ready["store_error"], "refused", "no detail without authentication: {ready}");
    let admin = server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap();
    let (code, out, err) = outcome(slidegate().args(["top", "--once", "--admin", admin]));
    let expected = "  store: in use\nthe store did not decide its last request: redis: NOPERM";
    assert!(code == 0 && out.contains(expected), "{out}{err}");
    redis.command(&["ACL", "SETUSER", "default", "+evalsha"]);
    assert_eq!(check()["source"], "store");
    assert!(server.get("/readyz").json().get("store_error").is_none());
}

fn store_errors(server: &ServeProcess, kind: &str) -> f64 {
    metrics(server)[&format!(r#"slidegate_store_errors_total{{kind="{kind}"}}"#)]
}

/// Failures that a fallback hides from the client count, too.
#[test]
fn store_errors_are_counted_by_kind() {
    let redis = Server::start(Flavour::Redis);
    let config = TempFile::new("failures", "policies: {api: {quotas: [20/1h]}}\n");
    let store = format!("{}?budget_ms=20000", redis.url());
    let server = start(&config, &["--store", &store]);
    let request = |key: &str| json!({"policy": "api", "key": key});
    server.check(&request("a")).decision();
    for kind in ["transient", "too-late", "lost", "permanent", "full"] {
        assert_eq!(store_errors(&server, kind), 0.0, "{kind}");
    }

    // A foreign value under the name of the record.
    let name = redis.command(&["KEYS", "*"]).array()[0].text();
    redis.command(&["DEL", &name]);
    redis.command(&["LPUSH", &name, "another application's"]);
    server.check(&json!([request("a"), request("b")])).decision();
    server.check(&request("a")).decision();
    assert_eq!(store_errors(&server, "permanent"), 2.0, "one in the batch and one alone");

    let server_with_short_budget = start(&config, &["--store", &format!("{}?budget_ms=30", redis.url())]);
    redis.stop_signal();
    server_with_short_budget.check(&request("a")).decision();
    server_with_short_budget.check(&json!([request("a"), request("b")])).decision();
    assert_eq!(store_errors(&server_with_short_budget, "too-late"), 3.0);
    redis.continue_signal();

    redis.kill();
    while store_errors(&server, "transient") == 0.0 {
        server.check(&request("c")).decision();
    }
    while server.get("/readyz").json()["breaker"] == "closed" {
        server.check(&request("c")).decision();
    }
    let seen = metrics(&server);
    let sum = |start: &str, without: &str| -> f64 {
        let series = seen.iter().filter(|(name, _)| name.starts_with(start) && !name.contains(without));
        series.map(|(_, count)| *count).sum()
    };
    // A fallback while the breaker is open (reason `resting`) is no store error.
    let fallbacks = sum("slidegate_fallback_total", "resting");
    assert_eq!(sum("slidegate_store_errors_total", "none is left out"), fallbacks, "{seen:#?}");
}

#[test]
fn errors_of_a_full_memory_store_are_counted() {
    let file = "memory: {max_keys: 1, when_full: refuse}\npolicies: {api: {quotas: [20/1h]}}\n";
    let server = start(&TempFile::new("full", file), &[]);
    let request = |key: &str| json!({"policy": "api", "key": key});
    server.check(&request("a")).decision();
    assert_eq!(server.check(&request("b")).status, 503);
    server.check(&json!([request("a"), request("b"), request("c")])).decision();
    assert_eq!(store_errors(&server, "full"), 3.0);
}

#[test]
fn without_a_recorder_metrics_are_not_found() {
    let server = harness::Server::start();
    assert_eq!(harness::request(server.address, "GET", "/metrics", b"").status, 404);
}

/// Each denial is one line without the key, up to the configured rate. Later lines count the omitted ones.
#[test]
fn logged_denials_are_rate_limited() {
    let config = TempFile::new("violations", "log: {violations: 3}\npolicies: {api: {quotas: [1/1h]}}\n");
    let log = TempFile::new("violations-log", "");
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    let server =
        ServeProcess::start_with_log(&mut command, Stdio::from(fs::File::create(log.path()).unwrap()));
    let body: Vec<_> = (0..200).map(|_| json!({"policy": "api", "key": "user:hush"})).collect();
    server.check(&json!(body));
    // Polls into the next second, whose first line has the number of omitted lines.
    let text = loop {
        server.check(&json!({"policy": "api", "key": "user:hush"}));
        let text = fs::read_to_string(log.path()).unwrap();
        if text.lines().filter(|line| line.contains("slidegate::violation")).count() > 3 {
            break text;
        }
    };
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("slidegate::violation")).collect();
    assert!(lines[0].contains("policy=\"api\"") && lines[0].contains("quota=\"1/1h\""), "{}", lines[0]);
    assert!(lines[0].contains("used=1 limit=1 cost=1 retry_after_ms="), "{}", lines[0]);
    assert!(lines[0].ends_with("left_out=0"), "{}", lines[0]);
    let left_out = |line: &str| line.rsplit_once("left_out=").unwrap().1.parse::<u64>().unwrap();
    assert!(lines.iter().map(|line| left_out(line)).max() >= Some(196), "{lines:#?}");
    assert!(!text.contains("hush"), "no key is in the log");
    let denied = &metrics(&server)[r#"slidegate_decisions_total{policy="api",tier="",source="store",outcome="denied"}"#];
    assert!(*denied >= 200.0, "metrics count all denials: {denied}");
}

#[test]
fn json_log_lines_have_the_path_of_forward_auth_requests() {
    let config = TempFile::new("json-log", "policies: {api: {quotas: [1/1h]}}\n");
    let log = TempFile::new("json-log-lines", "");
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--log-format", "json", "--config", config.path()]);
    let server =
        ServeProcess::start_with_log(&mut command, Stdio::from(fs::File::create(log.path()).unwrap()));
    let address = server.url().strip_prefix("http://").unwrap().parse().unwrap();
    for lines in ["", "x-forwarded-uri: /orders?token=hush\r\n", ""] {
        harness::request_with_headers(address, "GET", "/forward-auth/api/below", lines, b"");
    }
    let text = fs::read_to_string(log.path()).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let denials: Vec<_> = events.filter(|event| event["target"] == "slidegate::violation").collect();
    let paths: Vec<_> = denials.iter().map(|event| &event["path"]).collect();
    assert_eq!(paths, ["/orders", "/below"], "{text}");
    assert_eq!((&denials[0]["policy"], &denials[0]["limit"]), (&json!("api"), &json!(1)));
    assert!(!text.contains("hush"));
}
