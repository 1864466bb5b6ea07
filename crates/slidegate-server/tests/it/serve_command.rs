//! `slidegate serve`, the real binary.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::process::{ServeProcess, TempFile, outcome, slidegate};
use crate::shutdown::begin_request;

fn on_a_free_port() -> Command {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0"]);
    command
}

/// Runs the line that was printed, as it was printed, and gives the head and the answer.
fn try_it(server: &ServeProcess) -> (String, Value) {
    let (code, stdout, stderr) =
        outcome(Command::new("sh").args(["-c", server.example_command()]).env("NO_PROXY", "*"));
    assert_eq!(code, 0, "{stderr}");
    let (head, body) = stdout.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn without_a_file_it_serves_a_sample_and_says_what_to_try() {
    let server = ServeProcess::start(&mut on_a_free_port());
    assert_eq!(server.startup_lines[1..3], ["store: memory:", "policy api: 100/1m"]);
    assert!(server.example_command().starts_with(&format!("curl -sSi {}/v1/check", server.url())));
    let (head, answer) = try_it(&server);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains(r#"ratelimit-policy: "100/1m";q=100;w=60"#), "{head}");
    assert_eq!((&answer["policy"], &answer["remaining"]), (&"api".into(), &99.into()));
    assert_eq!(try_it(&server).1["remaining"], 98);
}

#[test]
fn the_line_to_try_survives_any_policy_name_and_address() {
    let file = TempFile::new(
        "quote",
        "policies:\n  \"it's \\\"$HOME\\\" `ls`\":\n    quotas: [5/1h fixed-window]\n",
    );
    let mut command = slidegate();
    command.args(["serve", "--http", "0.0.0.0:0", "--config", file.path()]);
    let server = ServeProcess::start(&mut command);
    assert!(server.url().starts_with("http://0.0.0.0:"));
    let answer = try_it(&server).1;
    assert_eq!((&answer["policy"], &answer["limit"]), (&"it's \"$HOME\" `ls`".into(), &5.into()));
}

#[test]
fn without_policies_the_line_to_try_brings_its_quotas() {
    let file = TempFile::new("none", "store: memory\n");
    let server = ServeProcess::start(on_a_free_port().args(["--config", file.path()]));
    assert_eq!(try_it(&server).1["policy"], Value::Null);
}

#[test]
fn sigterm_and_ctrl_c_end_it_with_success() {
    for signal in ["TERM", "INT"] {
        let mut server = ServeProcess::start(&mut on_a_free_port());
        try_it(&server);
        assert_eq!(server.signal_and_wait(signal).code(), Some(0), "{signal}");
    }
}

#[test]
fn whoever_says_twice_that_it_is_to_stop_waits_for_nobody() {
    let log = TempFile::new("hurry", "");
    let file = || File::options().append(true).open(log.path()).unwrap().into();
    let said = || fs::read_to_string(log.path()).unwrap();
    let mut server = ServeProcess::start_with_log(&mut on_a_free_port(), file());
    let unfinished = begin_request(server.address());
    server.send_signal("TERM");
    // A moment later: what comes at once is the same signal, which others have handed on.
    let code = loop {
        server.send_signal("TERM");
        if let Some(status) = server.try_wait() {
            break status.code();
        }
    };
    assert_eq!(code, Some(0), "{}", said());
    for wanted in
        ["told to stop: nobody new is let in", "told to stop once more: what is not over is dropped"]
    {
        assert!(said().contains(wanted), "{}", said());
    }
    drop(unfinished);

    let mut server = ServeProcess::start_with_log(&mut on_a_free_port(), file());
    assert_eq!(server.signal_and_wait("TERM").code(), Some(0));
    assert!(said().trim_end().ends_with("stopped"), "{}", said());
}

#[test]
fn a_variable_that_is_empty_says_nothing() {
    let mut command = on_a_free_port();
    for variable in
        ["SLIDEGATE_CONFIG", "SLIDEGATE_STORE", "SLIDEGATE_LOG_FORMAT", "SLIDEGATE_RESP", "RUST_LOG"]
    {
        command.env(variable, "");
    }
    let log = TempFile::new("unsaid", "");
    let file = File::options().append(true).open(log.path()).unwrap();
    let mut server = ServeProcess::start_with_log(&mut command, file.into());
    try_it(&server);
    server.signal_and_wait("TERM");
    assert!(
        fs::read_to_string(log.path()).unwrap().contains("told to stop"),
        "it logs as if nothing was said"
    );
    let (code, out, err) =
        outcome(slidegate().args(["check", "a", "--quota", "5/1m"]).env("SLIDEGATE_STORE", ""));
    assert!(code == 0 && out.starts_with("allowed: 4 of 5 left"), "{out}{err}");
    let (code, _, err) = outcome(slidegate().arg("clean").env("SLIDEGATE_STORE", ""));
    assert!(code == 2 && err.contains("--store <URL>"), "{err}");
}

#[test]
fn a_store_that_speaks_another_language_is_told_apart() {
    let server = ServeProcess::start(&mut on_a_free_port());
    for (scheme, name) in [("redis", "Redis"), ("postgres", "PostgreSQL")] {
        let store = format!("{scheme}://{}", server.address());
        let (code, _, err) = outcome(slidegate().args(["check", "a", "--quota", "5/1m", "--store", &store]));
        let expected = format!("it does not answer as {name} does; is this the port of one?\n");
        assert!(code == 2 && err.ends_with(&expected), "{err}");
    }
}

#[test]
fn how_to_read_a_folder_that_is_not_named_is_refused() {
    for (flag, value) in
        [("--envoy-algorithm", "sliding-window"), ("--envoy-headers", "off"), ("--envoy-body", "false")]
    {
        let (code, stdout, stderr) = outcome(on_a_free_port().args([flag, value]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{flag}");
        let expected =
            format!("error: {flag}: there is no folder of limits for Envoy; name one with --envoy-config");
        assert!(stderr.starts_with(&expected), "{stderr}");
    }
}

#[test]
fn a_taken_port_is_named_with_the_flag_to_change_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--http", &address]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let expected = format!("error: cannot listen on {address}: ");
    assert!(stderr.starts_with(&expected) && stderr.contains("--http"), "{stderr}");
}

#[test]
fn what_the_environment_says_wrong_is_named_by_its_variable() {
    let wrong = |variable: &str, more: &[&str]| {
        let (code, _, stderr) = outcome(on_a_free_port().args(more).env(variable, "wrong"));
        assert_eq!(code, 2, "{stderr}");
        stderr
    };
    for variable in ["SLIDEGATE_GRPC", "SLIDEGATE_LOG_FORMAT"] {
        assert!(wrong(variable, &[]).contains(&format!("the environment says so, by {variable}\n")));
    }
    let by_flag = wrong("SLIDEGATE_GRPC", &["--grpc", "wrong"]);
    assert!(by_flag.contains("--grpc") && !by_flag.contains("SLIDEGATE_GRPC"), "{by_flag}");
    assert!(
        wrong("SLIDEGATE_STORE", &[]).starts_with("error: SLIDEGATE_STORE: not a store; write memory:, ")
    );
    assert!(wrong("SLIDEGATE_STORE", &["--store", "disk"]).starts_with("error: --store: not a store"));

    let log = TempFile::new("misread", "");
    for misread in ["==", "dbug", "dbug,wran"] {
        fs::write(log.path(), "").unwrap();
        let file = File::options().append(true).open(log.path()).unwrap();
        let mut server = ServeProcess::start_with_log(on_a_free_port().env("RUST_LOG", misread), file.into());
        server.signal_and_wait("TERM");
        let logged = fs::read_to_string(log.path()).unwrap();
        assert!(logged.contains("RUST_LOG is not understood"), "{misread}: {logged}");
    }
}

#[test]
fn flags_go_over_the_environment_and_that_over_the_file() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = TempFile::new("order", &format!("http: {taken}\npolicies:\n  mine:\n    quotas: [5/1h]\n"));

    let refused = |command: &mut Command| {
        let (code, _, stderr) = outcome(command);
        assert!(code == 2 && stderr.contains(&taken), "{code}: {stderr}");
    };
    refused(slidegate().args(["serve", "--config", file.path()]));
    refused(slidegate().arg("serve").env("SLIDEGATE_HTTP", &taken));

    let by_environment = [("SLIDEGATE_CONFIG", file.path()), ("SLIDEGATE_HTTP", "127.0.0.1:0")];
    let server = ServeProcess::start(slidegate().arg("serve").envs(by_environment));
    assert_eq!(try_it(&server).1["policy"], "mine");
    let server = ServeProcess::start(on_a_free_port().env("SLIDEGATE_HTTP", &taken));
    assert_eq!(try_it(&server).1["policy"], "api");
}

#[test]
fn what_is_no_store_is_refused_with_what_is() {
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--store", "mysql://host/db"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let expected = "error: --store: not a store; write memory:, redis://HOST:PORT, ";
    assert!(stderr.starts_with(expected), "{stderr}");
}

#[test]
fn a_bad_file_is_refused_with_all_its_problems() {
    let file = TempFile::new("serve-bad", "http: here\npolicies:\n  api:\n    quotas: [1/0s]\n");
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--config", file.path()]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains(":1: http: ") && stderr.contains(":4: policies.api.quotas[0]: window: "),
        "{stderr}"
    );
}
