//! Golden responses to single requests, compared byte for byte.

use serde_json::json;

use crate::harness::{Server, request};

#[test]
fn an_allowed_check() {
    let server = Server::start();
    let response = server.check(r#"{"policy": "api", "key": "user:1"}"#);
    assert_eq!(response.status, 200);
    assert_eq!(
        response.body,
        r#"{"allowed":true,"policy":"api","limit":100,"remaining":99,"reset_after_ms":120000,"retry_after_ms":null,"violated":[],"source":"store","quotas":[{"name":"100/1m","limit":100,"window_ms":60000,"used":1,"remaining":99,"reset_after_ms":120000,"retry_after_ms":null}]}"#
    );
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("ratelimit-policy"), Some(r#""100/1m";q=100;w=60"#));
    assert_eq!(response.header("ratelimit"), Some(r#""100/1m";r=99;t=120"#));
    assert_eq!(response.header("retry-after"), None);
}

#[test]
fn a_denied_check_names_the_violated_quota_and_the_retry_time() {
    let server = Server::start();
    let body = r#"{"policy": "login", "key": "a", "cost": 2}"#;
    assert_eq!(server.check(body).decision()["allowed"], true);
    server.clock.advance(1);
    let response = server.check(body);
    assert_eq!(
        response.decision(),
        json!({
            "allowed": false, "policy": "login", "limit": 2, "remaining": 0, "reset_after_ms": 1999,
            "retry_after_ms": 1999, "violated": ["burst"], "source": "store",
            "quotas": [
                {"name": "burst", "limit": 2, "window_ms": 1000, "used": 2, "remaining": 0,
                 "reset_after_ms": 1999, "retry_after_ms": 1999},
                {"name": "daily", "limit": 5, "window_ms": 86_400_000, "used": 2, "remaining": 3,
                 "reset_after_ms": 86_399_999, "retry_after_ms": null},
            ],
        })
    );
    assert_eq!(response.header("ratelimit-policy"), Some(r#""burst";q=2;w=1, "daily";q=5;w=86400"#));
    assert_eq!(response.header("ratelimit"), Some(r#""burst";r=0;t=2, "daily";r=3;t=86400"#));
    assert_eq!(response.header("retry-after"), Some("2"));

    server.clock.advance(1998);
    assert_eq!(server.check(body).decision()["allowed"], false);
    server.clock.advance(1);
    assert_eq!(server.check(body).decision()["allowed"], true);
}

#[test]
fn a_cost_above_the_limit_is_never_allowed() {
    let server = Server::start();
    let response = server.check(r#"{"policy": "api", "key": "a", "cost": 101}"#);
    let decision = response.decision();
    assert_eq!((&decision["allowed"], &decision["never"]), (&json!(false), &json!(true)));
    assert_eq!((&decision["retry_after_ms"], &decision["violated"]), (&json!(null), &json!(["100/1m"])));
    assert_eq!(response.header("retry-after"), None);
    let allowed = server.check(r#"{"policy": "api", "key": "a", "cost": 100}"#).decision();
    assert_eq!((&allowed["allowed"], allowed.get("never")), (&json!(true), None));
}

#[test]
fn quotas_in_the_request_are_counted_by_limit_window_and_algorithm() {
    let server = Server::start();
    let response = server.check(
        r#"{"quotas": ["10/1s", {"limit": 1000, "window": "1h", "algorithm": "strict-window"}], "key": "user:1"}"#,
    );
    let decision = response.decision();
    assert_eq!(decision["policy"], json!(null));
    assert_eq!(decision["remaining"], 9);
    assert_eq!(decision["quotas"][1]["name"], "1000/1h");
    let renamed = r#"{"quotas": [{"limit": 10, "window": "1s", "name": "fast", "algorithm": "sliding-window"},
        "1000/1h strict-window"], "key": "user:1"}"#;
    let decision = server.check(renamed).decision();
    assert_eq!((&decision["quotas"][0]["name"], &decision["remaining"]), (&json!("fast"), &json!(8)));
    let others = r#"{"quotas": [{"limit": 5, "window": "1s", "algorithm": "token-bucket", "burst": 20},
        {"limit": 9, "window": "1m", "anchor": "first-request"},
        {"limit": 9, "window": "1h", "algorithm": "strict-window", "slots": 32}], "key": "user:1"}"#;
    let decision = server.check(others).decision();
    assert_eq!(
        (&decision["quotas"][0]["limit"], &decision["quotas"][0]["remaining"]),
        (&json!(20), &json!(19))
    );
}

#[test]
fn a_tier_changes_the_limits_and_keeps_the_counts() {
    let server = Server::start();
    let standard = r#"{"policy": "api", "key": "a", "cost": 100}"#;
    let premium = r#"{"policy": "api", "tier": "premium", "key": "a", "cost": 100}"#;
    assert_eq!(server.check(standard).decision()["remaining"], 0);
    assert_eq!(server.check(premium).decision()["remaining"], 800);
    assert_eq!(server.check(standard).decision()["allowed"], false);
}

#[test]
fn peek_refund_and_reset_take_the_same_body() {
    let server = Server::start();
    let body = |cost: u64| json!({"policy": "api", "key": "a", "cost": cost}).to_string();
    let remaining = |path: &str, cost: u64| server.post(path, body(cost)).decision()["remaining"].clone();
    assert_eq!(remaining("/v1/check", 30), 70);
    assert_eq!(remaining("/v1/peek", 30), 70);
    assert_eq!(server.post("/v1/peek", body(71)).decision()["allowed"], false);
    assert_eq!(remaining("/v1/refund", 10), 80);
    assert_eq!(remaining("/v1/refund", 1000), 100);
    assert_eq!(remaining("/v1/check", 100), 0);
    assert_eq!(remaining("/v1/reset", 1), 100);
    assert_eq!(remaining("/v1/check", 0), 100);
}

#[test]
fn healthz_responds_ok() {
    let server = Server::start();
    let response = request(server.address, "GET", "/healthz", b"");
    assert_eq!((response.status, response.body.as_str()), (200, "ok\n"));
}
