//! Stores that are unreachable, crash, hang or reject commands.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use crate::harness::Response;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

/// Starts a server whose policies fail closed, so that responses show failures of the store.
fn serve(store: &str) -> ServeProcess {
    serve_with(store, "closed")
}

fn serve_with(store: &str, on_failure: &str) -> ServeProcess {
    let config = format!("degrade: {{on_failure: {on_failure}}}\npolicies: {{api: {{quotas: [100/1m]}}}}\n");
    let file = TempFile::new("outages", &config);
    let arguments = ["serve", "--http", "127.0.0.1:0", "--config", file.path(), "--store", store];
    ServeProcess::start(slidegate().args(arguments))
}

fn request(key: &str) -> Value {
    json!({"policy": "api", "key": key})
}

/// Asserts that the response is a store failure and returns its problem document.
fn problem_of(response: &Response) -> Value {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert_eq!(response.header("ratelimit"), None, "nothing was decided");
    response.json()
}

#[test]
fn a_check_names_an_unreachable_store_with_the_reason() {
    // No process listens on port 1.
    for (store, address) in [
        ("redis://127.0.0.1:1", "redis at 127.0.0.1:1: "),
        ("redis+cluster://127.0.0.1:1", "redis at "),
        ("redis+sentinel://127.0.0.1:1/main", "redis at "),
        ("redis+unix:///nowhere", "redis at "),
        ("postgres://127.0.0.1:1", "postgres at 127.0.0.1:1: "),
    ] {
        let arguments = ["check", "a", "--quota", "1/s", "--store", store];
        let (code, stdout, stderr) = outcome(slidegate().args(arguments).env("RUST_LOG", "off"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{store}: {stderr}");
        assert!(
            stderr.starts_with(&format!("error: cannot connect to the store {store}: {address}")),
            "{stderr}"
        );
    }
    // `validate` does not connect to the store.
    let file = TempFile::new("unreachable", "store: redis://127.0.0.1:1\n");
    assert_eq!(outcome(slidegate().args(["validate", file.path()])).0, 0);
}

#[test]
fn a_server_starts_without_its_store_and_connects_later() {
    let redis = Server::start(Flavour::Redis);
    let postgres = Postgres::start();
    let stores = [format!("{}?budget_ms=20000", redis.url()), format!("{}?budget_ms=20000", postgres.url())];
    redis.kill();
    postgres.kill();
    let servers = stores.map(|store| serve_with(&store, "local"));
    for server in &servers {
        let decision = server.check(&request("a")).decision();
        assert_eq!(
            (&decision["allowed"], &decision["source"]),
            (&json!(true), &json!("fallback")),
            "{decision}"
        );
    }
    redis.restart();
    postgres.restart();
    for server in &servers {
        until("the store decides", || {
            let decision = server.check(&request("b")).decision();
            if decision["source"] == "store" { Ok(()) } else { Err(decision.to_string()) }
        });
    }
}

#[test]
fn a_server_does_not_start_if_the_store_rejects_its_password() {
    let redis = Server::builder(Flavour::Redis).args(["--requirepass", "right"]).start();
    let store = format!("redis://:wrong@{}", redis.address());
    let (code, stdout, stderr) =
        outcome(slidegate().args(["serve", "--store", &store]).env("RUST_LOG", "off"));
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.contains("cannot connect to the store redis://"), "{stderr}");
}

/// A demoted primary accepts each reconnect and rejects each write.
#[test]
fn an_outage_of_a_demoted_primary_is_logged_once() {
    let (redis, primary) = (Server::start(Flavour::Redis), Server::start(Flavour::Redis));
    let log = TempFile::new("demoted-log", "");
    let mut serve = slidegate();
    let file =
        TempFile::new("demoted", "degrade: {on_failure: local}\npolicies: {api: {quotas: [100/1m]}}\n");
    serve.args(["serve", "--http", "127.0.0.1:0", "--config", file.path(), "--store", &redis.url()]);
    let server = ServeProcess::start_with_log(&mut serve, std::fs::File::create(log.path()).unwrap().into());
    let source = || server.check(&request("a")).decision()["source"].clone();
    let source_is = |expected: &str| if source() == expected { Ok(()) } else { Err(source().to_string()) };
    until("the store decides", || source_is("store"));
    let connections = || redis.calls_of("hello");
    let before = connections();
    redis.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).ok();
    until("several reconnects", || {
        let attempts = connections() - before;
        source_is("fallback")?;
        if attempts >= 4 { Ok(()) } else { Err(attempts.to_string()) }
    });
    redis.command(&["REPLICAOF", "NO", "ONE"]).ok();
    until("the store decides again", || source_is("store"));
    let logged = std::fs::read_to_string(log.path()).unwrap();
    let lines_with = |words: &str| logged.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (lines_with("redis is unavailable"), lines_with("redis is available again")),
        (1, 1),
        "{logged}"
    );
}

/// Redis closes idle connections after its `timeout`.
#[test]
fn closed_idle_connections_are_no_outage() {
    let redis = Server::builder(Flavour::Redis).args(["--timeout", "1"]).start();
    let log = TempFile::new("idle-log", "");
    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url()]);
    let server = ServeProcess::start_with_log(&mut serve, std::fs::File::create(log.path()).unwrap().into());
    let before = redis.calls_of("hello");
    until("several idle connections are closed", || match redis.calls_of("hello") - before {
        count @ 0..=3 => Err(count.to_string()),
        _ => Ok(()),
    });
    assert_eq!(server.check(&request("a")).decision()["source"], "store");
    let logged = std::fs::read_to_string(log.path()).unwrap();
    assert!(!logged.contains("redis is unavailable"), "{logged}");
}

#[test]
fn an_invalid_store_url_is_rejected_with_the_valid_forms() {
    let cases = [
        ("redis://", "a host is missing; allowed are redis://["),
        ("redis+ring://a", "the scheme \"redis+ring\" is unknown; allowed are redis://["),
        ("redis://a?budget=1", "budget: there is no such option; allowed are prefix, secret, "),
        ("disk", "not a store; write memory:, redis://HOST:PORT, "),
    ];
    for (url, expected) in cases {
        let commands: [&[&str]; 2] = [&["serve"], &["check", "a", "--quota", "1/s"]];
        for command in commands {
            let (code, stdout, stderr) = outcome(slidegate().args(command).args(["--store", url]));
            assert_eq!((code, stdout.as_str()), (2, ""), "{url}: {stderr}");
            assert!(stderr.starts_with(&format!("error: --store: {expected}")), "{url}: {stderr}");
        }
    }
}

#[test]
fn a_killed_store_is_a_failure_until_it_is_back() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&format!("{}?budget_ms=20000", redis.url()));
    assert_eq!(server.check(&request("a")).decision()["remaining"], 99);
    redis.kill();
    // A request in flight at the kill has an unknown outcome: may_have_counted is true.
    until("the store is known to be unavailable", || {
        let problem = problem_of(&server.check(&request("a")));
        if problem["may_have_counted"] == false { Ok(()) } else { Err(problem.to_string()) }
    });
    let response = server.check(&request("a"));
    let problem = problem_of(&response);
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(false)));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("redis at {}: ", redis.address())), "{detail}");
    assert_eq!(response.header("retry-after"), Some("1"));

    let results = server.check(&json!([request("a"), request("b")])).decision();
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!(503), &json!(503)));

    redis.restart();
    let decision = until("the store decides again", || {
        let response = server.check(&json!({"policy": "api", "key": "b"}));
        if response.status == 200 { Ok(response.decision()) } else { Err(response.body) }
    });
    // A failed request is not counted later.
    assert_eq!(decision["remaining"], 99);
}

#[test]
fn a_hanging_store_times_out_and_may_have_counted() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=50", redis.url());
    let server = serve(&store);
    redis.stop_signal();
    // Every response before `continue_signal` is decided without the store.
    let problem = problem_of(&server.check(&request("a")));
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(true)));
    assert!(problem["detail"].as_str().unwrap().ends_with(" within 50ms"), "{problem}");
    problem_of(&server.check(&request("a")));
    redis.continue_signal();
    until("the store decides again", || {
        let response = server.check(&request("b"));
        if response.status == 200 { Ok(()) } else { Err(response.body) }
    });
}

#[test]
fn a_key_that_the_store_rejects_does_not_fail_the_batch() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=20000", redis.url());
    let server = serve(&store);
    server.check(&request("b")).decision();
    // A foreign value under the name of the record.
    let name = redis.command(&["KEYS", "*"]).array()[0].text();
    redis.command(&["DEL", &name]);
    redis.command(&["LPUSH", &name, "another application's"]);

    let results = server.check(&json!([request("a"), request("b"), request("c")])).decision();
    assert_eq!((&results[0]["remaining"], &results[2]["remaining"]), (&json!(99), &json!(99)));
    let problem = &results[1];
    assert_eq!((&problem["status"], problem.get("allowed")), (&json!(503), None));
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(false), &json!(false)));
    assert!(problem["detail"].as_str().unwrap().contains("WRONGTYPE"), "{problem}");

    let response = server.check(&request("b"));
    assert_eq!(problem_of(&response)["transient"], false);
    assert_eq!(response.header("retry-after"), None, "a permanent error has no retry time");
}

#[test]
fn fallbacks_follow_the_policy_and_are_reported() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=20000", redis.url());
    for (on_failure, share) in [("local", 99), ("open", 100)] {
        let server = serve_with(&store, on_failure);
        assert_eq!(server.check(&request("a")).decision()["source"], "store");
        redis.kill();
        let decision = until("the store is unavailable", || {
            let decision = server.check(&request("b")).decision();
            if decision["source"] == "fallback" { Ok(decision) } else { Err(decision.to_string()) }
        });
        assert_eq!(
            (&decision["allowed"], &decision["remaining"]),
            (&json!(true), &json!(share)),
            "{decision}"
        );
        let reasons = [json!("unavailable"), json!("resting")];
        assert!(reasons.contains(&decision["reason"]), "{decision}");
        let batch = server.check(&json!([request("b"), request("c")])).decision();
        assert_eq!((&batch[0]["source"], &batch[1]["source"]), (&json!("fallback"), &json!("fallback")));
        redis.restart();
        until("the store decides again", || {
            let decision = server.check(&request("d")).decision();
            if decision["source"] == "store" { Ok(()) } else { Err(decision.to_string()) }
        });
    }
}

#[test]
fn modes_lists_and_candidates_of_policies_apply() {
    let config = "\
policies:
  shadowed: {quotas: [1/1h], mode: shadow}
  off: {quotas: [1/1h], mode: off}
  listed: {quotas: [1/1h], allow: [friend], deny: [foe]}
  tried: {quotas: [2/1h], candidate: [1/1h]}
";
    let file = TempFile::new("switched", config);
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", file.path()]));
    let check = |policy: &str, key: &str| server.check(&json!({"policy": policy, "key": key})).decision();
    let twice = |policy: &str, key: &str| [check(policy, key), check(policy, key)];

    let [first, second] = twice("shadowed", "k");
    assert_eq!((&first["shadow"]["allowed"], &second["shadow"]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!((&second["allowed"], &second["violated"]), (&json!(true), &json!([])));
    assert!(second["shadow"]["retry_after_ms"].is_u64(), "{second}");

    let [_, second] = twice("off", "k");
    assert_eq!((&second["allowed"], &second["source"]), (&json!(true), &json!("rule")));
    let [_, friend] = twice("listed", "friend");
    assert_eq!((&friend["allowed"], &friend["source"]), (&json!(true), &json!("rule")));
    let foe = check("listed", "foe");
    assert_eq!(
        (&foe["allowed"], &foe["source"], &foe["never"]),
        (&json!(false), &json!("rule"), &json!(true))
    );
    assert_eq!(twice("listed", "k")[1]["allowed"], false);

    let [first, second] = twice("tried", "k");
    assert_eq!((&first["shadow"]["allowed"], &second["shadow"]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!((&second["allowed"], &second["source"]), (&json!(true), &json!("store")));
}
