//! Costs that are reported after a request: they count in full, and a peek is denied when they exceed the limit.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server};

use super::{RateLimitServer, descriptor};

const LIMITS: &str = "
domain: shop
descriptors:
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: few, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: observed, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
";
const ALGORITHMS: [&str; 3] = ["fixed-window", "sliding-window", "token-bucket"];

/// A descriptor with an explicit `hits_addend`: 0 is a peek, more is a report.
fn with_hits(key: &str, value: &str, hits: u64) -> Value {
    let mut descriptor = descriptor(&[(key, value)]);
    descriptor["hitsAddend"] = hits.into();
    descriptor
}

fn codes(response: &Value) -> Vec<String> {
    let statuses = response["statuses"].as_array().unwrap_or_else(|| panic!("{response}"));
    statuses.iter().map(|status| status["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn peeks_pass_until_reports_exceed_the_limit() {
    for algorithm in ALGORITHMS {
        let server = RateLimitServer::with_limits(LIMITS, &["--envoy-algorithm", algorithm]);
        let pairs: Value =
            (0..50).flat_map(|_| [with_hits("tokens", "ann", 0), with_hits("tokens", "ann", 7)]).collect();
        let passed: usize = (0..30)
            .map(|_| codes(&server.check(&pairs)).iter().step_by(2).filter(|code| *code == "OK").count())
            .sum();
        assert_eq!(passed, 1429, "{algorithm}");
    }
}

#[test]
fn a_report_counts_in_full_and_a_denied_check_costs_nothing() {
    let (redis, postgres) = (Server::start(Flavour::Redis), Postgres::start());
    let stores =
        ["memory:".to_owned(), redis.url() + "?budget_ms=20000", postgres.url() + "?budget_ms=20000"];
    for store in &stores {
        for algorithm in ALGORITHMS {
            let server =
                RateLimitServer::with_limits(LIMITS, &["--store", store, "--envoy-algorithm", algorithm]);
            let code = |descriptor: Value| codes(&server.check(&json!([descriptor]))).remove(0);
            let mut check = descriptor(&[("few", algorithm)]);
            check["hitsAddend"] = Value::Null;
            let hits = |hits: u64| code(with_hits("few", algorithm, hits));
            let case = format!("{store} {algorithm}");
            assert_eq!(hits(0), "OK", "{case}");
            assert_eq!(hits(5), "OK", "{case}: the limit is reached");
            assert_eq!(hits(0), "OK", "{case}: the limit is not exceeded");
            assert_eq!([code(check.clone()), code(check.clone())], ["OVER_LIMIT"; 2], "{case}");
            assert_eq!(hits(0), "OK", "{case}: a denial costs nothing");
            assert_eq!([hits(2), hits(0)], ["OVER_LIMIT"; 2], "{case}");
            let mut refund = with_hits("few", algorithm, 3);
            refund["isNegativeHits"] = true.into();
            assert_eq!([code(refund), hits(0), code(check)], ["OK"; 3], "{case}: a refund lowers the count");
        }
    }
}

#[test]
fn a_limit_of_zero_denies_peeks_and_refunds_too() {
    for algorithm in ALGORITHMS {
        let server = RateLimitServer::with_limits(LIMITS, &["--envoy-algorithm", algorithm]);
        let code = |descriptor: Value| codes(&server.check(&json!([descriptor]))).remove(0);
        for (key, expected) in [("none", "OVER_LIMIT"), ("observed", "OK")] {
            let (mut refund, mut overridden) = (with_hits(key, "ann", 1), with_hits("few", "ann", 0));
            refund["isNegativeHits"] = true.into();
            overridden["limit"] = json!({"requestsPerUnit": 0, "unit": "YEAR"});
            let found = [code(with_hits(key, "ann", 0)), code(with_hits(key, "ann", 1)), code(refund)];
            assert_eq!(found, [expected; 3], "{key} {algorithm}");
            assert_eq!(code(overridden), "OVER_LIMIT", "{algorithm}");
        }
    }
}

#[test]
fn metrics_count_peeks_as_decisions_but_not_reports() {
    let server = RateLimitServer::with_limits(LIMITS, &[]);
    for hits in [0, 6, 0, 1] {
        server.check(&json!([with_hits("few", "ann", hits)]));
    }
    let metrics = server.process.get("/metrics").body;
    for outcome in ["allowed", "denied"] {
        let line = format!(
            "slidegate_decisions_total{{policy=\"shop.few\",tier=\"\",source=\"store\",outcome=\"{outcome}\"}} 1"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
}
