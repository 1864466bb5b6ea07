//! Passwords are used and never shown: not in what is printed, logged, answered or refused.

use std::fs::File;

use serde_json::json;
use slidegate_testkit::{Flavour, Server, until};

use crate::process::{Serving, TempFile, outcome, slidegate};

const PASSWORD: &str = "hush-hush";

fn locked() -> Server {
    Server::builder(Flavour::Redis).args(["--requirepass", PASSWORD]).start()
}

#[test]
fn a_running_server_shows_none() {
    let redis = locked();
    let log = TempFile::new("log", "");
    let store = format!("redis://:{PASSWORD}@{}?budget_ms=20000&secret={PASSWORD}", redis.address());
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0"]).env("SLIDEGATE_STORE", &store).env("RUST_LOG", "trace");
    let mut serving = Serving::start_with_log(&mut command, File::create(log.path()).unwrap().into());
    assert_eq!(serving.greeting[1], format!("store: redis://{}", redis.address()));
    let mut shown = serving.greeting.join("\n");
    let body = json!({"policy": "api", "key": "a"});
    serving.check(&body).decision();
    redis.kill();
    until("the store is away", || {
        let reply = serving.check(&body);
        shown.push_str(&reply.body);
        if reply.body.contains("\"fallback\"") { Ok(()) } else { Err(reply.body) }
    });
    // What a failure says of itself is shown to whoever asks for something that does not fall back.
    shown.push_str(&serving.refund(&body).body);
    serving.signal("TERM");
    shown.push_str(&std::fs::read_to_string(log.path()).unwrap());
    assert!(shown.contains("redis is unavailable"), "the log is looked at: {shown}");
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn a_password_that_is_refused_is_not_repeated() {
    let redis = locked();
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
fn neither_mistakes_nor_help_repeat_one() {
    let wrong = [
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
    for url in wrong {
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
