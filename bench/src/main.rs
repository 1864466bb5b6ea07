//! Slidegate beside its peers, in one run. `make bench` starts it; `docs/benchmarks.md` records its output.
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
mod times;
mod tower;
mod traffic;

use measure::{child, instructions};
use subjects::{Bare, Governor, Limit, Slidegate, Subject, Throttlecrab};
use times::times;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => report(),
        ["times"] => times(""),
        ["times", part] => times(part),
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
        ["flood", name] => each(name, &Task::Flood(Limit::Usual)),
        ["flood-of-denied", name] => each(name, &Task::Flood(Limit::One)),
        ["work", name, checks] => each(name, &Task::Work(Limit::Ample, number(checks))),
        ["denied", name, checks] => each(name, &Task::Work(Limit::One, number(checks))),
        _ => eprintln!(
            "usage: slidegate-bench [times [PART] | redis [PART] | postgres [PART] | tower [NAME REQUESTS] | \
             protocols [PART] | server | rls | memory NAME KEYS | \
             flood NAME | flood-of-denied NAME | work NAME CHECKS | denied NAME CHECKS]"
        ),
    }
}

fn report() {
    times("");
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

enum Task {
    Memory(usize),
    Flood(Limit),
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
        Task::Flood(limit) => measure::flood::<S>(*limit),
        Task::Work(limit, checks) => measure::work::<S>(*limit, *checks),
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a whole number")
}
