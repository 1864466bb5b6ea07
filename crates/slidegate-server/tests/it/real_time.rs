//! The release promise in real time: no window of a client's own monotonic clock admits more than the limit under
//! `strict-window` and `sliding-log`.
//!
//! A request is admitted between its sending and the receipt of its response. So more than the limit was certainly
//! admitted within a window if all these requests were sent, and all their responses received, within less than a
//! window.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use slidegate_testkit::{Flavour, Postgres, Server};

use crate::process::{ServeProcess, TempFile, slidegate};

const ALGORITHMS: [&str; 2] = ["strict-window", "sliding-log"];

/// A limit, its window and the number of attacked keys. Each key is attacked for a little longer than a window.
#[derive(Clone, Copy)]
struct Target {
    limit: usize,
    window_ms: u64,
    keys: u32,
}

impl Target {
    fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    fn policy(&self, algorithm: &str) -> String {
        format!("{algorithm}-{}-{}", self.limit, self.window_ms)
    }
}

/// Limit of one unit: its responses are the fastest, so they hide the least of an early admission.
const SINGLE: Target = Target { limit: 1, window_ms: 20, keys: 40 };
/// Limit that a loop of single requests spends within a part of the window.
const FEW: Target = Target { limit: 4, window_ms: 20, keys: 40 };
const SHORT: Target = Target { limit: 20, window_ms: 50, keys: 12 };
const LARGE: Target = Target { limit: 200, window_ms: 100, keys: 8 };
const LONG: Target = Target { limit: 20, window_ms: 1000, keys: 2 };

#[expect(clippy::disallowed_methods, reason = "the promise is measured by the clock of the client")]
fn now() -> Instant {
    Instant::now()
}

/// Requests that are sent together, and the number of admitted ones.
struct Burst {
    key: u32,
    sent: Instant,
    received: Instant,
    admitted: usize,
}

/// Protocol and size of an attack's requests.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// One request after the other on one connection.
    Loop,
    /// Arrays of as many checks as the limit.
    Batch,
    /// As many commands as the limit at once.
    Pipeline,
}

/// A client with one keep-alive connection.
struct Client {
    stream: TcpStream,
    attack: Attack,
}

impl Client {
    fn connect(server: &ServeProcess, attack: Attack) -> Self {
        let address = match attack {
            Attack::Pipeline => resp_address(server),
            Attack::Loop | Attack::Batch => server.address(),
        };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, attack }
    }

    fn burst(&mut self, policy: &str, key: u32, limit: usize) -> Burst {
        let check = json!({"policy": policy, "key": key.to_string()}).to_string();
        let request = match self.attack {
            Attack::Loop => http(&check),
            Attack::Batch => http(&format!("[{}]", vec![check; limit].join(","))),
            Attack::Pipeline => format!("SLIDEGATE.CHECK {policy} {key}\r\n").repeat(limit),
        };
        let sent = now();
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        let mut is_complete = false;
        while !is_complete {
            let mut piece = [0; 8192];
            let length = self.stream.read(&mut piece).unwrap();
            assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&response));
            response.extend_from_slice(&piece[..length]);
            is_complete = match self.attack {
                Attack::Loop | Attack::Batch => is_complete_http(&response),
                // Six lines for each array of five.
                Attack::Pipeline => response.split(|byte| *byte == b'\n').count() > 6 * limit,
            };
        }
        let received = now();
        let response = String::from_utf8(response).unwrap();
        let is_admitted = match self.attack {
            Attack::Loop | Attack::Batch => r#""allowed":true"#,
            Attack::Pipeline => "*5\r\n:1\r\n",
        };
        Burst { key, sent, received, admitted: response.matches(is_admitted).count() }
    }
}

fn http(body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn is_complete_http(response: &[u8]) -> bool {
    let Some(end) = response.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let head = str::from_utf8(&response[..end]).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    response.len() == end + 4 + length.parse::<usize>().unwrap()
}

fn resp_address(server: &ServeProcess) -> SocketAddr {
    let line = server.startup_lines.iter().find_map(|line| line.strip_prefix("resp: redis://")).unwrap();
    line.parse().unwrap()
}

fn serve(store: &str) -> ServeProcess {
    let quota = |target: Target, algorithm: &str| {
        let Target { limit, window_ms, .. } = target;
        (target.policy(algorithm), json!({"quotas": [format!("{limit}/{window_ms}ms {algorithm}")]}))
    };
    let policies: serde_json::Map<_, _> = [SINGLE, FEW, SHORT, LARGE, LONG]
        .into_iter()
        .flat_map(|target| ALGORITHMS.map(|algorithm| quota(target, algorithm)))
        .collect();
    // A cached denial would hide that the store admits again. A fallback on a busy machine would admit units of its own.
    let config = json!({"policies": policies, "degrade": {"cache_denials": false, "budget": "10s"}});
    let file = TempFile::new("real-time", &config.to_string());
    let addresses = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    ServeProcess::start(slidegate().arg("serve").args(addresses).args([
        "--store",
        store,
        "--config",
        file.path(),
    ]))
}

/// Sends bursts without a pause from one connection to each node, all for the same key. The key changes every 4/3
/// windows plus 790 µs, which is no multiple of a clock's resolution. So first bursts fall anywhere into it, and later
/// bursts meet the first moment at which the key is admitted again.
fn bursts(nodes: &[ServeProcess], attack: Attack, target: Target, policy: &str) -> Vec<Burst> {
    let time_per_key = target.window() * 4 / 3 + Duration::from_micros(790);
    let mut clients: Vec<_> = nodes.iter().map(|node| Client::connect(node, attack)).collect();
    let start = now();
    let attack_from = |client: &mut Client| {
        let mut bursts = Vec::new();
        loop {
            let key = ((now() - start).as_nanos() / time_per_key.as_nanos()) as u32;
            if key >= target.keys {
                return bursts;
            }
            bursts.push(client.burst(policy, key, target.limit));
        }
    };
    std::thread::scope(|scope| {
        let attackers: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| attack_from(client))).collect();
        attackers.into_iter().flat_map(|attacker| attacker.join().unwrap()).collect()
    })
}

/// Returns the largest number of units of one key that were certainly admitted within less than a window.
fn max_admitted_in_window(bursts: &[Burst], window: Duration) -> usize {
    let within = |first: &Burst| {
        let others = bursts.iter().filter(|other| other.key == first.key && other.sent >= first.sent);
        let certain = others.filter(|other| other.received - first.sent < window);
        certain.map(|burst| burst.admitted).sum()
    };
    bursts.iter().filter(|burst| burst.admitted > 0).map(within).max().unwrap_or(0)
}

/// Runs an attack on both exact algorithms and asserts that no window admits more than the limit.
fn assert_limit_holds(name: &str, nodes: &[ServeProcess], attack: Attack, target: Target) {
    let mut violations = Vec::new();
    for algorithm in ALGORITHMS {
        let bursts = bursts(nodes, attack, target, &target.policy(algorithm));
        let max_admitted = max_admitted_in_window(&bursts, target.window());
        let admitted: usize = bursts.iter().map(|burst| burst.admitted).sum();
        assert!(admitted >= target.limit, "{name}, {attack:?}, {algorithm}: {admitted} in total");
        if max_admitted > target.limit {
            violations
                .push(format!("{algorithm}: {max_admitted} of {} in {} ms", target.limit, target.window_ms));
        }
    }
    assert!(violations.is_empty(), "{name}, {attack:?}, {} nodes: {}", nodes.len(), violations.join("; "));
}

mod in_memory {
    use super::*;

    #[test]
    fn a_loop_gets_at_most_the_limit() {
        let nodes = [serve("memory:")];
        assert_limit_holds("memory", &nodes, Attack::Loop, SHORT);
        assert_limit_holds("memory", &nodes, Attack::Loop, LONG);
    }

    #[test]
    fn batches_get_at_most_the_limit() {
        let nodes = [serve("memory:")];
        assert_limit_holds("memory", &nodes, Attack::Batch, SHORT);
        assert_limit_holds("memory", &nodes, Attack::Batch, LARGE);
    }

    #[test]
    fn a_pipeline_gets_at_most_the_limit() {
        assert_limit_holds("memory", &[serve("memory:")], Attack::Pipeline, SHORT);
    }
}

fn attack_shared_store(name: &str, store: &str) {
    let nodes = [serve(store), serve(store)];
    for target in [SINGLE, FEW] {
        assert_limit_holds(name, &nodes[..1], Attack::Loop, target);
        assert_limit_holds(name, &nodes, Attack::Loop, target);
    }
    assert_limit_holds(name, &nodes[..1], Attack::Pipeline, SINGLE);
    assert_limit_holds(name, &nodes[..1], Attack::Pipeline, SHORT);
    assert_limit_holds(name, &nodes[..1], Attack::Batch, SHORT);
    assert_limit_holds(name, &nodes, Attack::Pipeline, SHORT);
}

#[test]
fn redis_admits_at_most_the_limit() {
    let redis = Server::start(Flavour::Redis);
    attack_shared_store("Redis", &(redis.url() + "?budget_ms=20000"));
}

#[test]
fn valkey_admits_at_most_the_limit() {
    let valkey = Server::start(Flavour::Valkey);
    attack_shared_store("Valkey", &(valkey.url() + "?budget_ms=20000"));
}

#[test]
fn postgres_admits_at_most_the_limit() {
    let postgres = Postgres::start();
    for table in ["durable=false", "durable=true"] {
        attack_shared_store(
            &format!("PostgreSQL, {table}"),
            &format!("{}?budget_ms=20000&{table}", postgres.url()),
        );
    }
}
