//! Batches: one call, each answer for itself, also that of a request which is not valid.

use serde_json::{Value, json};
use slidegate::{ManualClock, MemoryStore, WhenFull};

use crate::harness::{START_MS, Server};

#[test]
fn each_stands_for_itself_in_order() {
    let server = Server::start();
    let batch = json!([
        {"policy": "login", "key": "a", "cost": 2},
        {"policy": "login", "key": "a"},
        {"policy": "login", "key": "b"},
        {"quotas": ["5/1s"], "key": "a", "cost": 6},
        {"policy": "api", "tier": "premium", "key": "a"},
    ]);
    let response = server.check(batch.to_string());
    let answers = response.decision();
    let field = |name: &str| -> Vec<Value> {
        answers.as_array().unwrap().iter().map(|answer| answer[name].clone()).collect()
    };
    assert_eq!(field("allowed"), [json!(true), json!(false), json!(true), json!(false), json!(true)]);
    assert_eq!(field("policy"), [json!("login"), json!("login"), json!("login"), json!(null), json!("api")]);
    assert_eq!(field("remaining"), [json!(0), json!(0), json!(1), json!(5), json!(999)]);
    assert_eq!(field("never"), [json!(null), json!(null), json!(null), json!(true), json!(null)]);
    assert_eq!(response.header("ratelimit"), None);
}

#[test]
fn a_batch_answers_like_single_requests() {
    let (one_by_one, together) = (Server::start(), Server::start());
    let requests: Vec<Value> =
        (0..40).map(|index| json!({"policy": "login", "key": format!("user:{}", index % 7)})).collect();
    let singles: Vec<Value> =
        requests.iter().map(|request| one_by_one.check(request.to_string()).decision()).collect();
    assert_eq!(together.check(json!(requests).to_string()).decision(), json!(singles));
}

#[test]
fn an_empty_batch_has_an_empty_answer() {
    assert_eq!(Server::start().check(" [ ] ").decision(), json!([]));
}

#[test]
fn one_that_is_wrong_is_refused_in_its_place_in_the_same_words_as_by_itself() {
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
        let answers = server.check(json!([good, bad, good]).to_string()).decision();
        assert_eq!(answers[1]["status"], *status, "{answers}");
        assert_eq!(answers[1]["field"].as_str(), *field, "{answers}");
        assert_eq!(answers[1], server.check(bad.to_string()).json());
        let left = 100 - 2 * before as u64;
        assert_eq!([&answers[0]["remaining"], &answers[2]["remaining"]], [left - 1, left - 2], "{bad}");
    }
    let all_bad = table.map(|(bad, ..)| bad);
    let answers = server.check(json!(all_bad).to_string()).decision();
    assert!(answers.as_array().unwrap().iter().all(|answer| answer.get("allowed").is_none()), "{answers}");
}

#[test]
fn what_is_no_object_is_refused_in_its_place_too() {
    let server = Server::start();
    let others = json!([["api", null, null, "a", 1], null, 7, "a", [[[]]], {"policy": "api", "key": "a"}]);
    let answers = server.check(others.to_string()).decision();
    for answer in &answers.as_array().unwrap()[..5] {
        assert_eq!((&answer["status"], answer.get("field")), (&json!(422), None), "{answers}");
        assert!(answer["detail"].as_str().unwrap().contains("an object with key"), "{answers}");
    }
    assert_eq!(answers[5]["remaining"], 99);
}

/// Whoever chooses a key must not cost others their answers.
#[test]
fn half_a_character_is_refused_in_its_place() {
    let server = Server::start();
    let good = r#"{"policy": "api", "key": "a"}"#;
    let answers =
        server.check(format!(r#"[{good}, {{"policy": "api", "key": "\ud800"}}, {good}]"#)).decision();
    assert_eq!([&answers[0]["remaining"], &answers[2]["remaining"]], [99, 98], "{answers}");
    assert_eq!(answers[1]["status"], 400, "{answers}");
}

#[test]
fn a_batch_that_is_no_json_is_refused_whole_and_spends_nothing() {
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

/// In their order, however many are decided at a time.
#[test]
fn a_batch_may_be_long() {
    let server = Server::start();
    let batch = |count: usize| json!(vec![json!({"policy": "api", "key": "a"}); count]).to_string();
    for count in [1, 999, 1000, 1001, 20_000] {
        server.clock.advance(3 * 60_000);
        let answers = server.check(batch(count)).decision();
        let is_allowed = |answer: &Value| answer["allowed"] == true;
        let allowed: Vec<_> = answers.as_array().unwrap().iter().map(is_allowed).collect();
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
fn an_answer_that_would_be_too_large_is_not_begun() {
    let quotas: Vec<_> = (1..=16).map(|hours| format!("9/{hours}h")).collect();
    let server = Server::with_config(&json!({"policies": {"p": {"quotas": quotas}}}).to_string());
    let request = r#"{"policy":"p","key":"a"}"#;
    let response = server.check(format!("[{}]", vec![request; 20_000].join(",")));
    assert_eq!(response.status, 413, "{response:?}");
    assert!(response.body.contains("send smaller batches"), "{response:?}");
    assert_eq!(server.post("/v1/peek", request).decision()["remaining"], 9, "nothing was spent");
}

#[test]
fn a_store_that_has_no_room_says_so() {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().max_keys(1).when_full(WhenFull::Refuse).clock(clock.clone());
    let server = Server::with_store(store.build().unwrap(), clock);
    let request = |key: &str| json!({"policy": "api", "key": key});
    let answers = server.check(json!([request("a"), request("b"), request("a")]).to_string()).decision();
    assert_eq!(answers[0]["remaining"], 99);
    assert_eq!((&answers[1]["status"], answers[1].get("allowed")), (&json!(503), None));
    assert_eq!(answers[2]["remaining"], 98);
    let response = server.check(request("b").to_string());
    assert_eq!(response.status, 503);
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let problem = response.json();
    assert!(problem["detail"].as_str().unwrap().starts_with("the memory store is full"), "{response:?}");
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(false)));
    assert_eq!(response.header("retry-after"), Some("1"));
}
