//! Real proxies with the configurations of `deploy/` in front of a small application: forward-auth and `ext_authz`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slidegate_testkit::{free_port, until};

use crate::process::{ServeProcess, TempFile, outcome, slidegate};

/// The proxy connects from 127.0.0.1 and is trusted. Clients use other loopback addresses.
const FILE: &str = "trusted_proxies: [127.0.0.1/32]\npolicies: {api: {quotas: [3/1h]}}\n";

/// Body that the application must receive unchanged, although the proxy calls the limiter first.
const BODY: &str = "a body";

fn limiter(file: &str) -> ServeProcess {
    let file = TempFile::new("proxies", file);
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", file.path()]))
}

/// Starts an application that responds `ok`, responds 403 to `/forbidden`, and counts requests for `/failing` without a
/// response. It ends with the process.
fn app() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(serve(&stream, &counted)));
    });
    (address, failures)
}

fn serve(mut stream: &TcpStream, failures: &AtomicUsize) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let head = head.to_lowercase();
    // Counts before the body, because a proxy might retry without it.
    failures.fetch_add(usize::from(head.contains("/failing")), Ordering::SeqCst);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    if head.contains("/failing") {
        return Ok(());
    }
    let is_complete = body == if head.starts_with("post") { BODY.as_bytes() } else { b"" };
    let (status, body) = match (head.contains("/forbidden"), is_complete) {
        (true, _) => ("403 Forbidden", "no"),
        (false, true) => ("200 OK", "ok"),
        (false, false) => ("400 Bad Request", "??"),
    };
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{body}")
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

/// A proxy with a shipped configuration, except for ports. Killed on drop.
struct Proxy {
    child: Child,
    folder: PathBuf,
    port: u16,
    /// Number of requests for `/failing` that the application has received.
    failures: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq)]
enum FailureMode {
    Open,
    Closed,
}

impl Proxy {
    /// Copies the folder `name` of `deploy/` with changed ports, applies `change` to each file and runs `command`
    /// there.
    fn start(
        name: &str,
        limiter: &ServeProcess,
        change: impl Fn(String) -> String,
        command: &mut Command,
    ) -> Self {
        let port = free_port();
        // Second port, for a proxy that calls itself.
        let second_port = free_port().to_string();
        let folder = std::env::temp_dir().join(format!("slidegate-{name}-{port}"));
        fs::create_dir_all(&folder).unwrap();
        let limiter = limiter.url().rsplit(':').next().unwrap();
        let (app, failures) = app();
        let app = app.port().to_string();
        for entry in fs::read_dir(deploy(name)).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            let mut text = fs::read_to_string(&path).unwrap();
            for (from, to) in
                [("8080", limiter), ("3000", &app), ("8000", &port.to_string()), ("8001", &second_port)]
            {
                text = text.replace(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{to}"));
                text = text.replace(&format!("port_value: {from}"), &format!("port_value: {to}"));
                text = text.replace(&format!("port: {from}"), &format!("port: {to}"));
            }
            // Longer timeouts for a busy machine.
            let text = text.replace("250ms", "20s").replace("timeout: 0.25s", "timeout: 20s");
            fs::write(folder.join(file), change(text)).unwrap();
        }
        let log = fs::File::create(folder.join("log")).unwrap();
        command.current_dir(&folder).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; make deps installs it"));
        let proxy = Self { child, folder, port, failures };
        until("the proxy accepts connections", || match TcpStream::connect(("127.0.0.1", port)) {
            // A TCP connection to a free ephemeral port may connect to itself.
            Ok(stream) if stream.local_addr().unwrap().port() == port => Err("itself".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}: {}", proxy.log())),
        });
        proxy
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Sends a request from the address `client` and returns the response, its head in lower case.
    fn get(&self, client: &str, path: &str, more: &[&str]) -> String {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let mut curl = Command::new("curl");
        let (code, out, err) = outcome(curl.args(["-sSi", "--interface", client]).args(more).arg(url));
        assert_eq!(code, 0, "{err}: {}", self.log());
        let (head, body) = out.split_once("\r\n\r\n").unwrap();
        format!("{}\r\n\r\n{body}", head.to_lowercase())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn status(response: &str) -> u16 {
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Properties of a proxy.
#[derive(Clone, Copy)]
struct ProxyTraits<'a> {
    /// Headers as large as the proxy itself accepts.
    large_headers: &'a [String],
    /// Whether responses of allowed requests have the rate limit headers.
    adds_headers_when_allowed: bool,
    /// Whether the first request after the limiter ends already fails open.
    fails_open_at_once: bool,
}

#[track_caller]
fn assert_limits(proxy: &Proxy, traits: ProxyTraits<'_>) {
    for left in [2, 1, 0] {
        let allowed = proxy.get("127.0.0.2", "/some/path?a=b", &["-d", BODY]);
        assert!(status(&allowed) == 200 && allowed.ends_with("\r\n\r\nok"), "{allowed}: {}", proxy.log());
        let limits =
            [format!("ratelimit: \"3/1h\";r={left};t="), "ratelimit-policy: \"3/1h\";q=3;w=3600".into()];
        for line in limits {
            assert_eq!(allowed.contains(&line), traits.adds_headers_when_allowed, "{line} in {allowed}");
        }
    }
    let denied = proxy.get("127.0.0.2", "/", &[]);
    assert_eq!(status(&denied), 429, "{denied}: {}", proxy.log());
    assert!(
        denied.contains("ratelimit: \"3/1h\";r=0;t=") && denied.contains("\r\nretry-after: "),
        "{denied}"
    );
    assert!(denied.contains("content-type: application/problem+json"), "{denied}");
    assert!(denied.contains("http-problem-types#quota-exceeded"), "{denied}");
    assert_denied(proxy);
    let other = proxy.get("127.0.0.3", "/forbidden", &[]);
    assert!(status(&other) == 403 && other.ends_with("no"), "the 403 of the application: {other}");
    assert_eq!(other.contains("r=2;t="), traits.adds_headers_when_allowed, "{other}");
}

/// Asserts that no header, query or path of a client without quota left avoids the denial.
#[track_caller]
fn assert_denied(proxy: &Proxy) {
    let denied = |path: &str, more: &[&str]| {
        let response = proxy.get("127.0.0.2", path, more);
        assert_eq!(status(&response), 429, "{path} {more:?}: {response}");
    };
    for spoofed in ["X-Forwarded-For: 203.0.113.7", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 203.0.113.7"] {
        denied("/", &["-H", spoofed]);
    }
    for option in
        ["deny_status=401", "deny_status=503", "deny_status=x", "allow_status=200", "allow_status=1"]
    {
        for path in ["/x?", "/x?&", "/x?a=b&", "/x&"] {
            denied(&format!("{path}{option}"), &[]);
        }
    }
    // Larger than the limiter accepts. The proxy must not treat that as a failure of the limiter.
    let long = "x".repeat(40 << 10);
    for name in ["X-Forwarded-For", "X-Other"] {
        let response = proxy.get("127.0.0.2", "/", &["-H", &format!("{name}: {long}")]);
        assert!(status(&response) != 200, "a large {name}: {response}");
    }
    let response = proxy.get("127.0.0.2", &format!("/{long}"), &[]);
    assert!(status(&response) != 200, "a long path: {response}");
}

/// Asserts that a request with large headers passes.
#[track_caller]
fn assert_passes(proxy: &Proxy, headers: &[String]) {
    let lines: Vec<&str> = headers.iter().flat_map(|line| ["-H", line]).collect();
    let response = proxy.get("127.0.0.5", "/", &lines);
    assert!(status(&response) == 200 && response.ends_with("ok"), "{response}: {}", proxy.log());
}

fn cookies(count: usize, bytes: usize) -> Vec<String> {
    (0..count).map(|number| format!("Cookie: c{number}={}", "x".repeat(bytes))).collect()
}

fn small_headers(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("X-Of-The-App-{number}: a")).collect()
}

/// Tests a proxy in both failure modes, then kills the limiter.
fn assert_proxy(traits: ProxyTraits<'_>, start: impl Fn(&ServeProcess, FailureMode) -> Proxy) {
    let off = limiter("policies: {api: {quotas: [3/1h], mode: off}}");
    let unlimited = start(&off, FailureMode::Closed).get("127.0.0.2", "/", &[]);
    assert!(
        status(&unlimited) == 200 && !unlimited.contains("ratelimit"),
        "a policy that is off has no headers: {unlimited}"
    );
    let mut limiter = limiter(FILE);
    let (closed, open) = (start(&limiter, FailureMode::Closed), start(&limiter, FailureMode::Open));
    assert_limits(&closed, traits);
    // A proxy that fails open still limits.
    assert_denied(&open);
    assert_passes(&closed, traits.large_headers);
    let failed = open.get("127.0.0.6", "/failing", &["-d", BODY]);
    assert!((500..=504).contains(&status(&failed)), "{failed}");
    assert_eq!(open.failures.load(Ordering::SeqCst), 1, "the proxy retried the request");
    limiter.signal_and_wait("KILL");
    let failed = closed.get("127.0.0.4", "/", &[]);
    assert!((500..=504).contains(&status(&failed)), "{failed}");
    let passes = || {
        let response = open.get("127.0.0.4", "/", &[]);
        if status(&response) == 200 && response.ends_with("ok") { Ok(()) } else { Err(response) }
    };
    if traits.fails_open_at_once {
        assert_eq!(passes(), Ok(()), "{}", open.log());
    } else {
        until("the proxy fails open", passes);
    }
}

#[test]
fn nginx_limits() {
    let large = [cookies(3, 7 << 10), small_headers(120)].concat();
    let traits =
        ProxyTraits { large_headers: &large, adds_headers_when_allowed: true, fails_open_at_once: true };
    assert_proxy(traits, |limiter, mode| {
        let change = |text: String| match mode {
            FailureMode::Open => text.replace("# include fail-open.conf;", "include fail-open.conf;"),
            FailureMode::Closed => text,
        };
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.args(["-c", "nginx.conf", "-e", "stderr"]);
        // Two instances run in parallel, so the paths of output are relative to the folder.
        nginx.args(["-g", "daemon off; master_process off; pid nginx.pid;"]);
        Proxy::start("nginx", limiter, change, nginx.args(["-p", "."]))
    });
}

#[test]
fn caddy_limits() {
    let large = cookies(7, 7 << 10);
    let traits =
        ProxyTraits { large_headers: &large, adds_headers_when_allowed: true, fails_open_at_once: true };
    assert_proxy(traits, |limiter, mode| {
        let change = |text: String| {
            let import =
                if mode == FailureMode::Open { "import fail-open.caddy" } else { "import fail-closed.caddy" };
            text.replace("import fail-closed.caddy", import)
        };
        let mut caddy = Command::new("caddy");
        Proxy::start(
            "caddy",
            limiter,
            change,
            caddy.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]),
        )
    });
}

#[test]
fn traefik_limits() {
    let traefik = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/traefik/bin/traefik");
    let large = [cookies(7, 7 << 10), small_headers(120)].concat();
    let traits =
        ProxyTraits { large_headers: &large, adds_headers_when_allowed: false, fails_open_at_once: false };
    assert_proxy(traits, |limiter, mode| {
        let change = |text: String| {
            // Longer health checks, so that a busy machine does not look like a failed limiter.
            let text = text.replace("interval: 1s, timeout: 500ms", "interval: 5s, timeout: 4s");
            if mode == FailureMode::Open {
                text.replace("filename: dynamic.yaml", "filename: fail-open.yaml")
            } else {
                text
            }
        };
        let mut command = Command::new(&traefik);
        command.args(["--configFile=traefik.yaml", "--global.checkNewVersion=false"]);
        let proxy = Proxy::start("traefik", limiter, change, &mut command);
        // Traefik listens before it has read its routes.
        until("the routes are loaded", || match proxy.get("127.0.0.9", "/", &[]) {
            unknown if status(&unknown) == 404 => Err(unknown),
            _ => Ok(()),
        });
        proxy
    });
}

#[test]
fn envoy_limits_by_ext_authz() {
    let envoy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/envoy/envoy/_bin/envoy");
    let large = [cookies(7, 7 << 10), small_headers(80)].concat();
    let traits =
        ProxyTraits { large_headers: &large, adds_headers_when_allowed: true, fails_open_at_once: true };
    assert_proxy(traits, |limiter, mode| {
        let change = |text: String| {
            let allow = if mode == FailureMode::Open {
                "failure_mode_allow: true"
            } else {
                "failure_mode_allow: false"
            };
            text.replace("failure_mode_allow: true", allow)
        };
        let mut command = Command::new(&envoy);
        command.args(["-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]);
        Proxy::start("envoy-ext-authz", limiter, change, &mut command)
    });
}
