//! What holds for single keys and single policies: limits, and the headers that tell of them.

use serde_json::json;
use slidegate_testkit::until;

use crate::harness::{START_MS, Server};
use crate::process::{ServeProcess, TempFile, slidegate};

const FILE: &str = r#"
headers: legacy-delta
policies:
  api:
    quotas: [2/1m]
    tiers:
      premium: {quotas: [20/1m]}
    overrides:
      "customer:42": {quotas: ["3/1m", "4/1h"]}
      "partner:7": {tier: premium}
  epoch: {quotas: [2/1m], headers: legacy-epoch}
  ietf: {quotas: [2/1m], headers: ietf}
  silent: {quotas: [2/1m], headers: none}
"#;

#[test]
fn a_keys_own_rule_goes_over_what_its_requests_say() {
    let server = Server::with_config(FILE);
    let limit = |body: serde_json::Value| server.check(body.to_string()).decision()["limit"].clone();
    assert_eq!(limit(json!({"policy": "api", "key": "customer:42"})), 3);
    assert_eq!(limit(json!({"policy": "api", "key": "customer:42", "tier": "premium"})), 3);
    assert_eq!(limit(json!({"policy": "api", "key": "partner:7"})), 20);
    assert_eq!(limit(json!({"policy": "api", "key": "customer:4"})), 2);
    assert_eq!(limit(json!({"policy": "api", "key": "customer:4", "tier": "premium"})), 20);
    assert_eq!(limit(json!({"policy": "ietf", "key": "customer:42"})), 2, "another policy's");
    let response = server.check(r#"{"policy": "api", "key": "customer:42", "tier": "gold"}"#);
    assert_eq!(response.status, 422, "a tier that there is not is a mistake whoever makes it: {response:?}");
    // The same keys as before, in one go.
    let batch = server.check(r#"[{"policy": "api", "key": "customer:42"}, {"policy": "api", "key": "a"}]"#);
    let batch = batch.json();
    assert_eq!((&batch[0]["remaining"], &batch[1]["remaining"]), (&json!(0), &json!(1)));
}

#[test]
fn headers_are_in_the_style_that_is_asked_for() {
    let server = Server::with_config(FILE);
    let headers = |subject: &str, key: &str| {
        let response = server.check(format!(r#"{{{subject}, "key": "{key}"}}"#));
        let told = |(name, _): &&(String, String)| name.contains("ratelimit") || name == "retry-after";
        response.headers.iter().filter(told).cloned().collect::<Vec<_>>()
    };
    let legacy = |remaining: u64, reset: u64, retry: Option<u64>| {
        let names = ["limit", "remaining", "reset"].map(|part| format!("x-ratelimit-{part}"));
        let mut lines: Vec<_> =
            names.into_iter().zip([2, remaining, reset].map(|number| number.to_string())).collect();
        lines.extend(retry.map(|retry| ("retry-after".to_owned(), retry.to_string())));
        lines
    };
    let epoch = START_MS / 1000;
    assert_eq!(headers(r#""policy": "api""#, "a"), legacy(1, 120, None));
    assert_eq!(headers(r#""quotas": ["2/1m"]"#, "a"), legacy(1, 120, None), "as the file has it for all");
    assert_eq!(headers(r#""policy": "epoch""#, "a"), legacy(1, epoch + 120, None));
    assert_eq!(headers(r#""policy": "epoch", "cost": 2"#, "b"), legacy(0, epoch + 120, None));
    let denied = headers(r#""policy": "epoch""#, "b");
    assert_eq!(denied.last().unwrap().0, "retry-after");
    assert_eq!(
        headers(r#""policy": "ietf""#, "a")[1],
        ("ratelimit".to_owned(), r#""2/1m";r=1;t=120"#.to_owned())
    );
    assert_eq!(headers(r#""policy": "silent""#, "a"), []);
    let overridden = headers(r#""policy": "api""#, "customer:42");
    assert_eq!(overridden[0], ("x-ratelimit-limit".to_owned(), "3".to_owned()));
}

#[test]
fn they_change_with_the_file_and_are_counted_together() {
    let file = |overrides: &str| format!("headers: none\npolicies:\n  api:\n    quotas: [1/1h]\n{overrides}");
    let config = TempFile::new("overrides", &file(""));
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    let check = |key: &str| server.check(&json!({"policy": "api", "key": key}));
    assert_eq!(check("a").decision()["limit"], 1);
    let overrides =
        "    overrides: {a: {quotas: [2/1h, 3/1d]}, b: {quotas: [1/1h]}}\n    headers: legacy-delta\n";
    std::fs::write(config.path(), file(overrides)).unwrap();
    server.send_signal("HUP");
    let response = until("the file is read again", || {
        let response = check("a");
        if response.decision()["limit"] == 2 { Ok(response) } else { Err(response.body) }
    });
    assert_eq!(response.decision()["remaining"], 0, "the one before was counted");
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(check("a").decision()["allowed"], false);
    assert_eq!(check("b").decision()["allowed"], true);
    assert_eq!(check("b").decision()["allowed"], false);
    let metrics = server.get("/metrics").body;
    for series in [
        r#"slidegate_decisions_total{policy="api",tier="(override)",source="store",outcome="denied"} 2"#,
        r#"slidegate_violations_total{policy="api",tier="(override)",quota="(override)"} 2"#,
    ] {
        assert!(metrics.contains(series), "no {series} in {metrics}");
    }
}
