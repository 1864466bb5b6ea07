//! Reload of the configuration: by signal and by polling the file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::process::{ServeProcess, TempFile, slidegate};

fn file(quota: &str, more: &str) -> String {
    format!("policies:\n  api:\n    quotas: [\"{quota}\"]\n{more}")
}

fn serve(path: &str) -> Command {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", path]);
    command
}

fn check(server: &ServeProcess, key: &str) -> Value {
    server.check(&json!({"policy": "api", "key": key})).json()
}

/// Replaces the file atomically.
fn replace(path: &str, text: &str) {
    let next = PathBuf::from(format!("{path}.next"));
    fs::write(&next, text).unwrap();
    fs::rename(next, path).unwrap();
}

/// Checks until the decision is as wanted. The server polls the file.
fn until(server: &ServeProcess, key: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let decision = check(server, key);
        if is_wanted(&decision) {
            return decision;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_reload_by_signal_switches_modes_and_keeps_counts() {
    let config = TempFile::new("switched", &file("1/1h", ""));
    let server = ServeProcess::start(&mut serve(config.path()));
    assert_eq!(check(&server, "a")["allowed"], true);
    assert_eq!(check(&server, "a")["allowed"], false);
    replace(config.path(), &file("1/1h", "    mode: shadow\n    deny: [b]\n    allow: [c]\n"));
    server.send_signal("HUP");
    let decision = until(&server, "a", |decision| decision["allowed"] == true);
    assert_eq!(decision["shadow"]["allowed"], false);
    assert_eq!(check(&server, "c")["source"], "rule");

    replace(config.path(), &file("1/1h", ""));
    server.send_signal("HUP");
    until(&server, "a", |decision| decision["allowed"] == false);
    assert_eq!(check(&server, "c")["source"], "store", "a removed list has no effect");
}

#[test]
fn a_changed_file_is_reloaded() {
    let config = TempFile::new("changed", &file("1/1h", ""));
    let server = ServeProcess::start(&mut serve(config.path()));
    assert_eq!(check(&server, "a")["limit"], 1);
    replace(config.path(), &file("3/1h", ""));
    let decision = until(&server, "a", |decision| decision["limit"] == 3);
    assert_eq!(
        (&decision["allowed"], &decision["remaining"]),
        (&json!(true), &json!(1)),
        "the check before the reload counts"
    );
}

/// Kubernetes mounts a `ConfigMap` as a link into a folder that is itself a link, and swaps that link.
#[test]
fn a_swapped_symlink_is_followed() {
    let folder = TempFile::new("folder", "");
    fs::remove_file(folder.path()).unwrap();
    let root = Path::new(folder.path());
    for (version, quota) in [("v1", "1/1h"), ("v2", "2/1h")] {
        fs::create_dir_all(root.join(version)).unwrap();
        fs::write(root.join(version).join("slidegate.yaml"), file(quota, "")).unwrap();
    }
    symlink("v1", root.join("data")).unwrap();
    symlink("data/slidegate.yaml", root.join("slidegate.yaml")).unwrap();
    let server = ServeProcess::start(&mut serve(root.join("slidegate.yaml").to_str().unwrap()));
    assert_eq!(check(&server, "a")["limit"], 1);
    symlink("v2", root.join("next")).unwrap();
    fs::rename(root.join("next"), root.join("data")).unwrap();
    until(&server, "a", |decision| decision["limit"] == 2);
    drop(server);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn an_invalid_file_changes_nothing_and_is_logged() {
    let config = TempFile::new("invalid", &file("2/1h", ""));
    let log = TempFile::new("log", "");
    let server = ServeProcess::start_with_log(
        &mut serve(config.path()),
        Stdio::from(File::create(log.path()).unwrap()),
    );
    replace(config.path(), &file("281474976710657/1h", "    mode: maybe\n"));
    server.send_signal("HUP");
    let is_logged = |text: &str| {
        let lines = BufReader::new(File::open(log.path()).unwrap()).lines();
        lines.map_while(Result::ok).any(|line| line.contains(text))
    };
    while !is_logged("policies.api.mode: \"maybe\" is not one of enforce, shadow, off") {
        std::thread::yield_now();
    }
    assert!(
        is_logged("policies.api.quotas[0]: limit: 281474976710657 is not between")
            && is_logged("stays in force")
    );
    assert_eq!(check(&server, "a")["limit"], 2);

    for (text, error) in [
        ("", "policies: the file has no policies, but the running configuration has; is the file complete?"),
        (
            &*format!("{}  login: {{quotas: [1/1m], on_failure: closed}}\n", file("2/1h", "")),
            "policies: \"login\" is new and has its own rules for store failures; restart the service to use it",
        ),
    ] {
        replace(config.path(), text);
        while !is_logged(error) {
            std::thread::yield_now();
        }
        assert_eq!(check(&server, "a")["limit"], 2);
    }

    let fixed = "http: 127.0.0.1:1\ngrpc: off\nresp: 127.0.0.1:1\nadmin: off\ntokens: [{name: a, token: 0123456789abcdef}]\n";
    replace(config.path(), &format!("{fixed}{}", file("4/1h", "    budget: 5ms\n")));
    until(&server, "a", |decision| decision["limit"] == 4);
    while !is_logged(
        "a restart is required to change: http; grpc; resp; admin; tokens (whether there are any); on_failure, budget",
    ) {
        std::thread::yield_now();
    }
}

#[test]
fn no_request_fails_during_reloads() {
    let config = TempFile::new("busy", &file("1000000/1h", ""));
    let server = ServeProcess::start(&mut serve(config.path()));
    let is_finished = AtomicBool::new(false);
    let check_count = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut count = 0;
                    while !is_finished.load(Ordering::Relaxed) {
                        assert_eq!(check(&server, "a")["allowed"], true);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for limit in 1_000_001..1_000_005 {
            replace(config.path(), &file(&format!("{limit}/1h"), ""));
            server.send_signal("HUP");
            until(&server, "b", |decision| decision["limit"] == limit);
        }
        is_finished.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum::<u64>()
    });
    assert_eq!(check(&server, "a")["remaining"], 1_000_004 - check_count - 1, "every check was counted once");
}

#[test]
fn renamed_policies_do_not_grow_metric_series_without_bound() {
    let policies = |name: &str| {
        let lines: Vec<String> = (0..400).map(|n| format!("  {name}{n}: {{quotas: [9/1h]}}\n")).collect();
        format!("policies:\n{}", lines.concat())
    };
    let config = TempFile::new("renamed", &policies("a"));
    let server = ServeProcess::start(&mut serve(config.path()));
    replace(config.path(), &policies("b"));
    server.send_signal("HUP");
    slidegate_testkit::until("the new policies apply", || {
        let status = server.check(&json!({"policy": "b399", "key": "k"})).status;
        if status == 200 { Ok(()) } else { Err(status.to_string()) }
    });
    let metrics = server.get("/metrics").body;
    let series = metrics.lines().filter(|line| line.starts_with("slidegate_decisions_total{"));
    let names = series.map(|line| line.split('"').nth(1).unwrap()).collect::<std::collections::BTreeSet<_>>();
    // 500 policies have their own series, and all others share one.
    assert_eq!((names.len(), names.contains("(others)")), (501, true));
}

#[test]
fn a_constantly_changing_file_is_reloaded_with_a_warning() {
    let config = TempFile::new("changing", &file("1/1h", ""));
    let log = TempFile::new("changing-log", "");
    let server = ServeProcess::start_with_log(
        &mut serve(config.path()),
        Stdio::from(File::create(log.path()).unwrap()),
    );
    slidegate_testkit::until("the file is read", || {
        (0..100).for_each(|_| replace(config.path(), &file("5/1h", "")));
        let logged = fs::read_to_string(log.path()).unwrap();
        let warning = logged.find("although it keeps changing").ok_or("no warning")?;
        logged[warning..].find("reloaded the configuration").map(drop).ok_or(logged)
    });
    assert_eq!(check(&server, "a")["limit"], 5);
}
