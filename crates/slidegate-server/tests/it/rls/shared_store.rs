//! Envoy's rate limit service over a remote store.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server};

use super::{RateLimitServer, descriptor};
use crate::process::TempFile;

#[test]
fn requests_for_shadow_limits_alone_succeed_without_the_store() {
    let config = TempFile::new("shadow-closed", "degrade: {on_failure: closed}\n");
    let server = RateLimitServer::start(&["--config", config.path(), "--store", "redis://127.0.0.1:1"]);
    let check = |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| descriptor(&[(key, "")])).collect();
        server.post(&json!({"domain": "shop", "descriptors": descriptors}))
    };
    assert_eq!(check(&["soft"]).json(), json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}));
    assert_eq!(check(&["soft", "soft"]).status, 200);
    assert_eq!(check(&["soft", "all"]).status, 500);
}

#[test]
fn a_shared_store_decides_checks_peeks_and_refunds_of_one_request_in_order() {
    let redis = Server::start(Flavour::Redis);
    let server = RateLimitServer::start(&["--store", &format!("{}?budget_ms=20000", redis.url())]);
    server.status(&[("user", "z")]);
    let [_, peek, refund] = check_peek_and_refund("z");
    let descriptors = json!([descriptor(&[("user", "y")]), peek, descriptor(&[("all", "")]), refund]);
    let response = server.check(&descriptors);
    let remaining: Vec<_> =
        response["statuses"].as_array().unwrap().iter().map(|status| &status["limitRemaining"]).collect();
    assert_eq!(remaining, [&json!(1), &json!(1), &Value::Null, &json!(2)], "{response}");
}

fn check_peek_and_refund(user: &str) -> [Value; 3] {
    let [check, mut peek, mut refund] = [(); 3].map(|()| descriptor(&[("user", user)]));
    peek["hitsAddend"] = 0.into();
    refund["isNegativeHits"] = true.into();
    [check, peek, refund]
}

/// Descriptors of `count` different keys.
fn users(count: usize) -> Value {
    (0..count).map(|user| descriptor(&[("user", &format!("{user} of {count}"))])).collect()
}

#[test]
fn redis_executes_up_to_64_descriptors_in_one_script() {
    let redis = Server::start(Flavour::Redis);
    let server = RateLimitServer::start(&["--store", &format!("{}?budget_ms=20000", redis.url())]);
    let scripts_run = |descriptors: Value| {
        let before = redis.scripts_run();
        let count = descriptors.as_array().unwrap().len();
        assert_eq!(server.check(&descriptors)["statuses"].as_array().unwrap().len(), count);
        redis.scripts_run() - before
    };
    let mixed = |user: &str| json!(check_peek_and_refund(user));
    // The first requests load the scripts.
    let _ = (scripts_run(users(1)), scripts_run(users(2)), scripts_run(mixed("a")));
    // A call has at most 64 keys.
    assert_eq!([users(3), mixed("b"), users(64), users(90)].map(scripts_run), [1, 1, 1, 2]);
}

#[test]
fn postgres_executes_many_descriptors_in_one_transaction() {
    let postgres = Postgres::start();
    let server = RateLimitServer::start(&["--store", &format!("{}?budget_ms=20000", postgres.url())]);
    for count in [3, 64] {
        assert_eq!(server.check(&users(count))["statuses"].as_array().unwrap().len(), count);
        // `xmin` is the transaction that wrote the row.
        let rows = postgres.sql("SELECT count(*), count(DISTINCT xmin::text) FROM slidegate.ephemeral");
        assert_eq!(rows[0], [count.to_string(), "1".to_owned()].map(Some));
        let _ = postgres.sql("TRUNCATE slidegate.ephemeral");
    }
}
