//! Connections: who is let in, for how long, and what it may take.

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
use slidegate::{ManualClock, MemoryStore};
use slidegate_server::{Door, Limits};
use slidegate_testkit::Authority;

use crate::harness::{START_MS, Server, read_last_response};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const BODY: &str = r#"{"policy": "api", "key": "a"}"#;
/// So short that a test need not wait, and so long that a busy machine makes it.
const SOON: Duration = Duration::from_millis(200);

fn behind(limits: Limits) -> Server {
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    Server::with_options(Door { limits, ..Door::default() }, store, clock)
}

#[test]
fn whoever_does_not_get_to_the_point_is_hung_up_on() {
    let server = behind(Limits { head_timeout: SOON, ..Limits::default() });
    for said in ["", "P", "PRI * HTTP/2.0\r\n\r\n", "POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: "] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // Would last forever if the server had the patience.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "after {said:?}: {answer}");
    }
}

/// A connection on which one request was answered.
fn greeted(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("POST /v1/peek HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"]}") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..length]);
    }
    stream
}

#[test]
fn whoever_says_nothing_more_is_hung_up_on_too() {
    let server = behind(Limits { head_timeout: SOON, ..Limits::default() });
    // Would last forever if the server had the patience.
    let _ = greeted(&server).read_to_end(&mut Vec::new());
}

/// One byte after the other, for as long as the server takes them.
#[test]
fn a_head_that_never_ends_is_not_waited_for_because_there_is_always_more_of_it() {
    let server = behind(Limits { head_timeout: SOON, ..Limits::default() });
    for mut stream in [greeted(&server), TcpStream::connect(server.address).unwrap()] {
        stream.write_all(b"POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: ").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let is_open = |stream: &mut TcpStream| {
            let is_taken = stream.write_all(b"a").is_ok();
            let read = stream.read(&mut [0; 1]);
            is_taken && read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        assert!((0..3000).any(|_| !is_open(&mut stream)), "it still listens");
    }
}

/// Answers that fill whatever there is to hold them, and nobody who reads them.
#[test]
fn whoever_asks_and_never_listens_is_hung_up_on() {
    let server = behind(Limits { head_timeout: SOON, ..Limits::default() });
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
    assert!((0..3000).any(|_| !is_open()), "it still waits");
}

#[test]
fn a_body_that_does_not_come_is_refused() {
    let server = behind(Limits { body_timeout: SOON, ..Limits::default() });
    for begun in ["", "{\"pol"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 29\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(begun.as_bytes()).unwrap();
        let response = read_last_response(&mut stream);
        assert_eq!(response.status, 408, "{response:?}");
        assert_eq!(response.json()["detail"], "the body was not complete within 200ms");
    }
    assert_eq!(server.check(BODY).decision()["remaining"], 99, "and nothing was spent");
}

/// Whoever asks for others must hear the answer, although it was still talking: a proxy that is cut off lets through
/// whatever it has asked for, if it is set up so.
#[test]
fn what_is_too_large_is_refused_so_that_it_is_heard() {
    let server = behind(Limits::default());
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "a".repeat(500_000));
    let body = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 500000\r\n\r\n{}",
        " ".repeat(500_000)
    );
    // Nobody waits for what will not be taken, or asks for it.
    let announced = |lines: &str| {
        format!("POST /v1/check HTTP/1.1\r\nhost: a\r\n{lines}content-length: 99999999999\r\n\r\n")
    };
    let asking = announced("expect: 100-continue\r\n");
    for (said, status) in [(head, "431"), (body, "413"), (announced(""), "413"), (asking, "413")] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert_eq!(server.check(BODY).decision()["allowed"], true);
}

#[test]
fn one_connection_too_many_is_closed_and_the_next_one_is_let_in_when_there_is_room() {
    let server = behind(Limits { connections: 2, ..Limits::default() });
    let greet = |stream: &mut TcpStream| {
        let head =
            format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
        let mut first = [0; 12];
        let said = stream.write_all(head.as_bytes()).and_then(|()| stream.read_exact(&mut first));
        said.is_ok_and(|()| &first == b"HTTP/1.1 200")
    };
    let mut inside: Vec<_> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert!(inside.iter_mut().all(greet));
    assert!(!greet(&mut TcpStream::connect(server.address).unwrap()));
    drop(inside.pop());
    // The server has to see that first.
    while !greet(&mut TcpStream::connect(server.address).unwrap()) {}
}

#[test]
fn http_2_is_spoken_too() {
    let server = behind(Limits::default());
    let url = format!("http://{}/v1/check", server.address);
    let mut curl = Command::new("curl");
    curl.args(["-s", "--http2-prior-knowledge", "-w", " %{http_version}", "-d", BODY, &url]);
    let (code, out, err) = outcome(&mut curl);
    assert_eq!(code, 0, "{err}");
    assert!(out.ends_with(" 2") && out.contains(r#""remaining":99"#), "{out}");
}

/// A server with certificates of its own.
struct Secure {
    server: ServeProcess,
    authority: Authority,
    folder: PathBuf,
    _config: TempFile,
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn secure(name: &str, needs_clients: bool) -> Secure {
    let folder = std::env::temp_dir().join(format!("slidegate-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let authority = Authority::make(&folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let mut tls = json!({"cert": file("server.crt"), "key": file("server.key")});
    if needs_clients {
        tls["client_ca"] = json!(file("ca.crt"));
    }
    let config = TempFile::new(name, &format!("tls: {tls}\npolicies: {{api: {{quotas: [100/1m]}}}}\n"));
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    Secure { server, authority, folder, _config: config }
}

/// What others have made for themselves, and where it is.
fn strangers(secure: &Secure) -> (Authority, PathBuf) {
    let folder = secure.folder.join("stranger");
    fs::create_dir_all(&folder).unwrap();
    (Authority::make(&folder), folder)
}

fn curl(secure: &Secure, more: &[&str]) -> (i32, String, String) {
    let url = format!("{}/v1/check", secure.server.url());
    let ca = secure.authority.ca_path();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--cacert", ca.to_str().unwrap(), "-w", " %{http_version}", "-d", BODY]);
    outcome(curl.args(more).arg(&url))
}

#[test]
fn with_a_certificate_it_is_served_over_tls_alone() {
    let secure = secure("tls", false);
    assert!(secure.server.url().starts_with("https://"));
    let (code, out, err) = outcome(Command::new("sh").args(["-c", secure.server.example_command()]));
    assert!(code == 0 && out.contains(r#""remaining":99"#), "{out}{err}");
    for (more, version) in [(&["--http2"][..], " 2"), (&["--http1.1"], " 1.1")] {
        let (code, out, err) = curl(&secure, more);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(r#""allowed":true"#) && out.ends_with(version), "{out}");
    }
    let plain = secure.server.url().replace("https://", "");
    let mut stream = TcpStream::connect(&plain).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

#[test]
fn the_command_asks_over_tls_whoever_it_trusts() {
    let secure = secure("client", false);
    let ask = |trusted: &str| {
        let arguments = ["check", "user:1", "--policy", "api", "--server", secure.server.url()];
        outcome(slidegate().args(arguments).env("SSL_CERT_FILE", trusted))
    };
    let authority = secure.folder.join("ca.crt").display().to_string();
    let (code, out, err) = ask(&authority);
    assert!(code == 0 && out.starts_with("allowed"), "{out}{err}");
    let (code, _, err) = ask("/nowhere");
    assert!(code == 2 && err.starts_with("error: SSL_CERT_FILE: /nowhere: "), "{err}");
    let key = secure.folder.join("server.key").display().to_string();
    let (code, _, err) = ask(&key);
    assert!(code == 2 && err.contains("server.key: there is no certificate in it"), "{err}");
    let (stranger, _) = strangers(&secure);
    let (code, _, err) = ask(&stranger.ca_path().display().to_string());
    let expected =
        "nobody whom this machine trusts vouches for its certificate; name its authority by SSL_CERT_FILE\n";
    assert!(code == 2 && err.ends_with(expected), "{err}");
    let plain = secure.server.url().replace("https", "http");
    let (code, _, err) = outcome(slidegate().args(["check", "a", "--policy", "api", "--server", &plain]));
    assert!(
        code == 2 && err.contains("; is it the port for HTTP? If it speaks TLS, write https://"),
        "{err}"
    );
}

#[test]
fn a_client_without_a_certificate_is_not_let_in_where_one_is_asked_for() {
    let secure = secure("mtls", true);
    let words = secure.server.example_command();
    assert!(words.contains("--cert CLIENT.crt --key CLIENT.key https://"), "{words}");
    let (code, out, _) = curl(&secure, &[]);
    assert!(code != 0 && !out.contains("allowed"), "{out}");
    let file = |name: &str| secure.folder.join(name).display().to_string();
    let (code, out, err) = curl(&secure, &["--cert", &file("server.crt"), "--key", &file("server.key")]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(r#""allowed":true"#), "{out}");
}

#[test]
fn the_commands_show_a_certificate_where_one_is_asked_for() {
    let secure = secure("mtls-client", true);
    let file = |name: &str| secure.folder.join(name).display().to_string();
    let run = |words: &[&str], more: &[&str]| {
        outcome(slidegate().args(words).args(more).env("SSL_CERT_FILE", file("ca.crt")))
    };
    let url = secure.server.url();
    let check = ["check", "user:1", "--policy", "api", "--server", url];
    let (cert, key) = (file("server.crt"), file("server.key"));
    let shown = ["--client-cert", &cert, "--client-key", &key];
    let (code, out, err) = run(&check, &shown);
    assert!(code == 0 && out.starts_with("allowed: 99"), "{out}{err}");
    for verb in ["peek", "refund", "reset"] {
        let (code, out, err) = run(&[&[verb], &check[1..]].concat(), &shown);
        assert!(code == 0 && out.contains(" of 100 left"), "{verb}: {out}{err}");
    }
    let admin = secure.server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap();
    let (code, out, err) = run(&["top", "--once", "--admin", admin], &shown);
    assert!(code == 0 && out.contains("POLICY"), "{out}{err}");

    strangers(&secure);
    let (strange_cert, strange_key) = (file("stranger/server.crt"), file("stranger/server.key"));
    for more in [&[][..], &["--client-cert", &strange_cert, "--client-key", &strange_key]] {
        let (code, out, err) = run(&check, more);
        let is_refused = err.starts_with(&format!("error: cannot ask {url}: "));
        assert!(code == 2 && out.is_empty() && is_refused, "{more:?}: {out}{err}");
        assert!(!err.ends_with("connection error\n"), "it says why: {err}");
    }
    let (_, _, err) = run(&check, &[]);
    assert!(err.contains("; it wants to see a certificate: --client-cert and --client-key"), "{err}");
    // What is of no use is named before anybody is asked.
    let here = ["check", "user:1", "--quota", "1/1h"];
    let plain = ["check", "user:1", "--policy", "api", "--server", "http://127.0.0.1:1"];
    for (words, more, expected) in [
        (&check[..], &["--client-cert", &cert][..], "--client-key <FILE>"),
        (&check, &["--client-key", &key], "--client-cert <FILE>"),
        (&check, &["--client-cert", "/nowhere", "--client-key", &key], "error: --client-cert: /nowhere: "),
        (&check, &["--client-cert", &key, "--client-key", &key], "there is no certificate in it"),
        (&check, &["--client-cert", &cert, "--client-key", &cert], "there is no private key in it"),
        (
            &check,
            &["--client-cert", &cert, "--client-key", &strange_key],
            "not the key of the certificate in",
        ),
        (&here, &shown, "error: --client-cert: there is nobody to show it to"),
        (&plain, &shown, "error: --client-cert: http://127.0.0.1:1 is not https://"),
    ] {
        let (code, out, err) = run(words, more);
        assert_eq!((code, out.as_str()), (2, ""), "{more:?}: {err}");
        assert!(err.contains(expected), "{expected} in {err}");
    }
}

#[test]
fn a_certificate_that_is_of_no_use_is_named() {
    let empty = TempFile::new("empty", "");
    let config = TempFile::new(
        "no-cert",
        &format!("tls: {{cert: {}, key: /nowhere}}\npolicies: {{api: {{quotas: [1/1m]}}}}\n", empty.path()),
    );
    let (code, _, err) = outcome(slidegate().args(["serve", "--config", config.path()]));
    assert_eq!(code, 2);
    assert!(err.contains("tls.cert: ") && err.contains("there is no certificate in it"), "{err}");
}

#[test]
fn a_key_that_is_of_no_use_is_named() {
    let secure = secure("mismatch", false);
    let (_, stranger) = strangers(&secure);
    let (cert, key) = (secure.folder.join("server.crt"), stranger.join("server.key"));
    let refused = |key: &Path, expected: &str| {
        let tls = json!({"cert": cert, "key": key});
        let file = format!("tls: {tls}\npolicies: {{api: {{quotas: [1/1m]}}}}\n");
        let config = TempFile::new("mismatch", &file);
        let expected = format!("tls.key: {}: {expected}", key.display());
        for words in [["serve", "--config"], ["validate", "--"]] {
            let (code, _, err) = outcome(slidegate().args(words).arg(config.path()));
            assert!(code == 2 && err.contains(&expected), "{expected} in {err}");
        }
    };
    refused(&key, &format!("not the key of the certificate in {}", cert.display()));
    let pem = |name: &str| format!("-----BEGIN {name}-----\nMAA=\n-----END {name}-----\n");
    let file = |name: &str| TempFile::new("key", &pem(name));
    refused(
        Path::new(file("ENCRYPTED PRIVATE KEY").path()),
        "it is encrypted; write it without its passphrase",
    );
    refused(Path::new(file("PRIVATE KEY").path()), "");
}

#[test]
fn an_authority_that_serves_by_itself_is_not_believed_and_it_is_said_why() {
    let mut secure = secure("authority", false);
    let tls = json!({"cert": secure.folder.join("ca.crt"), "key": secure.folder.join("ca.key")});
    let config = TempFile::new("authority", &format!("tls: {tls}\npolicies: {{api: {{quotas: [1/1m]}}}}\n"));
    secure.server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    let check = ["check", "a", "--policy", "api", "--server", secure.server.url()];
    let (code, _, err) = outcome(slidegate().args(check).env("SSL_CERT_FILE", secure.authority.ca_path()));
    assert!(code == 2 && err.contains("its certificate is that of an authority"), "{err}");
}

/// Ten thousand who say nothing, from a process that may have as many open, and one who is served.
#[test]
fn ten_thousand_idle_connections_are_no_burden() {
    let command =
        format!("ulimit -n 20000 && exec {} serve --http 127.0.0.1:0", env!("CARGO_BIN_EXE_slidegate"));
    let mut shell = Command::new("sh");
    for variable in ["SLIDEGATE_CONFIG", "SLIDEGATE_STORE", "SLIDEGATE_HTTP", "RUST_LOG"] {
        shell.env_remove(variable);
    }
    let server = ServeProcess::start(shell.args(["-c", &command]));
    let crowd = r#"
import json, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
port = int(sys.argv[1])
body = b'{"policy": "api", "key": "a"}'
ask = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(10000)]
for one in crowd[::1000] + [socket.create_connection(("127.0.0.1", port))]:
    one.sendall(ask)
    assert one.recv(4096).startswith(b"HTTP/1.1 200"), "not answered"
print("fine")
"#;
    let port = server.url().rsplit(':').next().unwrap();
    let (code, out, err) = outcome(Command::new("python3").args(["-c", crowd, port]));
    assert_eq!((code, out.as_str()), (0, "fine\n"), "{err}");
}
