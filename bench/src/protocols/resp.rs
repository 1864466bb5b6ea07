//! `CL.THROTTLE` and `SLIDEGATE.CHECK` beside `INCR` of a Redis, each server on the same core: asked by redis-benchmark, which
//! anybody can run, and by callers of our own, for redis-benchmark fills its core before it fills that of a server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use memchr::memchr_iter;
use slidegate_testkit::{Flavour, Server as Redis};

use crate::figures::{Aim, Figures, Row};
use crate::load::{Ends, Load};
use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, Server, cpu_s, output, pin};

/// Many short ones: the machine's speed changes between them, and those who are compared take turns.
const ROUNDS: usize = 15;
const CONNECTIONS: usize = 50;
const KEYS: usize = 100_000;
/// How many are sent before the first answer is read, and how many in all.
const DEPTHS: [(usize, u32); 2] = [(16, 800_000), (1, 100_000)];

/// What is asked, as redis-benchmark takes it.
const INCR: &[&str] = &["INCR", KEY];
const THROTTLE: &[&str] = &["CL.THROTTLE", KEY, "15", "30", "60"];
const CHECK: &[&str] = &["SLIDEGATE.CHECK", "api", KEY];
const KEY: &str = "key:__rand_int__";

/// The service, and where it listens.
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
        Self { server, port: port.expect("it says where it listens") }
    }
}

/// A server, and what it is asked.
struct Subject {
    process: u32,
    address: SocketAddr,
    words: &'static [&'static str],
    /// As it goes over the wire, once for each key.
    requests: Vec<Vec<u8>>,
    lines: usize,
}

impl Subject {
    fn new(process: u32, port: u16, words: &'static [&'static str]) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let requests: Vec<_> = (0..KEYS).map(|key| request(words, &format!("{key:012}"))).collect();
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(&requests[0]).expect("it reads");
        let mut answer = [0; 256];
        let length = stream.read(&mut answer).expect("it answers");
        assert!(matches!(answer[0], b':' | b'*'), "{}", String::from_utf8_lossy(&answer[..length]));
        let lines = memchr_iter(b'\n', &answer[..length]).count();
        Self { process, address, words, requests, lines }
    }

    /// What our own callers see, and how much of their core it takes them.
    fn ask(&self, (depth, count): (usize, u32), shares: &mut Figures) -> Sample {
        let (requests, ends) = (self.requests.as_slice(), Ends::AfterLines(self.lines));
        let load = Load { address: self.address, connections: CONNECTIONS, depth, requests, ends };
        let seen = load.ask(self.process, count as usize);
        shares.push(seen.callers_share);
        seen.sample
    }

    /// What redis-benchmark sees.
    fn ask_with_redis_benchmark(&self, (depth, count): (usize, u32)) -> Sample {
        let before = cpu_s(self.process);
        let numbers = [
            ("-p", usize::from(self.address.port())),
            ("-n", count as usize),
            ("-r", KEYS),
            ("-c", CONNECTIONS),
            ("-P", depth),
        ];
        let said = output(
            Command::new("taskset")
                .args(["-c", &CALLERS_CORE.to_string(), "redis-benchmark", "--csv"])
                .args(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]))
                .args(self.words),
        );
        let server_us = (cpu_s(self.process) - before) * 1e6 / f64::from(count);
        let figures = said.lines().last().unwrap_or_else(|| panic!("{said}"));
        let rate = figures.split(',').nth(1).and_then(|rate| rate.trim_matches('"').parse().ok());
        Sample { per_second: rate.unwrap_or_else(|| panic!("{said}")), server_us }
    }
}

/// A command with a key put in.
fn request(words: &[&str], key: &str) -> Vec<u8> {
    let words = words.iter().map(|word| word.replace("__rand_int__", key));
    let parts = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let parts: Vec<String> = parts.collect();
    format!("*{}\r\n{}", parts.len(), parts.concat()).into_bytes()
}

/// One question at one depth, in all rounds.
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
    let ours = [("CL.THROTTLE", THROTTLE), ("SLIDEGATE.CHECK", CHECK)]
        .map(|(name, words)| (name, Subject::new(service.server.id(), service.port, words)));
    println!(
        "{CONNECTIONS} connections, {KEYS} keys; medians (least to most)\n\n| | slidegate | redis-server INCR | \
         ratio | aim |\n|---|---|---|---|---|"
    );
    let mut shares = Figures::default();
    for depth in DEPTHS {
        in_turn(depth, &incr, &ours, "", |subject| subject.ask(depth, &mut shares));
    }
    for depth in DEPTHS {
        let ask = |subject: &Subject| subject.ask_with_redis_benchmark(depth);
        in_turn(depth, &incr, &ours, ", redis-benchmark", ask);
    }
    println!("\nOur own callers took {shares} of their core.");
    let _ = fs::remove_file(config);
}

/// Asks all in turn, round by round, and prints what was seen.
fn in_turn(
    (depth, _): (usize, u32),
    incr: &Subject,
    ours: &[(&str, Subject); 2],
    by: &str,
    mut ask: impl FnMut(&Subject) -> Sample,
) {
    let (mut beside, mut columns) = (Column::default(), <[Column; 2]>::default());
    for round in 1..=ROUNDS {
        eprintln!("RESP, {depth} deep{by}, round {round} of {ROUNDS} …");
        beside.push(&ask(incr));
        for ((_, subject), column) in ours.iter().zip(&mut columns) {
            column.push(&ask(subject));
        }
    }
    for ((name, _), column) in ours.iter().zip(columns) {
        let row = |figure: &str, here, beside: &Figures, aim| {
            let what = format!("{name}, {figure}, {depth} deep{by}");
            println!("{}", Row { what, here, beside: beside.clone(), aim });
        };
        row("commands/s", column.rates, &beside.rates, Aim::AtLeast(1.0));
        row("server CPU µs", column.costs, &beside.costs, Aim::Open);
    }
}
