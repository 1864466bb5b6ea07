//! `CL.THROTTLE` and `SLIDEGATE.CHECK` beside `INCR` of a Redis, asked by redis-benchmark, each server on the same core.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use slidegate_testkit::{Flavour, Server as Redis};

use crate::figures::{Aim, Figures, Row};
use crate::sample::{CALLERS_CORE, SERVER_CORE, Sample, Server, cpu_s, output, pin};

const ROUNDS: usize = 7;
const CONNECTIONS: &str = "50";
const KEYS: &str = "100000";
/// How many are sent before the first answer is read, and how many in all.
const DEPTHS: [(&str, u32); 2] = [("16", 1_500_000), ("1", 150_000)];

/// What is asked.
const INCR: &[&str] = &["INCR", "key:__rand_int__"];
const THROTTLE: &[&str] = &["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"];
const CHECK: &[&str] = &["SLIDEGATE.CHECK", "api", "key:__rand_int__"];

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

/// What redis-benchmark measures of the server `process` at `port`.
fn ask(process: u32, port: u16, (depth, count): (&str, u32), words: &[&str]) -> Sample {
    let before = cpu_s(process);
    let said = output(
        Command::new("taskset")
            .args(["-c", &CALLERS_CORE.to_string(), "redis-benchmark", "--csv", "-p", &port.to_string()])
            .args(["-n", &count.to_string(), "-r", KEYS, "-c", CONNECTIONS, "-P", depth])
            .args(words),
    );
    let server_us = (cpu_s(process) - before) * 1e6 / f64::from(count);
    let figures = said.lines().last().unwrap_or_else(|| panic!("{said}"));
    let rate = figures.split(',').nth(1).and_then(|rate| rate.trim_matches('"').parse().ok());
    Sample { per_second: rate.unwrap_or_else(|| panic!("{said}")), server_us }
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
    let config = std::env::temp_dir().join(format!("slidegate-bench-resp-{}.yaml", std::process::id()));
    fs::write(&config, "policies: {api: {quotas: [1000/1m]}}\nlog: {violations: 0}\n").expect("a file");
    let service = Service::start(&config);
    let redis = Redis::start(Flavour::Redis);
    pin(redis.pid(), SERVER_CORE);
    println!(
        "{CONNECTIONS} connections, {KEYS} keys; medians (least to most)\n\n| | slidegate | redis-server INCR | \
         ratio | aim |\n|---|---|---|---|---|"
    );
    for depth in DEPTHS {
        let [mut incr, mut throttle, mut check] = <[Column; 3]>::default();
        for round in 1..=ROUNDS {
            eprintln!("RESP, {} deep, round {round} of {ROUNDS} …", depth.0);
            incr.push(&ask(redis.pid(), redis.port(), depth, INCR));
            throttle.push(&ask(service.server.id(), service.port, depth, THROTTLE));
            check.push(&ask(service.server.id(), service.port, depth, CHECK));
        }
        for (name, column) in [("CL.THROTTLE", throttle), ("SLIDEGATE.CHECK", check)] {
            let what = |figure: &str| format!("{name}, {figure}, {} deep", depth.0);
            let rates = Row {
                what: what("commands/s"),
                here: column.rates,
                beside: incr.rates.clone(),
                aim: Aim::AtLeast(1.0),
            };
            let costs = Row {
                what: what("server CPU µs"),
                here: column.costs,
                beside: incr.costs.clone(),
                aim: Aim::Open,
            };
            println!("{rates}\n{costs}");
        }
    }
    let _ = fs::remove_file(config);
}
