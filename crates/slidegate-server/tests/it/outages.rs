//! Stores that cannot be reached, go away, say nothing, or refuse.

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use crate::harness::Response;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

/// A server whose policies fail closed, so that failures of the store are seen as they are.
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

/// Asserts that it is a store's failure, and gives what it says.
fn failure(response: &Response) -> Value {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert_eq!(response.header("ratelimit"), None, "nothing was decided");
    response.json()
}

#[test]
fn a_check_whose_store_cannot_be_reached_names_it_with_the_reason() {
    // Port 1 of this machine is nobody's.
    for (store, place) in [
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
            stderr.starts_with(&format!("error: cannot connect to the store {store}: {place}")),
            "{stderr}"
        );
    }
    // Whether it can be reached is not the file's business.
    let file = TempFile::new("unreachable", "store: redis://127.0.0.1:1\n");
    assert_eq!(outcome(slidegate().args(["validate", file.path()])).0, 0);
}

#[test]
fn a_server_starts_without_its_store_and_finds_it_when_it_comes() {
    let redis = Server::start(Flavour::Redis);
    let postgres = Postgres::start();
    let stores = [format!("{}?budget_ms=20000", redis.url()), format!("{}?budget_ms=20000", postgres.url())];
    redis.kill();
    postgres.kill();
    let servers = stores.map(|store| serve_with(&store, "local"));
    for server in &servers {
        let answer = server.check(&request("a")).decision();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(true), &json!("fallback")), "{answer}");
    }
    redis.restart();
    postgres.restart();
    for server in &servers {
        until("the store decides", || {
            let answer = server.check(&request("b")).decision();
            if answer["source"] == "store" { Ok(()) } else { Err(answer.to_string()) }
        });
    }
}

#[test]
fn a_server_does_not_start_with_a_store_that_refuses_it() {
    let redis = Server::builder(Flavour::Redis).args(["--requirepass", "right"]).start();
    let store = format!("redis://:wrong@{}", redis.address());
    let (code, stdout, stderr) =
        outcome(slidegate().args(["serve", "--store", &store]).env("RUST_LOG", "off"));
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.contains("cannot connect to the store redis://"), "{stderr}");
}

/// A primary that was demoted lets everybody in, again and again, and serves nobody.
#[test]
fn a_store_that_was_demoted_is_told_of_once() {
    let (redis, other) = (Server::start(Flavour::Redis), Server::start(Flavour::Redis));
    let log = TempFile::new("demoted-log", "");
    let mut serve = slidegate();
    let file =
        TempFile::new("demoted", "degrade: {on_failure: local}\npolicies: {api: {quotas: [100/1m]}}\n");
    serve.args(["serve", "--http", "127.0.0.1:0", "--config", file.path(), "--store", &redis.url()]);
    let server = ServeProcess::start_with_log(&mut serve, std::fs::File::create(log.path()).unwrap().into());
    let source = || server.check(&request("a")).decision()["source"].clone();
    let is = |wanted: &str| if source() == wanted { Ok(()) } else { Err(source().to_string()) };
    until("the store decides", || is("store"));
    let connections = || redis.calls_of("hello");
    let before = connections();
    redis.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).ok();
    until("it was tried again and again", || {
        let tried = connections() - before;
        is("fallback")?;
        if tried >= 4 { Ok(()) } else { Err(tried.to_string()) }
    });
    redis.command(&["REPLICAOF", "NO", "ONE"]).ok();
    until("the store decides again", || is("store"));
    let said = std::fs::read_to_string(log.path()).unwrap();
    let times = |words: &str| said.lines().filter(|line| line.contains(words)).count();
    assert_eq!((times("redis is away"), times("redis is back")), (1, 1), "{said}");
}

/// As servers do that are told a `timeout`. All connections but the first are closed without having been used.
#[test]
fn a_store_that_hangs_up_on_whoever_is_idle_is_not_away() {
    let redis = Server::builder(Flavour::Redis).args(["--timeout", "1"]).start();
    let log = TempFile::new("idle-log", "");
    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url()]);
    let server = ServeProcess::start_with_log(&mut serve, std::fs::File::create(log.path()).unwrap().into());
    let before = redis.calls_of("hello");
    until("it was closed several times", || match redis.calls_of("hello") - before {
        times @ 0..=3 => Err(times.to_string()),
        _ => Ok(()),
    });
    assert_eq!(server.check(&request("a")).decision()["source"], "store");
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains("redis is away"), "{said}");
}

#[test]
fn a_url_with_a_mistake_is_refused_with_what_is_allowed() {
    let refusals = [
        ("redis://", "a host is missing; allowed are redis://["),
        ("redis+ring://a", "\"redis+ring\" is not one of its schemes; allowed are redis://["),
        ("redis://a?budget=1", "budget: there is no such option; allowed are prefix, secret, "),
        ("disk", "not a store; write memory:, redis://HOST:PORT, "),
    ];
    for (url, expected) in refusals {
        let commands: [&[&str]; 2] = [&["serve"], &["check", "a", "--quota", "1/s"]];
        for command in commands {
            let (code, stdout, stderr) = outcome(slidegate().args(command).args(["--store", url]));
            assert_eq!((code, stdout.as_str()), (2, ""), "{url}: {stderr}");
            assert!(stderr.starts_with(&format!("error: --store: {expected}")), "{url}: {stderr}");
        }
    }
}

#[test]
fn a_store_that_dies_is_said_to_be_away_until_it_is_back() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&format!("{}?budget_ms=20000", redis.url()));
    assert_eq!(server.check(&request("a")).decision()["remaining"], 99);
    redis.kill();
    // The first may be on its way when the connection breaks; then nobody knows, and it says so.
    until("the store is known to be away", || {
        let problem = failure(&server.check(&request("a")));
        if problem["may_have_counted"] == false { Ok(()) } else { Err(problem.to_string()) }
    });
    let response = server.check(&request("a"));
    let problem = failure(&response);
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(false)));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("redis at {}: ", redis.address())), "{detail}");
    assert_eq!(response.header("retry-after"), Some("1"));

    let answers = server.check(&json!([request("a"), request("b")])).decision();
    assert_eq!((&answers[0]["status"], &answers[1]["status"]), (&json!(503), &json!(503)));

    redis.restart();
    let answer = until("it decides again", || {
        let response = server.check(&json!({"policy": "api", "key": "b"}));
        if response.status == 200 { Ok(response.decision()) } else { Err(response.body) }
    });
    // Nothing that was answered with a failure is spent later.
    assert_eq!(answer["remaining"], 99);
}

#[test]
fn a_store_that_says_nothing_is_not_waited_for_and_may_have_counted() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=50", redis.url());
    let server = serve(&store);
    redis.stop_signal();
    // The store says nothing until the end of this test, so every answer is one in spite of it.
    let problem = failure(&server.check(&request("a")));
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(true), &json!(true)));
    assert!(problem["detail"].as_str().unwrap().ends_with(" within 50ms"), "{problem}");
    failure(&server.check(&request("a")));
    redis.continue_signal();
    until("it decides again", || {
        let response = server.check(&request("b"));
        if response.status == 200 { Ok(()) } else { Err(response.body) }
    });
}

#[test]
fn one_key_that_the_store_refuses_does_not_fail_the_batch() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=20000", redis.url());
    let server = serve(&store);
    server.check(&request("b")).decision();
    // Somebody else's value in the place of the record.
    let name = redis.command(&["KEYS", "*"]).array()[0].text();
    redis.command(&["DEL", &name]);
    redis.command(&["LPUSH", &name, "not ours"]);

    let answers = server.check(&json!([request("a"), request("b"), request("c")])).decision();
    assert_eq!((&answers[0]["remaining"], &answers[2]["remaining"]), (&json!(99), &json!(99)));
    let problem = &answers[1];
    assert_eq!((&problem["status"], problem.get("allowed")), (&json!(503), None));
    assert_eq!((&problem["transient"], &problem["may_have_counted"]), (&json!(false), &json!(false)));
    assert!(problem["detail"].as_str().unwrap().contains("WRONGTYPE"), "{problem}");

    let response = server.check(&request("b"));
    assert_eq!(failure(&response)["transient"], false);
    assert_eq!(response.header("retry-after"), None, "it will not pass by itself");
}

#[test]
fn a_policy_falls_back_as_it_asks_and_the_answer_says_so() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=20000", redis.url());
    for (on_failure, share) in [("local", 99), ("open", 100)] {
        let server = serve_with(&store, on_failure);
        assert_eq!(server.check(&request("a")).decision()["source"], "store");
        redis.kill();
        let answer = until("the store is away", || {
            let answer = server.check(&request("b")).decision();
            if answer["source"] == "fallback" { Ok(answer) } else { Err(answer.to_string()) }
        });
        assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(true), &json!(share)), "{answer}");
        let reasons = [json!("unavailable"), json!("resting")];
        assert!(reasons.contains(&answer["reason"]), "{answer}");
        let batch = server.check(&json!([request("b"), request("c")])).decision();
        assert_eq!((&batch[0]["source"], &batch[1]["source"]), (&json!("fallback"), &json!("fallback")));
        redis.restart();
        until("the store decides again", || {
            let answer = server.check(&request("d")).decision();
            if answer["source"] == "store" { Ok(()) } else { Err(answer.to_string()) }
        });
    }
}

#[test]
fn policies_are_switched_by_the_file() {
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
    let ask = |policy: &str, key: &str| server.check(&json!({"policy": policy, "key": key})).decision();
    let twice = |policy: &str, key: &str| [ask(policy, key), ask(policy, key)];

    let [first, second] = twice("shadowed", "k");
    assert_eq!((&first["shadow"]["allowed"], &second["shadow"]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!((&second["allowed"], &second["violated"]), (&json!(true), &json!([])));
    assert!(second["shadow"]["retry_after_ms"].is_u64(), "{second}");

    let [_, second] = twice("off", "k");
    assert_eq!((&second["allowed"], &second["source"]), (&json!(true), &json!("rule")));
    let [_, friend] = twice("listed", "friend");
    assert_eq!((&friend["allowed"], &friend["source"]), (&json!(true), &json!("rule")));
    let foe = ask("listed", "foe");
    assert_eq!(
        (&foe["allowed"], &foe["source"], &foe["never"]),
        (&json!(false), &json!("rule"), &json!(true))
    );
    assert_eq!(twice("listed", "k")[1]["allowed"], false);

    let [first, second] = twice("tried", "k");
    assert_eq!((&first["shadow"]["allowed"], &second["shadow"]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!((&second["allowed"], &second["source"]), (&json!(true), &json!("store")));
}
