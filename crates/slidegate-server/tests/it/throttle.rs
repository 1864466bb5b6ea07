//! `POST /throttle`, compatible with the server of throttlecrab 0.4.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Server as Redis, until};

use crate::harness::{Response, Server, request_with_headers};
use crate::process::{ServeProcess, TempFile, slidegate};

const JSON: &str = "content-type: application/json\r\n";

fn post(server: &Server, body: impl AsRef<[u8]>) -> Response {
    request_with_headers(server.address, "POST", "/throttle", JSON, body.as_ref())
}

fn throttle(server: &Server, body: &Value) -> Value {
    post(server, body.to_string()).decision()
}

#[test]
fn a_response_has_the_fields_of_throttlecrab() {
    let server = Server::start();
    let body = json!({"key": "api-key-123", "max_burst": 3, "count_per_period": 10, "period": 60});
    for remaining in [2, 1, 0] {
        let decision = throttle(&server, &body);
        let fields: Vec<&String> = decision.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["allowed", "limit", "remaining", "reset_after", "retry_after"]);
        assert_eq!((&decision["allowed"], &decision["limit"]), (&json!(true), &json!(3)));
        assert_eq!((&decision["remaining"], &decision["retry_after"]), (&json!(remaining), &json!(0)));
    }
    let denied = json!({"allowed": false, "limit": 3, "remaining": 0, "reset_after": 24, "retry_after": 6});
    assert_eq!(throttle(&server, &body), denied);
    server.clock.advance(6000);
    assert_eq!(throttle(&server, &body)["allowed"], true, "allowed after retry_after");
}

#[test]
fn the_quantity_is_optional_and_unknown_fields_are_ignored() {
    let server = Server::start();
    let mut body = json!({"key": "k", "max_burst": 10, "count_per_period": 100, "period": 60, "quantity": 5});
    let five = json!({"allowed": true, "limit": 10, "remaining": 5, "reset_after": 7, "retry_after": 0});
    assert_eq!(throttle(&server, &body), five);
    body["quantity"] = Value::Null;
    body["timestamp"] = json!(1);
    assert_eq!(throttle(&server, &body)["remaining"], 4);
    body["quantity"] = json!(15);
    let never = json!({"allowed": false, "limit": 10, "remaining": 4, "reset_after": 8, "retry_after": 7});
    assert_eq!(throttle(&server, &body), never);
}

#[test]
fn errors_name_the_field() {
    let server = Server::start();
    let valid = json!({"key": "k", "max_burst": 1, "count_per_period": 1, "period": 1});
    let with = |field: &str, value: Value| {
        let mut body = valid.clone();
        body[field] = value;
        body.to_string()
    };
    let rate = "Internal server error: Rate limit check failed: invalid rate limit parameters";
    for (body, status, error) in [
        (
            "{".to_owned(),
            400,
            "the body is not valid JSON: EOF while parsing an object at line 1 column 1".to_owned(),
        ),
        (r#"{"key": "k"}"#.to_owned(), 422, "max_burst: is missing".to_owned()),
        (with("period", json!("1m")), 422, "period: invalid type: string \"1m\", expected i64".to_owned()),
        (with("key", json!("")), 422, "key: 0 bytes; 1 to 4096 bytes are allowed".to_owned()),
        (
            with("max_burst", json!(0)),
            500,
            format!("{rate}: max_burst: 0 is not between 1 and 281474976710656"),
        ),
        (with("period", json!(-5)), 500, format!("{rate}: period: -5 is not between 1 and 31622400")),
        (
            with("quantity", json!(-1)),
            500,
            "Internal server error: Rate limit check failed: negative quantity: -1".to_owned(),
        ),
        (
            with("key", json!("k".repeat(70_000))),
            413,
            "the body is too large; 65536 bytes are allowed for an object, 1048576 for an array".to_owned(),
        ),
    ] {
        let response = post(&server, &body);
        assert_eq!(
            (response.status, response.header("content-type")),
            (status, Some("application/json")),
            "{response:?}"
        );
        assert_eq!(response.json(), json!({"error": error}));
    }
    assert_eq!(throttle(&server, &valid)["remaining"], 0, "failed requests are not counted");
}

#[test]
fn only_json_by_post_is_accepted() {
    let server = Server::start();
    let body = json!({"key": "k", "max_burst": 1, "count_per_period": 1, "period": 1}).to_string();
    for lines in ["", "content-type: text/plain\r\n", "content-type: application/jsonp\r\n"] {
        let response = request_with_headers(server.address, "POST", "/throttle", lines, body.as_bytes());
        assert_eq!(response.status, 415, "{lines}");
        assert_eq!(
            response.json(),
            json!({"error": "Expected request with `Content-Type: application/json`"})
        );
    }
    let charset = "Content-Type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(
        request_with_headers(server.address, "POST", "/throttle", charset, body.as_bytes()).status,
        200
    );
    assert_eq!(request_with_headers(server.address, "GET", "/throttle", "", b"").status, 405);
}

#[test]
fn http_throttle_needs_a_token_and_shares_keys_with_the_resp_command() {
    let token = "0123456789abcdef-app";
    let file = TempFile::new(
        "throttle-tokens",
        &format!("tokens: [{{name: app, token: {token}}}]\npolicies: {{api: {{quotas: [9/1m]}}}}\n"),
    );
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--config", file.path()];
    let server = ServeProcess::start(slidegate().args(arguments));
    let body = json!({"key": "k", "max_burst": 2, "count_per_period": 1, "period": 3600}).to_string();
    let rejection = request_with_headers(server.address(), "POST", "/throttle", JSON, body.as_bytes());
    assert_eq!((rejection.status, rejection.header("www-authenticate")), (401, Some("Bearer")));
    assert!(
        rejection.json()["error"].as_str().unwrap().contains("the request has no token"),
        "{rejection:?}"
    );
    let lines = format!("{JSON}authorization: Bearer {token}\r\n");
    let response = request_with_headers(server.address(), "POST", "/throttle", &lines, body.as_bytes());
    assert_eq!(response.decision()["remaining"], 1);
    let address = server.startup_lines.iter().find_map(|line| line.strip_prefix("resp: redis://")).unwrap();
    let mut client = slidegate_testkit::Connection::open(address.parse().unwrap()).unwrap();
    client.command(&["AUTH", token]).unwrap();
    let numbers = client.command(&["THROTTLE", "k", "2", "1", "3600"]).unwrap();
    assert_eq!(numbers.array()[2].int(), 0, "HTTP and RESP share the bucket");
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains(r#"policy="THROTTLE",tier="",source="store",outcome="allowed"} 2"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"slidegate_request_seconds_count{verb="throttle",stage="whole"} 2"#),
        "{metrics}"
    );
}

#[test]
fn an_unavailable_store_is_an_error_if_the_policy_fails_closed() {
    let redis = Redis::start(Flavour::Redis);
    let file =
        TempFile::new("throttle-away", "degrade: {on_failure: closed}\npolicies: {api: {quotas: [9/1m]}}\n");
    let url = redis.url();
    let arguments = ["serve", "--http", "127.0.0.1:0", "--store", &url, "--config", file.path()];
    let server = ServeProcess::start(slidegate().args(arguments));
    redis.kill();
    let body = json!({"key": "k", "max_burst": 2, "count_per_period": 1, "period": 3600}).to_string();
    until("the outage is an error", || {
        let response = request_with_headers(server.address(), "POST", "/throttle", JSON, body.as_bytes());
        match (response.status, response.header("retry-after"), response.json()["error"].as_str()) {
            (503, Some("1"), Some(error)) if error.contains("redis at") => Ok(()),
            _ => Err(format!("{response:?}")),
        }
    });
}
