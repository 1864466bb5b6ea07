//! `CL.THROTTLE` and `SLIDEGATE.CHECK` beside `INCR` of Redis, each server on the same core.
//!
//! Two clients measure it: redis-benchmark, which is widely available, and our own load generator, because
//! redis-benchmark fills its core before it fills that of the server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use memchr::memchr_iter;
use slidegate_testkit::{Flavour, Server as Redis};

use crate::figures::{Aim, Figures, Row};
use crate::load::{Load, ResponseEnd};
use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, Server, cpu_s, output, pin};

/// Many short rounds in turn, because the speed of the machine drifts.
const ROUNDS: usize = 15;
const CONNECTIONS: usize = 50;
const KEYS: usize = 100_000;
/// Pipeline depth and total number of requests.
const DEPTHS: [(usize, u32); 2] = [(16, 800_000), (1, 100_000)];

/// Command in the notation of redis-benchmark.
const INCR: &[&str] = &["INCR", KEY];
const THROTTLE: &[&str] = &["CL.THROTTLE", KEY, "15", "30", "60"];
const CHECK: &[&str] = &["SLIDEGATE.CHECK", "api", KEY];
const KEY: &str = "key:__rand_int__";

/// Slidegate's service and its RESP port.
struct Service {
    server: Server,
    port: u16,
}

impl Service {
    fn start(config: &PathBuf) -> Self {
        let own = std::env::current_exe().expect("this program has a path");
        let mut server = Server::start(
            Command::new(own.with_file_name("slidegate"))
                .args(["serve", "--http", "127.0.0.1:0", "--admin", "off", "--resp", "127.0.0.1:0"])
                .arg("--config")
                .arg(config),
        );
        let port = server.lines().find_map(|line| {
            let address = line.strip_prefix("resp: redis://")?;
            address.rsplit(':').next()?.parse().ok()
        });
        Self { server, port: port.expect("the server prints its address") }
    }
}

/// Server and the command that it receives.
struct Subject {
    process: u32,
    address: SocketAddr,
    words: &'static [&'static str],
    /// Encoded command, once for each key.
    requests: Vec<Vec<u8>>,
    lines: usize,
}

impl Subject {
    fn new(process: u32, port: u16, words: &'static [&'static str]) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let requests: Vec<_> = (0..KEYS).map(|key| request(words, &format!("{key:012}"))).collect();
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.write_all(&requests[0]).expect("the server reads");
        let mut response = [0; 256];
        let length = stream.read(&mut response).expect("the server responds");
        assert!(matches!(response[0], b':' | b'*'), "{}", String::from_utf8_lossy(&response[..length]));
        let lines = memchr_iter(b'\n', &response[..length]).count();
        Self { process, address, words, requests, lines }
    }

    /// Measures with our own load generator and records its share of its core.
    fn measure(&self, (depth, count): (usize, u32), shares: &mut Figures) -> Sample {
        let (requests, response_end) = (self.requests.as_slice(), ResponseEnd::AfterLines(self.lines));
        let load = Load { address: self.address, connections: CONNECTIONS, depth, requests, response_end };
        let measured = load.measure(self.process, count as usize);
        shares.push(measured.callers_share);
        measured.sample
    }

    /// Measures with redis-benchmark.
    fn measure_with_redis_benchmark(&self, (depth, count): (usize, u32)) -> Sample {
        let before = cpu_s(self.process);
        let numbers = [
            ("-p", usize::from(self.address.port())),
            ("-n", count as usize),
            ("-r", KEYS),
            ("-c", CONNECTIONS),
            ("-P", depth),
        ];
        let text = output(
            Command::new("taskset")
                .args(["-c", &CALLERS_CORE.to_string(), "redis-benchmark", "--csv"])
                .args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]))
                .args(self.words),
        );
        let server_us = (cpu_s(self.process) - before) * 1e6 / f64::from(count);
        let figures = text.lines().last().unwrap_or_else(|| panic!("{text}"));
        let rate = figures.split(',').nth(1).and_then(|rate| rate.trim_matches('"').parse().ok());
        Sample { per_second: rate.unwrap_or_else(|| panic!("{text}")), server_us }
    }
}

/// Encodes a command with `key` in place of the placeholder.
fn request(words: &[&str], key: &str) -> Vec<u8> {
    let words = words.iter().map(|word| word.replace("__rand_int__", key));
    let parts = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let parts: Vec<String> = parts.collect();
    format!("*{}\r\n{}", parts.len(), parts.concat()).into_bytes()
}

/// Figures of one command at one depth over all rounds.
#[derive(Default)]
struct Column {
    rates: Figures,
    costs: Figures,
}

impl Column {
    fn push(&mut self, sample: &Sample) {
        self.rates.push(sample.per_second);
        self.costs.push(sample.server_us);
    }
}

pub(crate) fn report() {
    pin(std::process::id(), CALLERS_CORE);
    let config = std::env::temp_dir().join(format!("slidegate-bench-resp-{}.yaml", std::process::id()));
    fs::write(&config, "policies: {api: {quotas: [1000/1m]}}\nlog: {violations: 0}\n").expect("a file");
    let service = Service::start(&config);
    let redis = Redis::start(Flavour::Redis);
    pin(redis.pid(), SERVER_CORE);
    let incr = Subject::new(redis.pid(), redis.port(), INCR);
    let slidegate = [("CL.THROTTLE", THROTTLE), ("SLIDEGATE.CHECK", CHECK)]
        .map(|(name, words)| (name, Subject::new(service.server.id(), service.port, words)));
    println!(
        "{CONNECTIONS} connections, {KEYS} keys; medians (least to most)\n\n| | slidegate | redis-server INCR | \
         ratio | aim |\n|---|---|---|---|---|"
    );
    let mut shares = Figures::default();
    for depth in DEPTHS {
        in_turn(depth, &incr, &slidegate, "", |subject| subject.measure(depth, &mut shares));
    }
    for depth in DEPTHS {
        let measure = |subject: &Subject| subject.measure_with_redis_benchmark(depth);
        in_turn(depth, &incr, &slidegate, ", redis-benchmark", measure);
    }
    println!("\nOur own callers took {shares} of their core.");
    let _ = fs::remove_file(config);
}

/// Measures all subjects in turn, round by round, and prints the results.
fn in_turn(
    (depth, _): (usize, u32),
    incr: &Subject,
    slidegate: &[(&str, Subject); 2],
    by: &str,
    mut measure: impl FnMut(&Subject) -> Sample,
) {
    let (mut beside, mut columns) = (Column::default(), <[Column; 2]>::default());
    for round in 1..=ROUNDS {
        eprintln!("RESP, {depth} deep{by}, round {round} of {ROUNDS} …");
        beside.push(&measure(incr));
        for ((_, subject), column) in slidegate.iter().zip(&mut columns) {
            column.push(&measure(subject));
        }
    }
    for ((name, _), column) in slidegate.iter().zip(columns) {
        let row = |figure: &str, here, beside: &Figures, aim| {
            let label = format!("{name}, {figure}, {depth} deep{by}");
            println!("{}", Row { label, here, beside: beside.clone(), aim });
        };
        row("commands/s", column.rates, &beside.rates, Aim::AtLeast(1.0));
        row("server CPU µs", column.costs, &beside.costs, Aim::Open);
    }
}
