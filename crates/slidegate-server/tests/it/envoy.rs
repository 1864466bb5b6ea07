//! Real Envoy with the configuration of `deploy/envoy` in front of a test upstream.

mod quotas;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use slidegate_testkit::until;
use tempfile::TempDir;

use crate::harness::{Response, read_last_response};
use crate::process::{ServeProcess, slidegate};

/// Like the shipped limits, but with windows of a year, so that no window ends during a test.
const LIMITS: &str = "
domain: edge
descriptors:
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000, name: per-address}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2, name: per-user}}
";
/// Replaces Envoy's timeout in `deploy/`, which is too short for a busy machine.
const LONG_TIMEOUT: (&str, &str) = (" timeout: 0.25s", " timeout: 30s");
const FAIL_CLOSED: (&str, &str) = ("failure_mode_deny: false", "failure_mode_deny: true");

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy")
}

/// HTTP server that responds to every request with one word until the process ends.
struct Upstream;

impl Upstream {
    fn start(word: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let length = word.len();
        let response =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{word}");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(response.as_bytes());
            }
        });
        address
    }
}

struct Envoy {
    ingress: SocketAddr,
    _process: KillOnDrop,
    _folder: TempDir,
}

impl Envoy {
    /// Starts Envoy with the limiter at the address `limiter`. `changes` are replacements in the configuration.
    fn start(limiter: &str, changes: &[(&str, &str)]) -> Self {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/envoy/envoy/_bin/envoy");
        assert!(binary.is_file(), "`make deps` installs Envoy into {}", binary.display());
        let limiter: SocketAddr = limiter.parse().unwrap();
        let port = |port: u16| format!("port_value: {port}}}");
        let mut config = fs::read_to_string(deploy().join("envoy.yaml")).unwrap();
        let ports = [(9901, 0), (10000, 0), (8081, limiter.port()), (9000, Upstream::start("up").port())];
        let ports = ports.map(|(shipped, local)| (port(shipped), port(local)));
        let ports = ports.iter().map(|(shipped, local)| (shipped.as_str(), local.as_str()));
        for (shipped, local) in ports.chain(changes.iter().copied()) {
            assert!(config.contains(shipped), "{shipped}");
            config = config.replace(shipped, local);
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        fs::write(&file, config).unwrap();
        let mut command = Command::new(binary);
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "off", "-c"]).arg(&file);
        command.arg("--admin-address-path").arg(&admin).stdout(Stdio::null()).stderr(Stdio::null());
        let process = KillOnDrop(command.spawn().unwrap());
        let ingress = until("Envoy has an ingress listener", || {
            let admin = fs::read_to_string(&admin).map_err(|error| error.to_string())?;
            let admin = admin.parse().map_err(|_| format!("{admin:?}"))?;
            let listeners = try_get(admin, "/listeners", b"").ok_or("no response")?.body;
            let address = listeners.lines().find_map(|line| line.strip_prefix("ingress::"));
            address.and_then(|address| address.parse().ok()).ok_or_else(|| listeners.clone())
        });
        Self { ingress, _process: process, _folder: folder }
    }

    fn get(&self, user: impl AsRef<[u8]>) -> Response {
        let header = [b"x-user: ", user.as_ref(), b"\r\n"].concat();
        try_get(self.ingress, "/", &header).unwrap()
    }
}

/// Child process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn try_get(address: SocketAddr, path: &str, headers: &[u8]) -> Option<Response> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    stream.write_all(&[head.as_bytes(), headers, b"\r\n"].concat()).ok()?;
    Some(read_last_response(&mut stream))
}

fn limiter() -> (ServeProcess, TempDir) {
    limiter_with(&[])
}

fn limiter_with(options: &[&str]) -> (ServeProcess, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("edge.yaml"), LIMITS).unwrap();
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path()).args(options);
    (ServeProcess::start(&mut command), folder)
}

#[test]
fn allowed_and_denied_responses_have_rate_limit_headers() {
    let (limiter, _folder) = limiter();
    let envoy = Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT]);
    for remaining in ["1", "0"] {
        let allowed = envoy.get("a");
        assert_eq!((allowed.status, allowed.body.as_str()), (200, "up"), "{allowed:?}");
        assert_eq!(allowed.header("x-ratelimit-remaining"), Some(remaining));
        let limit = allowed.header("x-ratelimit-limit").unwrap();
        assert!(limit.starts_with("2, "), "{limit}");
        for part in [r#"2;w=31536000;name="per-user""#, r#"1000;w=31536000;name="per-address""#] {
            assert!(limit.contains(part), "{part} is not in {limit}");
        }
        assert!(allowed.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap() > 0);
    }
    let denied = envoy.get("a");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert!(denied.header("ratelimit").unwrap().contains(r#""per-user";r=0;t="#), "{denied:?}");
    assert_eq!(denied.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(denied.body.starts_with("rate limit exceeded: per-user; retry in "), "{denied:?}");
    assert_eq!(envoy.get("b").status, 200);
    // Envoy derives the gRPC message from the body.
    let denied = try_get(envoy.ingress, "/", b"x-user: a\r\ncontent-type: application/grpc\r\n").unwrap();
    assert_eq!((denied.status, denied.header("grpc-status")), (200, Some("14")), "{denied:?}");
    assert_eq!(denied.header("content-type"), Some("application/grpc"));
    let message = denied.header("grpc-message").unwrap();
    assert!(message.starts_with("rate limit exceeded: per-user; retry in "), "{message}");
}

#[test]
fn a_denial_is_a_problem_document_on_request() {
    let (limiter, _folder) = limiter_with(&["--envoy-body", "problem"]);
    let envoy = Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT]);
    let denied = [(); 3].map(|()| envoy.get("a")).into_iter().next_back().unwrap();
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["per-user"]));
}

/// An error response would make Envoy fail open.
#[test]
fn unusual_header_values_are_limited() {
    let (limiter, _folder) = limiter();
    let envoy = Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT]);
    let large = vec![b'x'; 50_000];
    for user in [b"\xff".as_slice(), b"\xc3\x28", &large] {
        let statuses = [(); 3].map(|()| envoy.get(user).status);
        assert_eq!(statuses, [200, 200, 429], "{:?}", &user[..1]);
    }
}

#[test]
fn without_a_limiter_envoy_fails_open_or_closed_as_configured() {
    let (mut limiter, _folder) = limiter();
    let (open, closed) = (
        Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT]),
        Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT, FAIL_CLOSED]),
    );
    for envoy in [&open, &closed] {
        assert_eq!(envoy.get("a").status, 200);
    }
    assert_eq!((open.get("a").status, closed.get("a").status), (429, 429));
    limiter.signal_and_wait("KILL");
    assert_eq!((open.get("a").status, closed.get("a").status), (200, 500));
}

/// Runs with the shipped timeout of 250 ms.
#[test]
fn a_suspended_limiter_times_out() {
    let (limiter, _folder) = limiter();
    let (open, closed) =
        (Envoy::start(limiter.grpc_address(), &[]), Envoy::start(limiter.grpc_address(), &[FAIL_CLOSED]));
    until("the limit is reached", || match open.get("a").status {
        429 => Ok(()),
        other => Err(other.to_string()),
    });
    limiter.suspend();
    assert_eq!((open.get("a").status, closed.get("a").status), (200, 500));
    limiter.send_signal("CONT");
    until("the limiter denies again", || match open.get("a").status {
        429 => Ok(()),
        other => Err(other.to_string()),
    });
}

#[test]
fn the_shipped_limits_are_valid() {
    let mut import = slidegate();
    let (code, _, stderr) =
        crate::process::outcome(import.args(["import", "envoy"]).arg(deploy().join("limits")));
    let expected = "domain edge\n  remote_address: 100 per second (fixed-window), name \"per-address\"\n  \
                    user: 60 per minute (fixed-window), name \"per-user\"\n";
    assert_eq!((code, stderr.as_str()), (0, expected));
}
