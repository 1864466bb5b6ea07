//! Invalid requests: status, field and detail of each problem document. No invalid request is charged.

use serde_json::json;

use crate::harness::{Server, request};

/// Body, status, field and a part of the detail.
const TABLE: [(&str, u16, Option<&str>, &str); 46] = [
    ("", 400, None, "neither a JSON object nor an array"),
    ("   ", 400, None, "neither a JSON object nor an array"),
    ("null", 400, None, "neither a JSON object nor an array"),
    ("\"policy\"", 400, None, "neither a JSON object nor an array"),
    ("policy=api&key=a", 400, None, "neither a JSON object nor an array"),
    ("{", 400, None, "not valid JSON: EOF"),
    ("{'policy': 'api'}", 400, None, "not valid JSON"),
    (r#"{"policy": "api", "key": "a",}"#, 400, None, "not valid JSON: trailing comma"),
    (r#"{"policy": "api", "key": "a"} {}"#, 400, None, "not valid JSON: trailing characters"),
    (r#"[{"policy": "api", "key": "a"}"#, 400, None, "not valid JSON: EOF"),
    (r#"{"policy": "api", "key": "\ud800"}"#, 400, None, "not valid JSON"),
    (r#"{"policy": "api", "key": "a", "cost": 01}"#, 400, None, "not valid JSON"),
    (r#"{"policy": "api", "key": "a", "cost": NaN}"#, 400, None, "not valid JSON"),
    (r#"{"policy": "nope", "key": "a"}"#, 404, Some("policy"), r#"no policy "nope"; known: "api", "login""#),
    (r#"{"policy": "", "key": "a"}"#, 404, Some("policy"), r#"no policy """#),
    ("{}", 422, Some("policy"), "neither is given; give exactly one of policy and quotas"),
    (r#"{"key": "a"}"#, 422, Some("policy"), "give exactly one of policy and quotas"),
    (r#"{"policy": "api", "quotas": ["1/s"], "key": "a"}"#, 422, Some("policy"), "both are given"),
    (r#"{"policy": 7, "key": "a"}"#, 422, Some("policy"), "expected a string"),
    (r#"{"policy": "api", "tier": "gold", "key": "a"}"#, 422, Some("tier"), r#"known: "premium""#),
    (r#"{"policy": "login", "tier": "gold", "key": "a"}"#, 422, Some("tier"), "known: none"),
    (r#"{"quotas": ["1/s"], "tier": "gold", "key": "a"}"#, 422, Some("tier"), "only valid with policy"),
    (r#"{"policy": "api"}"#, 422, Some("key"), "missing; 1 to 4096 bytes"),
    (r#"{"policy": "api", "key": null}"#, 422, Some("key"), "missing; 1 to 4096 bytes"),
    (r#"{"policy": "api", "key": ""}"#, 422, Some("key"), "0 bytes; 1 to 4096 bytes"),
    (r#"{"policy": "api", "key": ["a"]}"#, 422, Some("key"), "expected a string"),
    (r#"{"policy": "api", "key": "a", "key": "b"}"#, 422, Some("key"), "it is given twice"),
    (r#"{"policy": "api", "key": "a", "cost": -1}"#, 422, Some("cost"), "between 0 and 281474976710656"),
    (r#"{"policy": "api", "key": "a", "cost": 1.5}"#, 422, Some("cost"), "between 0 and 281474976710656"),
    (r#"{"policy": "api", "key": "a", "cost": "1"}"#, 422, Some("cost"), "between 0 and 281474976710656"),
    (r#"{"policy": "api", "key": "a", "cost": true}"#, 422, Some("cost"), "between 0 and 281474976710656"),
    (
        r#"{"policy": "api", "key": "a", "cost": 281474976710657}"#,
        422,
        Some("cost"),
        "between 0 and 281474976710656",
    ),
    (r#"{"policy": "api", "key": "a", "cost": 99999999999999999999}"#, 422, Some("cost"), "between 0 and"),
    (r#"{"policy": "api", "key": "a", "cost": 1e400}"#, 422, Some("cost"), "no field takes more than"),
    (
        r#"{"policy": "api", "key": "a", "csot": 5}"#,
        422,
        Some("csot"),
        "unknown field `csot`, expected one of",
    ),
    (r#"{"quotas": [], "key": "a"}"#, 422, Some("quotas"), "none given; 1 to 16 are allowed"),
    (r#"{"quotas": "1/s", "key": "a"}"#, 422, Some("quotas"), "expected an array of at most 16"),
    (r#"{"quotas": ["1/s", "1/1s"], "key": "a"}"#, 422, Some("quotas"), "two quotas are called"),
    (
        r#"{"quotas": ["1/s", "281474976710657/1m"], "key": "a"}"#,
        422,
        Some("quotas[1]"),
        "limit: 281474976710657 is not between 0 and 2^48",
    ),
    (r#"{"quotas": [5], "key": "a"}"#, 422, Some("quotas[0]"), "expected a quota such as"),
    (
        r#"{"quotas": [{"limit": 1}], "key": "a"}"#,
        422,
        Some("quotas[0].window"),
        "is missing; it takes a time such as",
    ),
    (
        r#"{"quotas": [{"limit": 1, "window": 60}], "key": "a"}"#,
        422,
        Some("quotas[0].window"),
        "expected a time with its unit, such as \"30s\", \"15m\" or \"1d\"",
    ),
    (
        r#"{"quotas": [{"limit": 1, "window": "1w"}], "key": "a"}"#,
        422,
        Some("quotas[0].window"),
        "is not a window",
    ),
    (
        r#"{"quotas": [{"limit": 1, "window": "1s", "x": 1}], "key": "a"}"#,
        422,
        Some("quotas[0].x"),
        "unknown field",
    ),
    (
        r#"{"quotas": [{"limit": 1, "window": "1s", "slots": 1000, "algorithm": "strict-window"}], "key": "a"}"#,
        422,
        Some("quotas[0].slots"),
        "1000 is not an even number between 4 and 64",
    ),
    (
        r#"{"quotas": [{"limit": 1, "window": "1s", "name": "a\nb"}], "key": "a"}"#,
        422,
        Some("quotas[0].name"),
        "no control characters",
    ),
];

#[test]
fn invalid_requests_are_rejected_and_change_nothing() {
    let server = Server::start();
    let body = r#"{"policy": "api", "key": "a"}"#;
    server.check(body).decision();
    let before = server.post("/v1/peek", body).decision();
    for path in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/reset"] {
        for (bad, status, field, detail) in TABLE {
            let response = server.post(path, bad);
            let problem = response.json();
            assert_eq!((response.status, problem["field"].as_str()), (status, field), "{bad}: {response:?}");
            assert!(problem["detail"].as_str().unwrap().contains(detail), "{bad}: {response:?}");
            assert_eq!((&problem["status"], &problem["type"]), (&json!(status), &json!("about:blank")));
            assert!(problem["title"].is_string(), "{response:?}");
            assert_eq!(response.header("content-type"), Some("application/problem+json"), "{bad}");
            assert_eq!(server.post("/v1/peek", body).decision(), before, "{bad}");
        }
    }
}

#[test]
fn a_body_that_is_not_utf8_is_rejected() {
    let response = Server::start().check(b"{\"policy\": \"api\", \"key\": \"\xff\"}");
    assert_eq!(response.status, 400);
    assert!(response.json()["detail"].as_str().unwrap().contains("not UTF-8"), "{response:?}");
}

#[test]
fn keys_up_to_4096_bytes_are_accepted() {
    let server = Server::start();
    let body = |bytes: usize| json!({"policy": "api", "key": "k".repeat(bytes)}).to_string();
    assert_eq!(server.check(body(4096)).status, 200);
    let response = server.check(body(4097));
    assert_eq!((response.status, &response.json()["field"]), (422, &json!("key")));
}

#[test]
fn the_largest_cost_is_accepted() {
    let server = Server::start();
    let body = r#"{"quotas": ["281474976710656/1d"], "key": "a", "cost": 281474976710656}"#;
    assert_eq!(server.check(body).decision()["remaining"], 0);
    assert_eq!(server.check(body).decision()["allowed"], false);
}

#[test]
fn the_size_of_bodies_is_bounded() {
    let server = Server::start();
    let padded = |text: &str, bytes: usize| format!("{text}{}", " ".repeat(bytes - text.len()));
    let single = r#"{"policy": "api", "key": "a"}"#;
    let batch = r#"[{"policy": "api", "key": "a"}]"#;
    assert_eq!(server.check(padded(single, 64 << 10)).status, 200);
    assert_eq!(server.check(padded(single, (64 << 10) + 1)).status, 413);
    assert_eq!(server.check(padded(batch, 1 << 20)).status, 200);
    let response = server.check(padded(batch, (1 << 20) + 1));
    assert_eq!((response.status, &response.json()["status"]), (413, &json!(413)));
    let remaining = server.post("/v1/peek", single).decision()["remaining"].clone();
    assert_eq!(remaining, 98);
}

#[test]
fn wrong_methods_and_paths_get_problem_documents() {
    let server = Server::start();
    let table = [
        ("GET", "/v1/check", 405, Some("POST")),
        ("DELETE", "/v1/reset", 405, Some("POST")),
        ("POST", "/healthz", 405, Some("GET,HEAD")),
        ("GET", "/", 404, None),
        ("POST", "/v1/checks", 404, None),
        ("POST", "/v1/check/", 404, None),
    ];
    for (method, path, status, allow) in table {
        let response = request(server.address, method, path, b"");
        assert_eq!((response.status, response.header("allow")), (status, allow), "{method} {path}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"), "{method} {path}");
        assert_eq!(response.json()["status"], status, "{method} {path}");
    }
}
