//! Server-side layouts of one sliding window, each as a minimal script that decides.

use super::memory::UsualLayouts;
use super::peers::redis_benchmark;
use super::rig::Rig;
use crate::figures::Figures;
use crate::sample::count;

const CONNECTIONS: usize = 50;
const PACKED: &str = include_str!("packed.lua");
const ONE_HASH: &str = include_str!("hash.lua");
const TWO_STRINGS: &str = include_str!("two_strings.lua");
const FUNCTION: &str = "slidegate_bench_decide";

/// Command under measurement.
struct Layout {
    name: &'static str,
    command: Vec<String>,
    keys: usize,
    bytes: Option<f64>,
    per_second: Figures,
    server_us: Figures,
}

impl Layout {
    fn new(name: &'static str, opening: [&str; 2], keys: usize, bytes: Option<f64>) -> Self {
        let mut command: Vec<String> = opening.map(str::to_owned).into();
        command.push(keys.to_string());
        // The prefix keeps the keys of the layouts apart.
        let prefix = &opening[1][..opening[1].len().min(4)];
        command.extend((0..keys).map(|_| format!("{prefix}:user:__rand_int__")));
        command.extend(["100", "60000", "120000"].map(str::to_owned));
        Self { name, command, keys, bytes, per_second: Figures::default(), server_us: Figures::default() }
    }

    fn measure(&mut self, rig: &Rig, calls: usize) {
        let sample = redis_benchmark(rig, CONNECTIONS, calls, &self.command);
        self.per_second.push(sample.per_second * count(self.keys));
        self.server_us.push(sample.server_us / count(self.keys));
    }
}

/// Prints the rate, the server CPU time per decision and the bytes per key of each layout.
pub(crate) fn report(rig: &Rig, rounds: usize, bytes: &UsualLayouts) {
    rig.empty();
    let packed = load(rig, PACKED);
    let (hash, strings) = (load(rig, ONE_HASH), load(rig, TWO_STRINGS));
    let library = format!(
        "#!lua name=slidegate_bench\nredis.register_function('{FUNCTION}', function(keys, args)\n{PACKED}\nend)"
    );
    rig.server.command(&["FUNCTION", "LOAD", "REPLACE", &library]).text();
    let incr = ["INCR", "counter:__rand_int__"].map(str::to_owned);
    let mut layouts = [
        Layout {
            command: incr.into(),
            ..Layout::new("plain `INCR`, no decision", [""; 2], 1, Some(bytes.counter))
        },
        Layout::new("one packed string, `EVALSHA`", ["EVALSHA", &packed], 1, Some(bytes.packed)),
        Layout::new("one packed string, `FCALL`", ["FCALL", FUNCTION], 1, Some(bytes.packed)),
        Layout::new("one hash, `EVALSHA`", ["EVALSHA", &hash], 1, Some(bytes.one_hash)),
        Layout::new("two strings, `EVALSHA`", ["EVALSHA", &strings], 1, Some(bytes.two_strings)),
        Layout::new("packed, 16 keys a call", ["EVALSHA", &packed], 16, None),
        Layout::new("packed, 50 keys a call", ["EVALSHA", &packed], 50, None),
    ];
    // Round 0 creates the keys.
    for round in 0..=rounds {
        eprintln!("layouts, round {round} of {rounds} …");
        for layout in &mut layouts {
            let calls = if layout.keys == 1 { 50_000 } else { 200_000 / layout.keys };
            layout.measure(rig, calls);
            if round == 0 {
                (layout.per_second, layout.server_us) = Default::default();
            }
        }
    }
    rig.empty();
    println!(
        "\n| layout, 50 connections | decisions/s | server CPU µs each | bytes per key |\n|---|---|---|---|"
    );
    for Layout { name, bytes, per_second, server_us, .. } in &layouts {
        let bytes = bytes.map_or("–".to_owned(), |bytes| format!("{bytes:.0}"));
        println!("| {name} | {per_second} | {server_us} | {bytes} |");
    }
}

fn load(rig: &Rig, body: &str) -> String {
    let script = format!("local keys, args = KEYS, ARGV\n{body}");
    rig.server.command(&["SCRIPT", "LOAD", &script]).text()
}
