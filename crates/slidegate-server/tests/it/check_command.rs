//! `slidegate check`, its sibling commands and `slidegate validate`: exit codes and output of the real binary.

use serde_json::Value;

use crate::harness::Server;
use crate::process::{TempFile, outcome, slidegate};

fn check(arguments: &[&str]) -> (i32, String, String) {
    outcome(slidegate().arg("check").args(arguments))
}

#[test]
fn exit_codes_are_0_for_allowed_and_1_for_denied() {
    let (code, stdout, _) = check(&["user:1", "--quota", "100/1m", "--cost", "3"]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with("allowed: 97 of 100 left, full again in "), "{stdout}");
    // The store starts empty, so only a cost above the limit is denied.
    let (code, stdout, _) = check(&["user:1", "--quota", "100/1m", "--quota", "2/1h", "--cost", "3"]);
    assert_eq!((code, stdout.as_str()), (1, "denied by 2/1h: never, because the cost exceeds the limit\n"));
}

#[test]
fn the_json_flag_prints_the_response_body() {
    let (code, stdout, _) = check(&["a", "--quota", "5/1m token-bucket", "--cost", "0", "--json"]);
    assert_eq!(code, 0);
    assert_eq!(
        stdout,
        r#"{"allowed":true,"policy":null,"limit":5,"remaining":5,"reset_after_ms":0,"retry_after_ms":null,"violated":[],"source":"store","quotas":[{"name":"5/1m","limit":5,"window_ms":60000,"used":0,"remaining":5,"reset_after_ms":0,"retry_after_ms":null}]}"#
            .to_owned()
            + "\n"
    );
}

#[test]
fn the_exit_code_of_an_error_is_2() {
    let table: [(&[&str], &str); 15] = [
        (&["a", "--quota", "1/s", "--tier", "gold"], "cannot be used with"),
        (&["a", "--quota", "1/s", "--config", "slidegate.yaml"], "cannot be used with"),
        (&[], "required"),
        (&["a"], "<--quota <QUOTA>|--policy <NAME>>"),
        (&["a", "--quota", "281474976710657/1m"], "limit: 281474976710657 is not between 0 and 2^48"),
        (&["a", "--quota", "1/s", "--quota", "1/1s"], "two quotas are called"),
        (&["a", "--quota", "1/s", "--cost", "-1"], "not a whole number between 0 and 281474976710656"),
        (&["a", "--quota", "1/s", "--cost", "281474976710657"], "between 0 and 281474976710656"),
        (&["", "--quota", "1/s"], "key: 0 bytes; 1 to 4096 bytes are allowed"),
        (&["a", "--quota", "1/s", "--store", "postgres://x?sync=so"], "--store: sync: "),
        (&["a", "--quota", "1/s", "--store", "memory:", "--server", "http://a"], "cannot be used with"),
        (&["a", "--policy", "api"], "--policy needs --server URL or --config FILE"),
        (&["a", "--quota", "1/s", "--server", "ftp://127.0.0.1"], "write http://HOST:PORT or https://"),
        (&["a", "--quota", "1/s", "--server", "127.0.0.1:80"], "write http://HOST:PORT"),
        (
            &["a", "--quota", "1/s", "--policy", "api", "--server", "http://127.0.0.1:1"],
            "cannot be used with",
        ),
    ];
    for (arguments, expected) in table {
        let (code, stdout, stderr) = check(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_server_keeps_the_counts_between_calls() {
    let server = Server::start();
    let url = format!("http://{}/", server.address);
    let arguments = ["a", "--server", &url, "--quota", "2/1m", "--quota", "9/1h strict-window"];
    let first = check(&arguments);
    assert_eq!(first, (0, "allowed: 1 of 2 left, full again in 120 s\n".to_owned(), String::new()));
    assert_eq!(check(&arguments).0, 0);
    server.clock.advance(1);
    let third = check(&arguments);
    assert_eq!(third, (1, "denied by 2/1m: retry in 89.999 s\n".to_owned(), String::new()));

    let (code, stdout, _) = check(&["a", "--server", &url, "--policy", "api", "--cost", "7", "--json"]);
    let decision: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &decision["policy"], &decision["remaining"]), (0, &"api".into(), &93.into()));
}

#[test]
fn an_error_of_the_server_exits_with_2_and_its_reason() {
    let server = Server::start();
    let url = format!("http://{}", server.address);
    let (code, _, stderr) = check(&["a", "--server", &url, "--policy", "nope"]);
    let expected = format!(
        "error: {url} returned 404 Not Found: policy: there is no policy \"nope\"; known: \"api\", \"login\"\n"
    );
    assert_eq!((code, stderr), (2, expected));
    let (code, _, stderr) = check(&["a", "--server", &format!("{url}/elsewhere"), "--quota", "1/s"]);
    assert!(code == 2 && stderr.contains("404 Not Found: unknown path"), "{stderr}");
    // No process listens on port 1.
    let (code, _, stderr) = check(&["a", "--server", "http://127.0.0.1:1", "--quota", "1/s"]);
    assert!(code == 2 && stderr.starts_with("error: request to http://127.0.0.1:1 failed: "), "{stderr}");
    // The URL of the HTTP listener in place of the admin API's.
    let (code, _, stderr) = outcome(slidegate().args(["top", "--once", "--admin", &url]));
    assert!(code == 2 && stderr.contains("; is this the URL of the admin API?"), "{stderr}");
    let tls = url.replace("http", "https");
    let (code, _, stderr) = check(&["a", "--server", &tls, "--quota", "1/s"]);
    assert!(
        code == 2 && stderr.contains("; is this the port for HTTP? If the server has no TLS, write http://"),
        "{stderr}"
    );
}

#[test]
fn validate_lists_every_problem_of_every_file() {
    let good = TempFile::new("good", "policies:\n  b: {quotas: [1/s]}\n  a: {quotas: [1/s]}\n");
    let bad = TempFile::new("bad", "http: x\npolicies:\n  a: {quotas: [281474976710657/s]}\n");
    let (good, bad) = (good.path(), bad.path());
    let validate = |files: &[&str]| outcome(slidegate().arg("validate").args(files));
    assert_eq!(validate(&[good]), (0, format!("{good}: valid; policies: a, b\n"), String::new()));
    let (code, _, stderr) = validate(&[bad, good, "/nonexistent.yaml"]);
    let expected = format!(
        "{bad}:1: http: \"x\" is not an address: write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080\n\
         {bad}:3: policies.a.quotas[0]: limit: 281474976710657 is not between 0 and 2^48 (281474976710656)\n\
         /nonexistent.yaml: file: cannot be read: No such file or directory (os error 2)\n"
    );
    assert_eq!((code, stderr), (2, expected));
    assert_eq!(validate(&[]).0, 2);

    let piped = |text: &str| {
        let mut validate = slidegate();
        let file = TempFile::new("piped", text);
        validate.args(["validate", "-"]).stdin(std::fs::File::open(file.path()).unwrap());
        outcome(&mut validate)
    };
    assert_eq!(
        piped("policies: {a: {quotas: [1/s]}}\n"),
        (0, "-: valid; policies: a\n".to_owned(), String::new())
    );
    let (code, _, stderr) = piped("\nstore: redis\n");
    assert!(code == 2 && stderr.starts_with("-:2: store: not a store; write memory:, redis://"), "{stderr}");
}

/// Runs each command once through a server and once on its store.
#[test]
fn check_peek_refund_and_reset_work_on_a_server_and_on_its_store() {
    let redis = slidegate_testkit::Server::start(slidegate_testkit::Flavour::Redis);
    let config =
        TempFile::new("verbs", "policies:\n  api: {quotas: [5/1h], tiers: {gold: {quotas: [50/1h]}}}\n");
    let store = redis.url();
    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--store", &store, "--config", config.path()]);
    let server = crate::process::ServeProcess::start(&mut serve);
    let server_args = ["--server", server.url()];
    let store_args = ["--store", &store, "--config", config.path()];
    for (verb, target, more, expected) in [
        ("check", &server_args[..], &["--cost", "4"][..], "allowed: 1 of 5 left, full again in "),
        ("peek", &store_args[..], &["--cost", "2"], "denied by 5/1h: retry in "),
        ("peek", &server_args, &[], "allowed: 1 of 5 left"),
        ("refund", &store_args, &["--cost", "3"], "refunded: 4 of 5 left\n"),
        ("refund", &server_args, &["--cost", "100"], "refunded: 5 of 5 left\n"),
        ("check", &store_args, &["--tier", "gold", "--cost", "7"], "allowed: 43 of 50 left"),
        ("check", &server_args, &["--tier", "gold", "--cost", "44"], "denied by 50/1h: retry in "),
        ("reset", &server_args, &[], "reset: 5 of 5 left\n"),
        ("peek", &store_args, &["--tier", "gold"], "allowed: 50 of 50 left"),
    ] {
        let (code, stdout, stderr) =
            outcome(slidegate().args([verb, "user:1", "--policy", "api"]).args(target).args(more));
        assert!(stdout.starts_with(expected), "{verb} {more:?}: {stdout}{stderr}");
        assert_eq!(code, i32::from(stdout.starts_with("denied")), "{verb} {more:?}");
    }
    let (code, _, stderr) = outcome(slidegate().args(["reset", "a", "--policy", "no"]).args(store_args));
    assert_eq!(code, 2);
    assert!(stderr.contains("there is no policy \"no\"; known: \"api\""), "{stderr}");
    // Counts in memory belong to one process, so another process cannot change them.
    for verb in ["refund", "reset"] {
        let (code, out, stderr) = outcome(slidegate().args([verb, "a", "--quota", "5/1m"]));
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(stderr.contains("counts in memory belong to one process"), "{stderr}");
    }
}

/// Lists and modes of policies apply to the command line as they do to the service.
#[test]
fn policies_of_a_file_apply_to_the_command_line_and_to_the_service() {
    let config = TempFile::new(
        "switched",
        "policies:\n  lists: {quotas: [5/1h], deny: [bad], allow: [good]}\n  off: {quotas: [1/1h], mode: off}\n  shadowed: {quotas: \
         [1/1h], mode: shadow}\n",
    );
    let mut serve = slidegate();
    let server = crate::process::ServeProcess::start(serve.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--config",
        config.path(),
    ]));
    for (key, policy, cost, code, expected) in [
        ("bad", "lists", "1", 1, "denied by a rule\n"),
        ("good", "lists", "1", 0, "allowed: 5 of 5 left, full again in 0 s (by a rule, not counted)\n"),
        ("a", "off", "9", 0, "allowed: 1 of 1 left, full again in 0 s (by a rule, not counted)\n"),
        ("a", "shadowed", "9", 0, "allowed: the denial is not enforced (1 of 1 left)\n"),
    ] {
        for target in [["--config", config.path()], ["--server", server.url()]] {
            let (exit_code, stdout, stderr) =
                check(&[&[key, "--policy", policy, "--cost", cost][..], &target].concat());
            assert_eq!((exit_code, stdout.as_str()), (code, expected), "{target:?}: {stderr}");
        }
    }
}
