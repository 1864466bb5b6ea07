//! Costs that are reported afterwards: they count in full, and a look is denied once they exceed the limit.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server};

use super::{Shop, descriptor};

const LIMITS: &str = "
domain: shop
descriptors:
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: few, rate_limit: {unit: year, requests_per_unit: 5}}
";
const ALGORITHMS: [&str; 3] = ["fixed-window", "sliding-window", "token-bucket"];

fn hits(key: &str, hits: u64) -> Value {
    let mut asked = descriptor(&[(key, "ann")]);
    asked["hitsAddend"] = hits.into();
    asked
}

fn codes(answer: &Value) -> Vec<String> {
    let statuses = answer["statuses"].as_array().unwrap_or_else(|| panic!("{answer}"));
    statuses.iter().map(|status| status["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn as_many_looks_pass_as_reports_fit_below_the_limit() {
    for algorithm in ALGORITHMS {
        let shop = Shop::with_limits(LIMITS, &["--envoy-algorithm", algorithm]);
        let pairs: Value = (0..50).flat_map(|_| [hits("tokens", 0), hits("tokens", 7)]).collect();
        let passed: usize = (0..30)
            .map(|_| codes(&shop.ask(&pairs)).iter().step_by(2).filter(|code| *code == "OK").count())
            .sum();
        assert_eq!(passed, 1429, "{algorithm}");
    }
}

#[test]
fn a_report_counts_in_full_and_a_request_that_asks_costs_nothing_when_denied() {
    let (redis, postgres) = (Server::start(Flavour::Redis), Postgres::start());
    let stores =
        ["memory:".to_owned(), redis.url() + "?budget_ms=20000", postgres.url() + "?budget_ms=20000"];
    for store in &stores {
        for algorithm in ALGORITHMS {
            let shop = Shop::with_limits(LIMITS, &["--store", store, "--envoy-algorithm", algorithm]);
            let ask = |asked: Value| codes(&shop.ask(&json!([asked]))).remove(0);
            let mut denied = descriptor(&[("few", algorithm)]);
            denied["hitsAddend"] = Value::Null;
            let few = |hits: u64| {
                let mut asked = descriptor(&[("few", algorithm)]);
                asked["hitsAddend"] = hits.into();
                asked
            };
            let shown = format!("{store} {algorithm}");
            assert_eq!(ask(few(0)), "OK", "{shown}");
            assert_eq!(ask(few(5)), "OK", "{shown}: the limit is reached");
            assert_eq!(ask(few(0)), "OK", "{shown}: and not exceeded");
            assert_eq!([ask(denied.clone()), ask(denied.clone())], ["OVER_LIMIT"; 2], "{shown}");
            assert_eq!(ask(few(0)), "OK", "{shown}: a denial costs nothing");
            assert_eq!([ask(few(2)), ask(few(0))], ["OVER_LIMIT"; 2], "{shown}");
            let mut gives_back = few(3);
            gives_back["isNegativeHits"] = true.into();
            assert_eq!([ask(gives_back), ask(few(0)), ask(denied)], ["OK"; 3], "{shown}: a debt is paid");
        }
    }
}

#[test]
fn looks_are_decisions_in_metrics_and_reports_are_not() {
    let shop = Shop::with_limits(LIMITS, &[]);
    for asked in [hits("few", 0), hits("few", 6), hits("few", 0), hits("few", 1)] {
        shop.ask(&json!([asked]));
    }
    let metrics = shop.server.get("/metrics").body;
    for outcome in ["allowed", "denied"] {
        let line = format!(
            "slidegate_decisions_total{{policy=\"shop.few\",tier=\"\",source=\"store\",outcome=\"{outcome}\"}} 1"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
}
