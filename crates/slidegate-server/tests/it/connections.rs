//! Connections: timeouts, limits of size and number, TLS and client certificates.

mod body_budget;
mod certificates;
mod http2;
mod http2_client;
mod response_budget;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use slidegate::ManualClock;
use slidegate::store::MemoryStore;
use slidegate_config::Limits;
use slidegate_server::ListenerSettings;
use slidegate_testkit::Authority;

use crate::harness::{START_MS, Server, read_last_response};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const BODY: &str = r#"{"policy": "api", "key": "a"}"#;
/// Timeout that is short enough for a test and long enough for a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

fn with_limits(limits: Limits) -> Server {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    Server::with_options(ListenerSettings { limits, ..ListenerSettings::default() }, store, clock)
}

#[test]
fn an_incomplete_head_times_out() {
    let server = with_limits(Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() });
    for sent in ["", "P", "PRI * HTTP/2.0\r\n\r\n", "POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: "] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut response = Vec::new();
        // Blocks forever if the server does not close the connection.
        let _ = stream.read_to_end(&mut response);
        let response = String::from_utf8_lossy(&response);
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "after {sent:?}: {response}");
    }
}

/// Opens a connection and completes one request on it.
fn connection_after_one_request(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"]}") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&piece[..length]);
    }
    stream
}

#[test]
fn an_idle_connection_times_out() {
    let server = with_limits(Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() });
    // Blocks forever if the server does not close the connection.
    let _ = connection_after_one_request(&server).read_to_end(&mut Vec::new());
}

/// Sends one byte at a time for as long as the connection is open.
#[test]
fn an_endless_head_times_out_although_bytes_keep_arriving() {
    let server = with_limits(Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() });
    for mut stream in [connection_after_one_request(&server), TcpStream::connect(server.address).unwrap()] {
        stream.write_all(b"POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: ").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let is_open = |stream: &mut TcpStream| {
            let is_written = stream.write_all(b"a").is_ok();
            let read = stream.read(&mut [0; 1]);
            is_written && read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        assert!((0..3000).any(|_| !is_open(&mut stream)), "the connection is still open");
    }
}

/// Sends requests and never reads, so that the responses fill all buffers.
#[test]
fn a_client_that_never_reads_responses_is_disconnected() {
    let server = with_limits(Limits { head_timeout: SHORT_TIMEOUT, ..Limits::default() });
    let mut stream = TcpStream::connect(server.address).unwrap();
    let body = format!("[{}]", vec![r#"{"policy": "login", "key": "a"}"#; 1000].join(","));
    let request =
        format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut rest = request.as_bytes();
    let mut is_open = || match stream.write(rest) {
        Ok(length) => {
            rest = &rest[length..];
            if rest.is_empty() {
                rest = request.as_bytes();
            }
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    };
    assert!((0..3000).any(|_| !is_open()), "the connection is still open");
}

#[test]
fn an_incomplete_body_is_rejected_with_408() {
    let server = with_limits(Limits { body_timeout: SHORT_TIMEOUT, ..Limits::default() });
    for body in ["", "{\"pol"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 29\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let response = read_last_response(&mut stream);
        assert_eq!(response.status, 408, "{response:?}");
        assert_eq!(response.json()["detail"], "the body was not complete within 200ms");
    }
    assert_eq!(server.check(BODY).decision()["remaining"], 99, "nothing was charged");
}

/// A proxy must receive the error although it is still sending. If the connection were reset, a proxy that fails open
/// would let the request through.
#[test]
fn a_too_large_request_gets_an_error_response_before_the_close() {
    let server = with_limits(Limits::default());
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "a".repeat(500_000));
    let body = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 500000\r\n\r\n{}",
        " ".repeat(500_000)
    );
    // The body is rejected by its announced length: the server neither waits for it nor sends 100 Continue.
    let announcing_length = |lines: &str| {
        format!("POST /v1/check HTTP/1.1\r\nhost: a\r\n{lines}content-length: 99999999999\r\n\r\n")
    };
    let expecting_continue = announcing_length("expect: 100-continue\r\n");
    for (sent, status) in
        [(head, "431"), (body, "413"), (announcing_length(""), "413"), (expecting_continue, "413")]
    {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    }
    assert_eq!(server.check(BODY).decision()["allowed"], true);
}

#[test]
fn connections_above_the_limit_are_closed_until_one_ends() {
    let server = with_limits(Limits { connections: 2, ..Limits::default() });
    let is_served = |stream: &mut TcpStream| {
        let head =
            format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
        let mut first = [0; 12];
        let exchanged = stream.write_all(head.as_bytes()).and_then(|()| stream.read_exact(&mut first));
        exchanged.is_ok_and(|()| &first == b"HTTP/1.1 200")
    };
    let mut open_connections: Vec<_> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert!(open_connections.iter_mut().all(is_served));
    assert!(!is_served(&mut TcpStream::connect(server.address).unwrap()));
    drop(open_connections.pop());
    // The server may take a moment to see the closed connection.
    while !is_served(&mut TcpStream::connect(server.address).unwrap()) {}
}

#[test]
fn http_2_with_prior_knowledge_works() {
    let server = with_limits(Limits::default());
    let url = format!("http://{}/v1/check", server.address);
    let mut curl = Command::new("curl");
    curl.args(["-s", "--http2-prior-knowledge", "-w", " %{http_version}", "-d", BODY, &url]);
    let (code, out, err) = outcome(&mut curl);
    assert_eq!(code, 0, "{err}");
    assert!(out.ends_with(" 2") && out.contains(r#""remaining":99"#), "{out}");
}

/// A server over TLS with a test authority.
struct TlsServer {
    process: ServeProcess,
    authority: Authority,
    folder: PathBuf,
    _config: TempFile,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn tls_server(name: &str, requires_client_cert: bool) -> TlsServer {
    let folder = std::env::temp_dir().join(format!("slidegate-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let authority = Authority::make(&folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let mut tls = json!({"cert": file("server.crt"), "key": file("server.key")});
    if requires_client_cert {
        tls["client_ca"] = json!(file("ca.crt"));
    }
    let config = TempFile::new(name, &format!("tls: {tls}\npolicies: {{api: {{quotas: [100/1m]}}}}\n"));
    let process =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    TlsServer { process, authority, folder, _config: config }
}

/// Creates a second, untrusted authority and returns the folder of its files.
fn untrusted_authority(server: &TlsServer) -> (Authority, PathBuf) {
    let folder = server.folder.join("untrusted");
    fs::create_dir_all(&folder).unwrap();
    (Authority::make(&folder), folder)
}

fn curl(server: &TlsServer, more: &[&str]) -> (i32, String, String) {
    let url = format!("{}/v1/check", server.process.url());
    let ca = server.authority.ca_path();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--cacert", ca.to_str().unwrap(), "-w", " %{http_version}", "-d", BODY]);
    outcome(curl.args(more).arg(&url))
}

#[test]
fn with_a_certificate_the_server_accepts_only_tls() {
    let server = tls_server("tls", false);
    assert!(server.process.url().starts_with("https://"));
    let (code, out, err) = outcome(Command::new("sh").args(["-c", server.process.example_command()]));
    assert!(code == 0 && out.contains(r#""remaining":99"#), "{out}{err}");
    for (more, version) in [(&["--http2"][..], " 2"), (&["--http1.1"], " 1.1")] {
        let (code, out, err) = curl(&server, more);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(r#""allowed":true"#) && out.ends_with(version), "{out}");
    }
    let plain = server.process.url().replace("https://", "");
    let mut stream = TcpStream::connect(&plain).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    assert!(!response.starts_with(b"HTTP/"), "{response:?}");
}

#[test]
fn the_check_command_verifies_the_certificate_of_the_server() {
    let server = tls_server("client", false);
    let check_trusting = |trusted: &str| {
        let arguments = ["check", "user:1", "--policy", "api", "--server", server.process.url()];
        outcome(slidegate().args(arguments).env("SSL_CERT_FILE", trusted))
    };
    let authority = server.folder.join("ca.crt").display().to_string();
    let (code, out, err) = check_trusting(&authority);
    assert!(code == 0 && out.starts_with("allowed"), "{out}{err}");
    let (code, _, err) = check_trusting("/nowhere");
    assert!(code == 2 && err.starts_with("error: SSL_CERT_FILE: /nowhere: "), "{err}");
    let key = server.folder.join("server.key").display().to_string();
    let (code, _, err) = check_trusting(&key);
    assert!(code == 2 && err.contains("server.key: there is no certificate in it"), "{err}");
    let (untrusted, _) = untrusted_authority(&server);
    let (code, _, err) = check_trusting(&untrusted.ca_path().display().to_string());
    let expected = "no trusted authority has signed the server's certificate; set SSL_CERT_FILE to the file of its authority\n";
    assert!(code == 2 && err.ends_with(expected), "{err}");
    let plain = server.process.url().replace("https", "http");
    let (code, _, err) = outcome(slidegate().args(["check", "a", "--policy", "api", "--server", &plain]));
    assert!(
        code == 2 && err.contains("; is this the port for HTTP? If the server has TLS, write https://"),
        "{err}"
    );
}

#[test]
fn a_client_without_the_required_certificate_is_rejected() {
    let server = tls_server("mtls", true);
    let words = server.process.example_command();
    assert!(words.contains("--cert CLIENT.crt --key CLIENT.key https://"), "{words}");
    let (code, out, _) = curl(&server, &[]);
    assert!(code != 0 && !out.contains("allowed"), "{out}");
    let file = |name: &str| server.folder.join(name).display().to_string();
    let (code, out, err) = curl(&server, &["--cert", &file("server.crt"), "--key", &file("server.key")]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(r#""allowed":true"#), "{out}");
}

#[test]
fn the_commands_present_a_client_certificate() {
    let server = tls_server("mtls-client", true);
    let file = |name: &str| server.folder.join(name).display().to_string();
    let run = |words: &[&str], more: &[&str]| {
        outcome(slidegate().args(words).args(more).env("SSL_CERT_FILE", file("ca.crt")))
    };
    let url = server.process.url();
    let check = ["check", "user:1", "--policy", "api", "--server", url];
    let (cert, key) = (file("server.crt"), file("server.key"));
    let client_cert = ["--client-cert", &cert, "--client-key", &key];
    let (code, out, err) = run(&check, &client_cert);
    assert!(code == 0 && out.starts_with("allowed: 99"), "{out}{err}");
    for verb in ["peek", "refund", "reset"] {
        let (code, out, err) = run(&[&[verb], &check[1..]].concat(), &client_cert);
        assert!(code == 0 && out.contains(" of 100 left"), "{verb}: {out}{err}");
    }
    let admin = server.process.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap();
    let (code, out, err) = run(&["top", "--once", "--admin", admin], &client_cert);
    assert!(code == 0 && out.contains("POLICY"), "{out}{err}");

    untrusted_authority(&server);
    let (untrusted_cert, untrusted_key) = (file("untrusted/server.crt"), file("untrusted/server.key"));
    for more in [&[][..], &["--client-cert", &untrusted_cert, "--client-key", &untrusted_key]] {
        let (code, out, err) = run(&check, more);
        let names_the_server = err.starts_with(&format!("error: request to {url} failed: "));
        assert!(code == 2 && out.is_empty() && names_the_server, "{more:?}: {out}{err}");
        assert!(!err.ends_with("connection error\n"), "the reason is missing: {err}");
    }
    let (_, _, err) = run(&check, &[]);
    assert!(err.contains("; the server requires a certificate: --client-cert and --client-key"), "{err}");
    // Unusable files and flags are rejected before any connection.
    let here = ["check", "user:1", "--quota", "1/1h"];
    let plain = ["check", "user:1", "--policy", "api", "--server", "http://127.0.0.1:1"];
    for (words, more, expected) in [
        (&check[..], &["--client-cert", &cert][..], "--client-key <FILE>"),
        (&check, &["--client-key", &key], "--client-cert <FILE>"),
        (&check, &["--client-cert", "/nowhere", "--client-key", &key], "error: --client-cert: /nowhere: "),
        (&check, &["--client-cert", &key, "--client-key", &key], "the file contains no certificate"),
        (&check, &["--client-cert", &cert, "--client-key", &cert], "the file contains no private key"),
        (
            &check,
            &["--client-cert", &cert, "--client-key", &untrusted_key],
            "not the key of the certificate in",
        ),
        (&here, &client_cert, "error: --client-cert needs --server URL"),
        (&plain, &client_cert, "error: --client-cert: http://127.0.0.1:1 is not https://"),
    ] {
        let (code, out, err) = run(words, more);
        assert_eq!((code, out.as_str()), (2, ""), "{more:?}: {err}");
        assert!(err.contains(expected), "{expected} in {err}");
    }
}

#[test]
fn an_unusable_certificate_is_named() {
    let empty = TempFile::new("empty", "");
    let config = TempFile::new(
        "no-cert",
        &format!("tls: {{cert: {}, key: /nowhere}}\npolicies: {{api: {{quotas: [1/1m]}}}}\n", empty.path()),
    );
    let (code, _, err) = outcome(slidegate().args(["serve", "--config", config.path()]));
    assert_eq!(code, 2);
    assert!(err.contains("tls.cert: ") && err.contains("the file contains no certificate"), "{err}");
}

#[test]
fn an_unusable_private_key_is_named() {
    let server = tls_server("mismatch", false);
    let (_, untrusted) = untrusted_authority(&server);
    let (cert, key) = (server.folder.join("server.crt"), untrusted.join("server.key"));
    let assert_rejected = |key: &Path, expected: &str| {
        let tls = json!({"cert": cert, "key": key});
        let file = format!("tls: {tls}\npolicies: {{api: {{quotas: [1/1m]}}}}\n");
        let config = TempFile::new("mismatch", &file);
        let expected = format!("tls.key: {}: {expected}", key.display());
        for words in [["serve", "--config"], ["validate", "--"]] {
            let (code, _, err) = outcome(slidegate().args(words).arg(config.path()));
            assert!(code == 2 && err.contains(&expected), "{expected} in {err}");
        }
    };
    assert_rejected(&key, &format!("not the key of the certificate in {}", cert.display()));
    let pem = |name: &str| format!("-----BEGIN {name}-----\nMAA=\n-----END {name}-----\n");
    let file = |name: &str| TempFile::new("key", &pem(name));
    assert_rejected(
        Path::new(file("ENCRYPTED PRIVATE KEY").path()),
        "the key is encrypted; write it without its passphrase",
    );
    assert_rejected(Path::new(file("PRIVATE KEY").path()), "");
}

#[test]
fn an_authority_certificate_as_server_certificate_is_rejected_with_the_reason() {
    let mut server = tls_server("authority", false);
    let tls = json!({"cert": server.folder.join("ca.crt"), "key": server.folder.join("ca.key")});
    let config = TempFile::new("authority", &format!("tls: {tls}\npolicies: {{api: {{quotas: [1/1m]}}}}\n"));
    server.process =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    let check = ["check", "a", "--policy", "api", "--server", server.process.url()];
    let (code, _, err) = outcome(slidegate().args(check).env("SSL_CERT_FILE", server.authority.ca_path()));
    assert!(code == 2 && err.contains("the server's certificate is that of an authority"), "{err}");
}

/// Opens 10000 connections from another process and sends requests on a few of them.
#[test]
fn ten_thousand_idle_connections_do_not_block_requests() {
    let command =
        format!("ulimit -n 20000 && exec {} serve --http 127.0.0.1:0", env!("CARGO_BIN_EXE_slidegate"));
    let mut shell = Command::new("sh");
    for variable in ["SLIDEGATE_CONFIG", "SLIDEGATE_STORE", "SLIDEGATE_HTTP", "RUST_LOG"] {
        shell.env_remove(variable);
    }
    let server = ServeProcess::start(shell.args(["-c", &command]));
    let script = r#"
import json, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
port = int(sys.argv[1])
body = b'{"policy": "api", "key": "a"}'
request = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(10000)]
for client in clients[::1000] + [socket.create_connection(("127.0.0.1", port))]:
    client.sendall(request)
    assert client.recv(4096).startswith(b"HTTP/1.1 200"), "no response"
print("fine")
"#;
    let port = server.url().rsplit(':').next().unwrap();
    let (code, out, err) = outcome(Command::new("python3").args(["-c", script, port]));
    assert_eq!((code, out.as_str()), (0, "fine\n"), "{err}");
}
