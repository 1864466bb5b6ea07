//! Slidegate beside its peers, in one run. `make bench` starts it; `docs/benchmarks.md` keeps what it printed.
#![expect(clippy::float_arithmetic, clippy::expect_used, reason = "a benchmark computes ratios and may stop")]

mod figures;
mod load;
mod measure;
mod postgres;
mod protocols;
mod redis;
mod rls;
mod sample;
mod server;
mod subjects;
mod tower;
mod traffic;

use measure::{child, instructions, time_round, time_round_of_16};
use subjects::{Bare, Governor, Limit, Slidegate, Subject, Throttlecrab};
use traffic::{key, uniform, zipf};

const ROUNDS: usize = 7;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => report(),
        ["times"] => times(),
        ["redis"] => redis::report(None),
        ["redis", part] => redis::report(Some(part)),
        ["postgres"] => postgres::report(None),
        ["postgres", part] => postgres::report(Some(part)),
        ["tower"] => tower::report(),
        ["tower", name, requests] => tower::work(name, number(requests)),
        ["protocols"] => protocols::report(None),
        ["protocols", part] => protocols::report(Some(part)),
        ["server"] => server::report(),
        ["server-constant"] => server::constant(),
        ["server-bytes"] => server::bytes(),
        ["rls"] => rls::report(),
        ["rls-constant"] => rls::peers::constant(),
        #[cfg(feature = "limitador")]
        ["rls-limitador"] => rls::peers::limitador(),
        ["memory", name, keys] => each(name, &Task::Memory(number(keys))),
        ["flood", "nothing"] => measure::flood_of_nothing(),
        ["flood", name] => each(name, &Task::Flood),
        ["work", name, checks] => each(name, &Task::Work(Limit::Ample, number(checks))),
        ["denied", name, checks] => each(name, &Task::Work(Limit::One, number(checks))),
        _ => eprintln!(
            "usage: slidegate-bench [times | redis [PART] | postgres [PART] | tower [NAME REQUESTS] | \
             protocols [PART] | server | rls | memory NAME KEYS | \
             flood NAME | work NAME CHECKS | denied NAME CHECKS]"
        ),
    }
}

fn report() {
    times();
    println!(
        "\n| | resident bytes per key, 1 M | 10 M | flood: p99.99 µs | longest µs | MB | instructions | denied |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for name in [Slidegate::NAME, Governor::NAME, Throttlecrab::NAME, Bare::NAME] {
        eprintln!("memory, flood and instructions of {name} …");
        let (one, ten) = (child(&["memory", name, "1000000"]), child(&["memory", name, "10000000"]));
        let flood = if name == Bare::NAME { "– – –".to_owned() } else { child(&["flood", name]) };
        let instructions = ["work", "denied"]
            .map(|mode| instructions(mode, name).map_or("–".to_owned(), |count| format!("{count:.0}")))
            .join(" | ");
        println!("| {name} | {one} | {ten} | {} | {instructions} |", flood.replace(' ', " | "));
    }
    println!("| nothing at all | – | – | {} | – | – |", child(&["flood", "nothing"]).replace(' ', " | "));
}

struct Scenario {
    name: &'static str,
    limit: Limit,
    keys: usize,
    draws: fn(usize, usize, u64) -> Vec<u32>,
    count: usize,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "hot key allowed", limit: Limit::Ample, keys: 1, draws: uniform, count: 2_000_000 },
    Scenario { name: "hot key denied", limit: Limit::One, keys: 1, draws: uniform, count: 2_000_000 },
    Scenario { name: "100 k uniform", limit: Limit::Usual, keys: 100_000, draws: uniform, count: 1_000_000 },
    Scenario { name: "1 M uniform", limit: Limit::Usual, keys: 1_000_000, draws: uniform, count: 1_000_000 },
    Scenario { name: "1 M Zipf", limit: Limit::Usual, keys: 1_000_000, draws: zipf, count: 1_000_000 },
];

fn times() {
    println!("nanoseconds per check, median of {ROUNDS} (least to most); ×: times governor's\n");
    println!("| | threads | slidegate | governor | throttlecrab | bare | × | 16 at a time |");
    println!("|---|---|---|---|---|---|---|---|");
    for scenario in &SCENARIOS {
        for threads in [1, 2] {
            eprintln!("{}, {threads} thread(s) …", scenario.name);
            times_of(scenario, threads);
        }
    }
}

/// All subjects take turns, round by round, so that a noisy moment does not fall on one of them.
fn times_of(scenario: &Scenario, threads: usize) {
    let requests_of =
        |seed| (scenario.draws)(scenario.keys, scenario.count, seed).into_iter().map(|n| key(n as usize));
    let requests: Vec<Vec<String>> = (1..=threads).map(|seed| requests_of(seed as u64).collect()).collect();
    let table = scenario.keys.max(1000);
    let slidegate = Slidegate::new(scenario.limit, table);
    let governor = Governor::new(scenario.limit, table);
    let throttlecrab = Throttlecrab::new(scenario.limit, table);
    let bare = Bare::new(scenario.limit, table);
    for key in (0..scenario.keys).map(key) {
        slidegate.check(&key);
        governor.check(&key);
        throttlecrab.check(&key);
        bare.check(&key);
    }
    let mut columns: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        columns[0].push(time_round(&slidegate, &requests));
        columns[1].push(time_round(&governor, &requests));
        columns[2].push(time_round(&throttlecrab, &requests));
        columns[3].push(time_round(&bare, &requests));
        if threads == 1 {
            columns[4].push(time_round_of_16(&slidegate, &requests[0]));
        }
    }
    for times in &mut columns {
        times.sort_by(f64::total_cmp);
    }
    let show = |times: &Vec<f64>| match times.as_slice() {
        [] => "–".to_owned(),
        times => format!("{:.1} ({:.1}–{:.1})", times[times.len() / 2], times[0], times[times.len() - 1]),
    };
    let ratio = columns[0][ROUNDS / 2] / columns[1][ROUNDS / 2];
    let [ours, governors, crabs, bares, sixteens] = &columns;
    println!(
        "| {} | {threads} | {} | {} | {} | {} | 1/{:.1} | {} |",
        scenario.name,
        show(ours),
        show(governors),
        show(crabs),
        show(bares),
        1.0 / ratio,
        show(sixteens)
    );
}

enum Task {
    Memory(usize),
    Flood,
    Work(Limit, usize),
}

fn each(name: &str, task: &Task) {
    match name {
        "slidegate" => run::<Slidegate>(task),
        "governor" => run::<Governor>(task),
        "throttlecrab" => run::<Throttlecrab>(task),
        "bare" => run::<Bare>(task),
        _ => eprintln!("no limiter is called {name:?}"),
    }
}

fn run<S: Subject>(task: &Task) {
    match task {
        Task::Memory(keys) => measure::memory::<S>(*keys),
        Task::Flood => measure::flood::<S>(),
        Task::Work(limit, checks) => measure::work::<S>(*limit, *checks),
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a whole number")
}
