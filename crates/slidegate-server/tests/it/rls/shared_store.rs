//! The same over a store elsewhere.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server};

use super::{Shop, descriptor};
use crate::process::TempFile;

#[test]
fn a_store_that_is_away_fails_nobody_who_meets_a_shadow_alone() {
    let config = TempFile::new("shadow-closed", "degrade: {on_failure: closed}\n");
    let shop = Shop::open(&["--config", config.path(), "--store", "redis://127.0.0.1:1"]);
    let ask = |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| descriptor(&[(key, "")])).collect();
        shop.post(&json!({"domain": "shop", "descriptors": descriptors}))
    };
    assert_eq!(ask(&["soft"]).json(), json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}));
    assert_eq!(ask(&["soft", "soft"]).status, 200);
    assert_eq!(ask(&["soft", "all"]).status, 500);
}

#[test]
fn checks_looks_and_refunds_of_one_request_are_decided_in_order_by_a_shared_store() {
    let redis = Server::start(Flavour::Redis);
    let shop = Shop::open(&["--store", &format!("{}?budget_ms=20000", redis.url())]);
    shop.one(&[("user", "z")]);
    let mut looks = descriptor(&[("user", "z")]);
    looks["hitsAddend"] = 0.into();
    let mut gives_back = descriptor(&[("user", "z")]);
    gives_back["isNegativeHits"] = true.into();
    let all = json!([descriptor(&[("user", "y")]), looks, descriptor(&[("all", "")]), gives_back]);
    let answer = shop.ask(&all);
    let remaining: Vec<_> =
        answer["statuses"].as_array().unwrap().iter().map(|status| &status["limitRemaining"]).collect();
    assert_eq!(remaining, [&json!(1), &json!(1), &Value::Null, &json!(2)], "{answer}");
}

/// One that counts, one that looks, one that gives back.
fn mixed(user: &str) -> Value {
    let [counts, mut looks, mut gives_back] = [(); 3].map(|()| descriptor(&[("user", user)]));
    looks["hitsAddend"] = 0.into();
    gives_back["isNegativeHits"] = true.into();
    json!([counts, looks, gives_back])
}

fn users(count: usize) -> Value {
    (0..count).map(|user| descriptor(&[("user", &format!("{user} of {count}"))])).collect()
}

#[test]
fn many_descriptors_go_to_a_shared_store_together() {
    let redis = Server::start(Flavour::Redis);
    let shop = Shop::open(&["--store", &format!("{}?budget_ms=20000", redis.url())]);
    let ask = |descriptors: Value| {
        let before = redis.scripts_run();
        let asked = descriptors.as_array().unwrap().len();
        assert_eq!(shop.ask(&descriptors)["statuses"].as_array().unwrap().len(), asked);
        redis.scripts_run() - before
    };
    // The first request loads the scripts.
    let _ = (ask(users(1)), ask(users(2)), ask(mixed("a")));
    // A call has 64 keys at the most; the second does not wait for the first.
    assert_eq!([users(3), mixed("b"), users(64), users(90)].map(ask), [1, 1, 1, 2]);
}

#[test]
fn many_descriptors_are_one_transaction_of_a_database() {
    let postgres = Postgres::start();
    let shop = Shop::open(&["--store", &format!("{}?budget_ms=20000", postgres.url())]);
    for count in [3, 64] {
        assert_eq!(shop.ask(&users(count))["statuses"].as_array().unwrap().len(), count);
        // A row says which transaction has written it.
        let rows = postgres.sql("SELECT count(*), count(DISTINCT xmin::text) FROM slidegate.ephemeral");
        assert_eq!(rows[0], [count.to_string(), "1".to_owned()].map(Some));
        let _ = postgres.sql("TRUNCATE slidegate.ephemeral");
    }
}
