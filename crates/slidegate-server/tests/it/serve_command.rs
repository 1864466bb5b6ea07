//! `slidegate serve`: startup output, flags, environment variables and metrics.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::process::{ServeProcess, TempFile, outcome, slidegate};
use crate::shutdown::begin_request;

fn serve_on_free_port() -> Command {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0"]);
    command
}

/// Runs the printed example command in a shell and returns the head and the body of the response.
fn run_example(server: &ServeProcess) -> (String, Value) {
    let (code, stdout, stderr) =
        outcome(Command::new("sh").args(["-c", server.example_command()]).env("NO_PROXY", "*"));
    assert_eq!(code, 0, "{stderr}");
    let (head, body) = stdout.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn without_a_file_it_serves_a_sample_policy_and_prints_an_example() {
    let server = ServeProcess::start(&mut serve_on_free_port());
    assert_eq!(server.startup_lines[1..3], ["store: memory:", "policy api: 100/1m"]);
    assert!(server.example_command().starts_with(&format!("curl -sSi {}/v1/check", server.url())));
    let (head, decision) = run_example(&server);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains(r#"ratelimit-policy: "100/1m";q=100;w=60"#), "{head}");
    assert_eq!((&decision["policy"], &decision["remaining"]), (&"api".into(), &99.into()));
    assert_eq!(run_example(&server).1["remaining"], 98);
}

#[test]
fn the_example_command_quotes_any_policy_name() {
    let file = TempFile::new(
        "quote",
        "policies:\n  \"it's \\\"$HOME\\\" `ls`\":\n    quotas: [5/1h fixed-window]\n",
    );
    let mut command = slidegate();
    command.args(["serve", "--http", "0.0.0.0:0", "--config", file.path()]);
    let server = ServeProcess::start(&mut command);
    assert!(server.url().starts_with("http://0.0.0.0:"));
    let decision = run_example(&server).1;
    assert_eq!((&decision["policy"], &decision["limit"]), (&"it's \"$HOME\" `ls`".into(), &5.into()));
}

#[test]
fn without_policies_the_example_command_has_quotas() {
    let file = TempFile::new("none", "store: memory\n");
    let server = ServeProcess::start(serve_on_free_port().args(["--config", file.path()]));
    assert_eq!(run_example(&server).1["policy"], Value::Null);
}

#[test]
fn sigterm_and_sigint_exit_with_success() {
    for signal in ["TERM", "INT"] {
        let mut server = ServeProcess::start(&mut serve_on_free_port());
        run_example(&server);
        assert_eq!(server.signal_and_wait(signal).code(), Some(0), "{signal}");
    }
}

#[test]
fn a_second_signal_stops_without_draining() {
    let log = TempFile::new("second-signal", "");
    let file = || File::options().append(true).open(log.path()).unwrap().into();
    let read_log = || fs::read_to_string(log.path()).unwrap();
    let mut server = ServeProcess::start_with_log(&mut serve_on_free_port(), file());
    let unfinished_request = begin_request(server.address());
    server.send_signal("TERM");
    // Repeats the signal: a second signal right after the first is taken for the same one, forwarded by a process
    // manager.
    let code = loop {
        server.send_signal("TERM");
        if let Some(status) = server.try_wait() {
            break status.code();
        }
    };
    assert_eq!(code, Some(0), "{}", read_log());
    for expected in [
        "stopping: no new connections are accepted",
        "second signal: stopping without waiting for requests in progress",
    ] {
        assert!(read_log().contains(expected), "{}", read_log());
    }
    drop(unfinished_request);

    let mut server = ServeProcess::start_with_log(&mut serve_on_free_port(), file());
    assert_eq!(server.signal_and_wait("TERM").code(), Some(0));
    assert!(read_log().trim_end().ends_with("stopped"), "{}", read_log());
}

#[test]
fn empty_environment_variables_are_ignored() {
    let mut command = serve_on_free_port();
    for variable in
        ["SLIDEGATE_CONFIG", "SLIDEGATE_STORE", "SLIDEGATE_LOG_FORMAT", "SLIDEGATE_RESP", "RUST_LOG"]
    {
        command.env(variable, "");
    }
    let log = TempFile::new("empty-variables", "");
    let file = File::options().append(true).open(log.path()).unwrap();
    let mut server = ServeProcess::start_with_log(&mut command, file.into());
    run_example(&server);
    server.signal_and_wait("TERM");
    assert!(fs::read_to_string(log.path()).unwrap().contains("stopping: "), "the default log level applies");
    let (code, out, err) =
        outcome(slidegate().args(["check", "a", "--quota", "5/1m"]).env("SLIDEGATE_STORE", ""));
    assert!(code == 0 && out.starts_with("allowed: 4 of 5 left"), "{out}{err}");
    let (code, _, err) = outcome(slidegate().arg("clean").env("SLIDEGATE_STORE", ""));
    assert!(code == 2 && err.contains("--store <URL>"), "{err}");
}

#[test]
fn a_store_url_of_another_protocol_is_diagnosed() {
    let server = ServeProcess::start(&mut serve_on_free_port());
    for (scheme, name) in [("redis", "Redis"), ("postgres", "PostgreSQL")] {
        let store = format!("{scheme}://{}", server.address());
        let (code, _, err) = outcome(slidegate().args(["check", "a", "--quota", "5/1m", "--store", &store]));
        let expected = format!("the server does not speak the {name} protocol; check the port\n");
        assert!(code == 2 && err.ends_with(&expected), "{err}");
    }
}

#[test]
fn envoy_options_need_an_envoy_folder() {
    for (flag, value) in
        [("--envoy-algorithm", "sliding-window"), ("--envoy-headers", "off"), ("--envoy-body", "false")]
    {
        let (code, stdout, stderr) = outcome(serve_on_free_port().args([flag, value]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{flag}");
        let expected =
            format!("error: {flag} needs a folder of limits for Envoy; name it with --envoy-config");
        assert!(stderr.starts_with(&expected), "{stderr}");
    }
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--http", &address]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let expected = format!("error: cannot listen on {address}: ");
    assert!(stderr.starts_with(&expected) && stderr.contains("--http"), "{stderr}");
}

#[test]
fn an_invalid_environment_variable_is_named() {
    let error_of_wrong = |variable: &str, more: &[&str]| {
        let (code, _, stderr) = outcome(serve_on_free_port().args(more).env(variable, "wrong"));
        assert_eq!(code, 2, "{stderr}");
        stderr
    };
    for variable in ["SLIDEGATE_GRPC", "SLIDEGATE_LOG_FORMAT"] {
        assert!(
            error_of_wrong(variable, &[])
                .contains(&format!("the value is from the environment variable {variable}\n"))
        );
    }
    let by_flag = error_of_wrong("SLIDEGATE_GRPC", &["--grpc", "wrong"]);
    assert!(by_flag.contains("--grpc") && !by_flag.contains("SLIDEGATE_GRPC"), "{by_flag}");
    assert!(
        error_of_wrong("SLIDEGATE_STORE", &[])
            .starts_with("error: SLIDEGATE_STORE: not a store; write memory:, ")
    );
    assert!(
        error_of_wrong("SLIDEGATE_STORE", &["--store", "disk"]).starts_with("error: --store: not a store")
    );

    let log = TempFile::new("invalid-filter", "");
    for filter in ["==", "dbug", "dbug,wran"] {
        fs::write(log.path(), "").unwrap();
        let file = File::options().append(true).open(log.path()).unwrap();
        let mut server =
            ServeProcess::start_with_log(serve_on_free_port().env("RUST_LOG", filter), file.into());
        server.signal_and_wait("TERM");
        let logged = fs::read_to_string(log.path()).unwrap();
        assert!(logged.contains("RUST_LOG is invalid"), "{filter}: {logged}");
    }
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = TempFile::new("order", &format!("http: {taken}\npolicies:\n  mine:\n    quotas: [5/1h]\n"));

    let assert_address_in_use = |command: &mut Command| {
        let (code, _, stderr) = outcome(command);
        assert!(code == 2 && stderr.contains(&taken), "{code}: {stderr}");
    };
    assert_address_in_use(slidegate().args(["serve", "--config", file.path()]));
    assert_address_in_use(slidegate().arg("serve").env("SLIDEGATE_HTTP", &taken));

    let by_environment = [("SLIDEGATE_CONFIG", file.path()), ("SLIDEGATE_HTTP", "127.0.0.1:0")];
    let server = ServeProcess::start(slidegate().arg("serve").envs(by_environment));
    assert_eq!(run_example(&server).1["policy"], "mine");
    let server = ServeProcess::start(serve_on_free_port().env("SLIDEGATE_HTTP", &taken));
    assert_eq!(run_example(&server).1["policy"], "api");
}

#[test]
fn an_invalid_store_is_rejected_with_the_valid_forms() {
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--store", "mysql://host/db"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    let expected = "error: --store: not a store; write memory:, redis://HOST:PORT, ";
    assert!(stderr.starts_with(expected), "{stderr}");
}

#[test]
fn an_invalid_file_is_rejected_with_all_its_problems() {
    let file = TempFile::new("serve-bad", "http: here\npolicies:\n  api:\n    quotas: [1/0s]\n");
    let (code, stdout, stderr) = outcome(slidegate().args(["serve", "--config", file.path()]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains(":1: http: ") && stderr.contains(":4: policies.api.quotas[0]: window: "),
        "{stderr}"
    );
}
