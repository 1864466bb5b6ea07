//! Values of descriptors with `*` at the end, inside or at the start.

use serde_json::json;

use super::{RateLimitServer, descriptor, limit_name};

const LIMITS: &str = "
domain: shop
descriptors:
  - {key: path, value: /api/*/action, rate_limit: {unit: year, requests_per_unit: 1, name: action}}
  - {key: path, value: /api/*, rate_limit: {unit: year, requests_per_unit: 1, name: api}}
  - {key: path, value: /api/v1/*, rate_limit: {unit: year, requests_per_unit: 1, name: never}}
  - {key: path, value: /api/7/action, rate_limit: {unit: year, requests_per_unit: 1, name: exact}}
  - {key: path, value: '*.pdf', rate_limit: {unit: year, requests_per_unit: 1, name: pdf}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1, name: bare}}
  - {key: shared, value: /api*v1, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: several, value: svc*ep*rpc, share_threshold: true, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - key: tenant
    value: t*prod
    share_threshold: true
    descriptors:
      - {key: resource, value: res*v2, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: twice, value: a**b, rate_limit: {unit: year, requests_per_unit: 1, name: twice}}
";

#[test]
fn a_wildcard_inside_a_value_matches_in_file_order_between_exact_and_bare() {
    let server = RateLimitServer::with_limits(LIMITS, &[]);
    for (value, expected) in [
        ("/api/7/action", "exact"),
        ("/api/8/action", "action"),
        ("/api//action", "action"),
        ("/api/8/9/action", "action"),
        ("/api/action", "api"),
        ("/api/v1/x", "api"),
        ("/api/8/action/x", "api"),
        ("/x/y.pdf", "pdf"),
        (".pdf", "pdf"),
        ("/x/y.pdf?", "bare"),
        ("", "bare"),
    ] {
        assert_eq!(limit_name(&server.status(&[("path", value)])), expected, "{value}");
    }
    assert_eq!(limit_name(&server.status(&[("twice", "ab")])), "twice");
    assert_eq!(server.status(&[("twice", "a")]), json!({"code": "OK"}));
}

#[test]
fn matching_values_have_their_own_counts_unless_the_threshold_is_shared() {
    let server = RateLimitServer::with_limits(LIMITS, &[]);
    let code = |entries: &[(&str, &str)]| server.status(entries)["code"].as_str().unwrap().to_owned();
    assert_eq!(["/api/1/action", "/api/2/action"].map(|value| code(&[("path", value)])), ["OK", "OK"]);
    assert_eq!(code(&[("path", "/api/1/action")]), "OVER_LIMIT");
    let shared = ["/api/1/v1", "/api/2/v1", "/api/3/v1"].map(|value| code(&[("shared", value)]));
    assert_eq!(shared, ["OK", "OK", "OVER_LIMIT"]);
    let several = ["svc1ep1rpc", "svc2ep2rpc", "svc3eprpc"].map(|value| code(&[("several", value)]));
    assert_eq!(several, ["OK", "OK", "OVER_LIMIT"]);
    let nested = [("t1prod", "res1v2"), ("t2prod", "res2v2"), ("t3prod", "res3v2")]
        .map(|(tenant, resource)| code(&[("tenant", tenant), ("resource", resource)]));
    assert_eq!(nested, ["OK", "OK", "OVER_LIMIT"]);
    let metrics = server.process.get("/metrics").body;
    let line = "slidegate_decisions_total{policy=\"shop.several_svc*ep*rpc\",tier=\"\",source=\"store\",outcome=\"allowed\"} 2";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

/// Values and keys are compared apart, though `a_x` with `b` and `a` with `x_b` are one text when an underscore joins them.
#[test]
fn a_wildcard_in_a_value_matches_only_under_its_own_key() {
    let limits = "
domain: shop
descriptors:
  - {key: a, value: '*b', rate_limit: {unit: year, requests_per_unit: 9, name: short}}
  - {key: a_x, value: 'c*', rate_limit: {unit: year, requests_per_unit: 9, name: long}}
  - {key: 'open*', rate_limit: {unit: year, requests_per_unit: 9, name: key}}
  - {key: a_x, rate_limit: {unit: year, requests_per_unit: 9, name: bare}}
";
    let server = RateLimitServer::with_limits(limits, &[]);
    for (key, value, expected) in [
        ("a", "b", "short"),
        ("a", "x_b", "short"),
        ("a_x", "b", "bare"),
        ("a_x", "cb", "long"),
        // A wildcard at the end of a key covers the rest of the key and the value.
        ("open", "b", "key"),
        ("opened_x", "b", "key"),
    ] {
        assert_eq!(limit_name(&server.status(&[(key, value)])), expected, "{key}={value}");
    }
    for (key, value) in [("a", "x_c"), ("a_", "b"), ("a_y", "b"), ("", "a_b")] {
        assert_eq!(server.status(&[(key, value)]), json!({"code": "OK"}), "{key}={value}");
    }
}

/// Matches 50 kB against 200 stars: with a matcher that backtracks the test does not end.
#[test]
fn matching_a_long_value_does_not_backtrack() {
    let pattern = "a*".repeat(200);
    let limits = format!(
        "domain: shop\ndescriptors:\n  - {{key: k, value: '{pattern}b', rate_limit: {{unit: year, requests_per_unit: 1}}}}\n"
    );
    let server = RateLimitServer::with_limits(&limits, &[]);
    let value = "a".repeat(50_000);
    assert_eq!(server.status(&[("k", &value)]), json!({"code": "OK"}));
    let descriptors = json!([descriptor(&[("k", &format!("{value}b"))])]);
    assert_eq!(server.check(&descriptors)["statuses"][0]["currentLimit"]["unit"], "YEAR");
}
