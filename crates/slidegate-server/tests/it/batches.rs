//! Batches: one call, one result for each request, also for an invalid request.

use serde_json::{Value, json};
use slidegate::ManualClock;
use slidegate::store::{MemoryStore, WhenFull};

use crate::harness::{START_MS, Server};

#[test]
fn each_request_of_a_batch_is_decided_by_itself_and_in_order() {
    let server = Server::start();
    let batch = json!([
        {"policy": "login", "key": "a", "cost": 2},
        {"policy": "login", "key": "a"},
        {"policy": "login", "key": "b"},
        {"quotas": ["5/1s"], "key": "a", "cost": 6},
        {"policy": "api", "tier": "premium", "key": "a"},
    ]);
    let response = server.check(batch.to_string());
    let results = response.decision();
    let field = |name: &str| -> Vec<Value> {
        results.as_array().unwrap().iter().map(|result| result[name].clone()).collect()
    };
    assert_eq!(field("allowed"), [json!(true), json!(false), json!(true), json!(false), json!(true)]);
    assert_eq!(field("policy"), [json!("login"), json!("login"), json!("login"), json!(null), json!("api")]);
    assert_eq!(field("remaining"), [json!(0), json!(0), json!(1), json!(5), json!(999)]);
    assert_eq!(field("never"), [json!(null), json!(null), json!(null), json!(true), json!(null)]);
    assert_eq!(response.header("ratelimit"), None);
}

#[test]
fn a_batch_gives_the_same_decisions_as_single_requests() {
    let (single, batched) = (Server::start(), Server::start());
    let requests: Vec<Value> =
        (0..40).map(|index| json!({"policy": "login", "key": format!("user:{}", index % 7)})).collect();
    let decisions: Vec<Value> =
        requests.iter().map(|request| single.check(request.to_string()).decision()).collect();
    assert_eq!(batched.check(json!(requests).to_string()).decision(), json!(decisions));
}

#[test]
fn an_empty_batch_has_an_empty_response() {
    assert_eq!(Server::start().check(" [ ] ").decision(), json!([]));
}

#[test]
fn an_invalid_request_gets_the_same_error_in_a_batch_as_alone() {
    let table = [
        (json!({"policy": "api", "key": "a", "cost": -1}), 422, Some("cost")),
        (json!({"policy": "api", "key": "a", "cost": 1_u64 << 50}), 422, Some("cost")),
        (json!({"policy": "api", "key": "a", "cots": 1}), 422, Some("cots")),
        (json!({"policy": "api", "key": ""}), 422, Some("key")),
        (json!({"policy": "api", "key": "k".repeat(4097)}), 422, Some("key")),
        (json!({"policy": "nope", "key": "a"}), 404, Some("policy")),
        (json!({"policy": "api", "tier": "nope", "key": "a"}), 422, Some("tier")),
        (json!({"quotas": ["1/1s", "x"], "key": "a"}), 422, Some("quotas[1]")),
        (json!({"quotas": [{"limit": -1, "window": "1s"}], "key": "a"}), 422, Some("quotas[0].limit")),
        (json!({"policy": "api", "quotas": ["1/1s"], "key": "a"}), 422, Some("policy")),
    ];
    let server = Server::start();
    let good = json!({"policy": "api", "key": "a"});
    for (before, (bad, status, field)) in table.iter().enumerate() {
        let results = server.check(json!([good, bad, good]).to_string()).decision();
        assert_eq!(results[1]["status"], *status, "{results}");
        assert_eq!(results[1]["field"].as_str(), *field, "{results}");
        assert_eq!(results[1], server.check(bad.to_string()).json());
        let left = 100 - 2 * before as u64;
        assert_eq!([&results[0]["remaining"], &results[2]["remaining"]], [left - 1, left - 2], "{bad}");
    }
    let all_bad = table.map(|(bad, ..)| bad);
    let results = server.check(json!(all_bad).to_string()).decision();
    assert!(results.as_array().unwrap().iter().all(|result| result.get("allowed").is_none()), "{results}");
}

#[test]
fn an_element_that_is_no_object_gets_its_own_error() {
    let server = Server::start();
    let others = json!([["api", null, null, "a", 1], null, 7, "a", [[[]]], {"policy": "api", "key": "a"}]);
    let results = server.check(others.to_string()).decision();
    for result in &results.as_array().unwrap()[..5] {
        assert_eq!((&result["status"], result.get("field")), (&json!(422), None), "{results}");
        assert!(result["detail"].as_str().unwrap().contains("an object with key"), "{results}");
    }
    assert_eq!(results[5]["remaining"], 99);
}

/// An invalid key of one client must not fail the other requests of the batch.
#[test]
fn a_lone_surrogate_fails_only_its_own_request() {
    let server = Server::start();
    let good = r#"{"policy": "api", "key": "a"}"#;
    let results =
        server.check(format!(r#"[{good}, {{"policy": "api", "key": "\ud800"}}, {good}]"#)).decision();
    assert_eq!([&results[0]["remaining"], &results[2]["remaining"]], [99, 98], "{results}");
    assert_eq!(results[1]["status"], 400, "{results}");
}

#[test]
fn a_batch_that_is_not_json_is_rejected_and_charges_nothing() {
    let server = Server::start();
    let good = r#"{"policy": "api", "key": "a"}"#;
    for bad in [
        format!("[{good}, "),
        format!("[{good}] x"),
        format!("[{good}, {{}}, {good}] ]"),
        format!("[{good} {good}]"),
        format!("[{good}, {{\"key\": 1 2}}]"),
    ] {
        let response = server.check(bad.clone());
        assert_eq!(response.status, 400, "{bad}: {response:?}");
        assert_eq!(server.post("/v1/peek", good).decision()["remaining"], 100, "{bad}");
    }
}

/// Results keep the order of the requests, although long batches are decided in pieces.
#[test]
fn long_batches_are_decided_in_order() {
    let server = Server::start();
    let batch = |count: usize| json!(vec![json!({"policy": "api", "key": "a"}); count]).to_string();
    for count in [1, 999, 1000, 1001, 20_000] {
        server.clock.advance(3 * 60_000);
        let results = server.check(batch(count)).decision();
        let is_allowed = |result: &Value| result["allowed"] == true;
        let allowed: Vec<_> = results.as_array().unwrap().iter().map(is_allowed).collect();
        let expected: Vec<_> = (0..count).map(|place| place < 100).collect();
        assert_eq!(allowed, expected, "{count}");
    }
    let response = server.check(format!("[{}]", vec!["1"; 50_001].join(",")));
    assert_eq!(response.status, 422);
    assert_eq!(
        response.json()["detail"],
        "the array has more than 50000 elements; at most 50000 are allowed"
    );
}

#[test]
fn a_batch_with_a_too_large_response_is_rejected_before_any_decision() {
    let quotas: Vec<_> = (1..=16).map(|hours| format!("9/{hours}h")).collect();
    let server = Server::with_config(&json!({"policies": {"p": {"quotas": quotas}}}).to_string());
    let request = r#"{"policy":"p","key":"a"}"#;
    let response = server.check(format!("[{}]", vec![request; 20_000].join(",")));
    assert_eq!(response.status, 413, "{response:?}");
    assert!(response.body.contains("send smaller batches"), "{response:?}");
    assert_eq!(server.post("/v1/peek", request).decision()["remaining"], 9, "nothing was charged");
}

#[test]
fn a_full_memory_store_responds_503() {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().max_keys(1).when_full(WhenFull::Refuse).clock(clock.clone());
    let server = Server::with_store(store.build().unwrap(), clock);
    let request = |key: &str| json!({"policy": "api", "key": key});
    let results = server.check(json!([request("a"), request("b"), request("a")]).to_string()).decision();
    assert_eq!(results[0]["remaining"], 99);
    assert_eq!((&results[1]["status"], results[1].get("allowed")), (&json!(503), None));
    assert_eq!(results[2]["remaining"], 98);
    let response = server.check(request("b").to_string());
    assert_eq!(response.status, 503);
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let problem = response.json();
    assert!(problem["detail"].as_str().unwrap().starts_with("the memory store is full"), "{response:?}");
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(false)));
    assert_eq!(response.header("retry-after"), Some("1"));
}
