//! Envoy's rate limit service over gRPC, tested with grpcio and hand-written messages, which share no code with the
//! server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use slidegate_testkit::Authority;

use crate::harness::read_last_response;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};
use crate::rls::LIMITS;

fn client(mode: &str, server: &ServeProcess) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools: PathBuf = here.join("../../target/tools/grpc");
    assert!(tools.is_dir(), "`make deps` installs grpcio into {}", tools.display());
    let mut command = Command::new("python3");
    command.arg(here.join("tests/grpc/rls.py")).args([mode, server.grpc_address()]);
    command.env("PYTHONPATH", tools).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn serve(limits: &TempFile, more: &[&str]) -> ServeProcess {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config", limits.path()]).args(more);
    ServeProcess::start(&mut command)
}

/// A curl command that sends its standard input as a gRPC request and prints the head of the response.
fn curl(server: &ServeProcess, more: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["-s", "-D", "-", "-o", "/dev/null", "--http2-prior-knowledge", "-X", "POST"])
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .args(more)
        .arg(format!(
            "http://{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            server.grpc_address()
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

#[test]
fn an_independent_client_decodes_every_field_health_and_reflection() {
    let limits = TempFile::new("wire", LIMITS);
    let server = serve(&limits, &[]);
    let (code, out, err) = outcome(&mut client("wire", &server));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn malformed_messages_get_a_response_or_an_error() {
    let limits = TempFile::new("fuzzed", LIMITS);
    let server = serve(&limits, &[]);
    let (code, out, err) = outcome(&mut client("fuzz", &server));
    assert_eq!(code, 0, "{out}{err}");
    // Frames that no client library sends: compressed, shorter than their length, longer than allowed, empty, cut off.
    let frames: [&[u8]; 5] = [b"\x01\0\0\0\x01a", b"\0\0\0\0\x10short", b"\0\xff\xff\xff\xff", b"", b"\x07"];
    for frame in frames {
        let mut curl = curl(&server, &["--data-binary", "@-"]).spawn().unwrap();
        curl.stdin.take().unwrap().write_all(frame).unwrap();
        let response = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
        assert!(response.starts_with("HTTP/2 200") && !response.contains("grpc-status: 0"), "{response}");
    }
    for reason in ["malformed", "too-large"] {
        let counted = format!("slidegate_refusals_total{{reason=\"{reason}\"}} ");
        let metrics = server.get("/metrics").body;
        assert!(metrics.lines().any(|line| line.starts_with(&counted) && !line.ends_with(" 0")), "{metrics}");
    }
    let (_, output, _) = outcome(&mut client("check", &server));
    assert!(["1\n", "2\n"].contains(&output.as_str()), "{output}");
}

#[test]
fn an_incomplete_body_times_out() {
    let limits = TempFile::new("slow", LIMITS);
    let config = TempFile::new("slow-config", "limits: {body_timeout: 100ms}\n");
    let server = serve(&limits, &["--config", config.path()]);
    let mut stream = TcpStream::connect(server.grpc_address()).unwrap();
    let head = "POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\nhost: test\r\n\
                content-type: application/grpc\r\ncontent-length: 9\r\nconnection: close\r\n\r\n\0";
    stream.write_all(head.as_bytes()).unwrap();
    let response = read_last_response(&mut stream);
    assert_eq!(response.header("grpc-status"), Some("4"), "{response:?}");
}

#[test]
fn endless_reflection_streams_are_ended() {
    let limits = TempFile::new("held", LIMITS);
    let config = TempFile::new("held-config", "limits: {body_timeout: 300ms}\n");
    let server = serve(&limits, &["--config", config.path()]);
    let (code, out, err) = outcome(&mut client("hold", &server));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn a_health_watch_sees_the_shutdown_and_does_not_delay_it() {
    let limits = TempFile::new("drained", LIMITS);
    let mut server = serve(&limits, &[]);
    let mut watching = client("drain", &server).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("SERVING"));
    assert!(server.signal_and_wait("TERM").success());
    assert_eq!(lines.next().as_deref(), Some("NOT_SERVING"));
    watching.wait().unwrap();
}

#[test]
fn an_unavailable_store_is_unavailable_if_policies_fail_closed() {
    let limits = TempFile::new("closed", LIMITS);
    let config = TempFile::new("closed-config", "degrade: {on_failure: closed}\n");
    let server = serve(&limits, &["--config", config.path(), "--store", "redis://127.0.0.1:1"]);
    assert_eq!(outcome(&mut client("check", &server)), (0, "UNAVAILABLE\n".to_owned(), String::new()));
    let degraded = serve(&limits, &["--store", "redis://127.0.0.1:1"]);
    assert_eq!(outcome(&mut client("check", &degraded)), (0, "1\n".to_owned(), String::new()));
}

#[test]
fn with_a_certificate_grpc_accepts_only_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let tls = serde_json::json!({"cert": file("server.crt"), "key": file("server.key")});
    let (limits, config) =
        (TempFile::new("tls", LIMITS), TempFile::new("tls-config", &format!("tls: {tls}\n")));
    let server = serve(&limits, &["--config", config.path()]);
    let (code, out, err) = outcome(client("wire", &server).arg(authority.ca_path()));
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(outcome(&mut client("check", &server)).1, "UNAVAILABLE\n");
}

#[test]
fn with_limits_for_envoy_a_port_in_use_is_an_error() {
    // Ignores an error: another process may have the port already.
    let _taken = TcpListener::bind("127.0.0.1:8081");
    let limits = TempFile::new("taken", LIMITS);
    let config = TempFile::new("taken-config", &format!("envoy: {{config: {:?}}}\n", deploy_limits()));
    for (option, value) in [("--envoy-config", limits.path()), ("--config", config.path())] {
        let mut command = slidegate();
        command.args(["serve", "--http", "127.0.0.1:0", option, value]).env_remove("SLIDEGATE_GRPC");
        let mut started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let startup_lines = BufReader::new(started.stdout.take().unwrap()).lines().next();
        // Ends a server that has started in spite of the port.
        let _ = started.kill();
        assert!(startup_lines.is_none(), "{startup_lines:?}");
        let ended = started.wait_with_output().unwrap();
        let output = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{output}");
        assert!(
            output.contains("cannot listen on 127.0.0.1:8081: ") && output.contains("--grpc"),
            "{output}"
        );
    }
}

fn deploy_limits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy/limits")
}

#[test]
fn grpc_can_be_turned_off() {
    let server = ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--grpc", "off"]));
    assert!(!server.startup_lines.iter().any(|line| line.starts_with("grpc: ")));
    drop(server);
    // gRPC off together with limits for Envoy may be a mistake, so it is logged.
    let (limits, log) = (TempFile::new("off", LIMITS), TempFile::new("off-log", ""));
    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--envoy-config", limits.path()]);
    drop(ServeProcess::start_with_log(&mut serve, fs::File::create(log.path()).unwrap().into()));
    let output = fs::read_to_string(log.path()).unwrap();
    assert!(output.contains("gRPC is off, so Envoy cannot use its limits"), "{output}");
}
