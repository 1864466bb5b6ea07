//! The same over a store elsewhere.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Server};

use super::{Shop, descriptor};
use crate::process::TempFile;

#[test]
fn a_store_that_is_away_fails_nobody_who_meets_a_shadow_alone() {
    let config = TempFile::new("shadow-closed", "degrade: {on_failure: closed}\n");
    let shop = Shop::open(&["--config", config.path(), "--store", "redis://127.0.0.1:1"]);
    let ask = |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| descriptor(&[(key, "")])).collect();
        shop.reply(&json!({"domain": "shop", "descriptors": descriptors}))
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

#[test]
fn many_descriptors_go_to_a_shared_store_together() {
    let redis = Server::start(Flavour::Redis);
    let shop = Shop::open(&["--store", &format!("{}?budget_ms=20000", redis.url())]);
    let scripts = || -> u64 {
        let stats = redis.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let ask = |users: u32| {
        let descriptors: Vec<_> = (0..users).map(|user| descriptor(&[("user", &user.to_string())])).collect();
        let before = scripts();
        assert_eq!(shop.ask(&json!(descriptors))["statuses"].as_array().unwrap().len(), users as usize);
        scripts() - before
    };
    // Once before, to load the scripts.
    let _ = (ask(1), ask(2));
    assert_eq!(ask(1), 1);
    // The first may be under way before the others are there, and a busy machine parts them once more.
    let runs = [3, 90].map(ask);
    assert!(runs[0] <= 3 && runs[1] <= 9, "{runs:?} calls of the store for 3 and for 90 descriptors");
}
