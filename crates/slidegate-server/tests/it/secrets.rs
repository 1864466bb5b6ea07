//! Passwords never appear in output, logs, responses or error messages.

use std::fs::File;

use serde_json::json;
use slidegate_testkit::{Flavour, Server, until};

use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const PASSWORD: &str = "hush-hush";

fn redis_with_password() -> Server {
    Server::builder(Flavour::Redis).args(["--requirepass", PASSWORD]).start()
}

#[test]
fn a_running_server_never_shows_a_password() {
    let redis = redis_with_password();
    let log = TempFile::new("log", "");
    let store = format!("redis://:{PASSWORD}@{}?budget_ms=20000&secret={PASSWORD}", redis.address());
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0"]).env("SLIDEGATE_STORE", &store).env("RUST_LOG", "trace");
    let mut server = ServeProcess::start_with_log(&mut command, File::create(log.path()).unwrap().into());
    assert_eq!(server.startup_lines[1], format!("store: redis://{}", redis.address()));
    let mut shown = server.startup_lines.join("\n");
    let body = json!({"policy": "api", "key": "a"});
    server.check(&body).decision();
    redis.kill();
    until("the store is unavailable", || {
        let response = server.check(&body);
        shown.push_str(&response.body);
        if response.body.contains("\"fallback\"") { Ok(()) } else { Err(response.body) }
    });
    // A refund has no fallback, so its response quotes the failure of the store.
    shown.push_str(&server.refund(&body).body);
    server.signal_and_wait("TERM");
    shown.push_str(&std::fs::read_to_string(log.path()).unwrap());
    assert!(shown.contains("redis is away"), "the outage is logged: {shown}");
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn a_rejected_password_is_not_quoted() {
    let redis = redis_with_password();
    let address = redis.address();
    for (store, reason) in [
        (format!("redis://:hush-no@{address}"), "password"),
        (format!("redis://hush-user:{PASSWORD}@{address}"), "password"),
        (format!("redis://{address}"), "NOAUTH"),
    ] {
        let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--store", &store]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        let expected = format!("error: cannot connect to the store redis://{address}: ");
        assert!(stderr.contains(&expected) && stderr.contains(reason), "{stderr}");
        assert!(!stderr.contains("hush"), "{stderr}");
    }
}

#[test]
fn errors_and_help_do_not_quote_a_password() {
    let invalid = [
        "redis://me:hush@host/x",
        "redis://me:hush@host:x",
        "redis://me:hush/hush@host",
        "redis://me:hush?hush@host",
        "redis://:hush@host?budget_ms=0",
        "redis+ring://:hush@host",
        "redis:hush@host",
        "http://:hush@host",
        "postgres://me:hush@host:x",
        "postgres://me:hush/hush@host",
        "postgres://me:hush?hush@host",
        "postgres://:hush@host?budget_ms=0",
    ];
    for url in invalid {
        let file = TempFile::new("secret", &format!("store: {url:?}\n"));
        let outcomes = [
            outcome(slidegate().args(["serve", "--store", url])),
            outcome(slidegate().arg("serve").env("SLIDEGATE_STORE", url)),
            outcome(slidegate().args(["check", "a", "--quota", "1/s", "--store", url])),
            outcome(slidegate().args(["validate", file.path()])),
        ];
        for (code, stdout, stderr) in outcomes {
            assert_eq!((code, stdout.as_str()), (2, ""), "{url}");
            assert!(!stderr.contains("hush"), "{url}: {stderr}");
        }
    }
    let (code, stdout, _) =
        outcome(slidegate().args(["serve", "--help"]).env("SLIDEGATE_STORE", "redis://:hush@host"));
    assert!(code == 0 && stdout.contains("SLIDEGATE_STORE") && !stdout.contains("hush"), "{stdout}");
}
