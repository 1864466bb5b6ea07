//! Benchmark programs of peers, on the callers' core.

use std::process::Command;

use super::callers::KEYS;
use super::rig::Rig;
use crate::sample::{Sample, output};

/// Folder where `make bench-redis` installs the peers.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/peers");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Baseline: `INCR` of random keys, one command at a time on each connection.
pub(crate) fn incr(rig: &Rig, connections: usize, commands: usize) -> Sample {
    redis_benchmark(rig, connections, commands, &["INCR".to_owned(), "counter:__rand_int__".to_owned()])
}

/// Runs a command with `__rand_int__` replaced by one of 100,000 numbers.
pub(crate) fn redis_benchmark(rig: &Rig, connections: usize, commands: usize, words: &[String]) -> Sample {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &rig.port(), "-c", &connections.to_string(), "-n", &commands.to_string()]);
    command.args(["-r", &KEYS.to_string(), "--csv"]).args(words);
    rig.sample(commands, || {
        let text = output(&mut command);
        let line = text.lines().last().unwrap_or_default();
        let rate = line.split("\",\"").nth(1).and_then(|rate| rate.parse().ok());
        rate.unwrap_or_else(|| panic!("no figures of redis-benchmark: {text}"))
    })
}

/// Limiter in another language, in its own process.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) way: &'static str,
    program: &'static str,
    words: &'static [&'static str],
    decisions: usize,
}

pub(crate) const PEERS: [Peer; 6] = [
    node("one command after another", &[]),
    node("pipelined by ioredis", &["pipelined"]),
    python("limits, moving window", "64 threads", &["moving", "threads"]),
    python("limits, moving window", "asyncio", &["moving", "asyncio"]),
    python("limits, sliding window counter", "64 threads", &["counter", "threads"]),
    python("limits, sliding window counter", "asyncio", &["counter", "asyncio"]),
];

const fn node(way: &'static str, words: &'static [&'static str]) -> Peer {
    Peer { name: "rate-limiter-flexible", way, program: "node", words, decisions: 30_000 }
}

const fn python(name: &'static str, way: &'static str, words: &'static [&'static str]) -> Peer {
    Peer { name, way, program: "python3", words, decisions: 6400 }
}

impl Peer {
    /// Runs the peer and returns its rate and the versions of its libraries.
    pub(crate) fn run(&self, rig: &Rig) -> (Sample, String) {
        let script = if self.program == "node" { "node.js" } else { "python.py" };
        let mut command = Command::new(self.program);
        command.arg(format!("{SCRIPTS}/{script}")).args([&rig.port(), &self.decisions.to_string()]);
        command.args(self.words);
        command.env("NODE_PATH", format!("{TOOLS}/node/node_modules"));
        command.env("PYTHONPATH", format!("{TOOLS}/python"));
        let mut versions = String::new();
        let sample = rig.sample(self.decisions, || {
            let text = output(&mut command);
            let (rate, of) = text.trim().split_once(' ').unwrap_or_default();
            of.clone_into(&mut versions);
            rate.parse().unwrap_or_else(|_| panic!("no figures of {}: {text}", self.name))
        });
        (sample, versions)
    }
}
