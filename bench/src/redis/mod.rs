//! The Redis store beside Redis commands and beside limiters in other languages. `make bench-redis` starts it.

mod callers;
mod latency;
mod layouts;
mod memory;
mod peers;
mod rig;

use std::slice::from_ref;

use callers::{Application, CALLERS, run_callers};
use latency::{Arrivals, Latency, Request, open_loop, open_loop_beside};
use peers::{PEERS, incr};
use rig::Rig;

use crate::figures::{Aim, Figures, Row};

const ROUNDS: usize = 7;
/// Many short rounds: one stall of the machine for some milliseconds spoils the 99th percentile of its round, for both
/// subjects.
const LATENCY_ROUNDS: usize = 61;
const ARRIVALS: usize = 25_000;
/// Target: decisions of many callers per `INCR` of `redis-benchmark`.
const AIM_OF_INCR: f64 = 2.5;

/// Runs the named part, or all parts.
pub(crate) fn report(part: Option<&str>) {
    let is_wanted = |name| part.is_none_or(|part| part == name);
    let rig = Rig::start();
    println!("medians (least to most); beside redis-server {}\n", rig.version());
    println!("| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    let mut versions = Vec::new();
    if is_wanted("together") {
        versions = together(&rig);
    }
    if is_wanted("alone") {
        alone(&rig);
    }
    if is_wanted("latency") {
        latencies(&rig);
    }
    let usual = (is_wanted("memory") || is_wanted("layouts")).then(|| memory::usual_layouts(&rig));
    if let Some(usual) = usual.as_ref().filter(|_| is_wanted("memory")) {
        memories(&rig, usual);
    }
    if let Some(usual) = usual.filter(|_| is_wanted("layouts")) {
        layouts::report(&rig, ROUNDS, &usual);
    }
    if !versions.is_empty() {
        println!("\npeers: {}", versions.join("; "));
    }
}

/// Measures many concurrent callers. Returns the versions of the other limiters.
fn together(rig: &Rig) -> Vec<String> {
    let application = [Application::new(rig, "together")];
    application[0].fill(rig);
    incr(rig, 50, 100_000);
    let (mut slidegate, mut slidegate_us, mut incrs, mut incrs_us) = <[Figures; 4]>::default().into();
    let mut peers: Vec<Figures> = PEERS.iter().map(|_| Figures::default()).collect();
    let mut versions = Vec::new();
    for round in 1..=ROUNDS {
        eprintln!("{CALLERS} callers at once, round {round} of {ROUNDS} …");
        let sample = run_callers(rig, &application, CALLERS, 200_000);
        slidegate.push(sample.per_second);
        slidegate_us.push(sample.server_us);
        let sample = incr(rig, 50, 100_000);
        incrs.push(sample.per_second);
        incrs_us.push(sample.server_us);
        for (peer, figures) in PEERS.iter().zip(&mut peers) {
            let (sample, of) = peer.run(rig);
            figures.push(sample.per_second);
            if !versions.contains(&of) {
                versions.push(of);
            }
        }
    }
    rig.empty();
    let row = |name: &str, beside: Figures, aim| {
        let label = format!("{CALLERS} callers, 100 k keys: decisions/s, {name}");
        Row { label, here: slidegate.clone(), beside, aim: Aim::AtLeast(aim) }
    };
    println!("{}", row("`INCR` on 50 connections", incrs, AIM_OF_INCR));
    for (peer, beside) in PEERS.iter().zip(peers) {
        println!("{}", row(&format!("{} ({})", peer.name, peer.way), beside, 5.0));
    }
    let label = format!("{CALLERS} callers: server CPU µs per decision, `INCR` on 50 connections");
    println!("{}", Row { label, here: slidegate_us, beside: incrs_us, aim: Aim::Open });
    versions
}

/// Measures callers that share no connection, so that no call joins a batch.
fn alone(rig: &Rig) {
    let one = [Application::new(rig, "alone")];
    let many: Vec<Application> = (0..50).map(|_| Application::new(rig, "alone")).collect();
    one[0].fill(rig);
    incr(rig, 50, 100_000);
    let (mut ones, mut ones_incr, mut manys, mut manys_incr) = <[Figures; 4]>::default().into();
    for round in 1..=ROUNDS {
        eprintln!("lone callers, round {round} of {ROUNDS} …");
        ones.push(run_callers(rig, &one, 1, 20_000).server_us);
        ones_incr.push(incr(rig, 1, 20_000).server_us);
        manys.push(run_callers(rig, &many, 50, 80_000).server_us);
        manys_incr.push(incr(rig, 50, 80_000).server_us);
    }
    rig.empty();
    let aim = Aim::AtMost(1.7);
    let label = "one lone caller: server CPU µs per decision, `INCR` on one connection".to_owned();
    println!("{}", Row { label, here: ones, beside: ones_incr, aim });
    let label = "50 lone callers: server CPU µs per decision, `INCR` on 50 connections".to_owned();
    println!("{}", Row { label, here: manys, beside: manys_incr, aim });
}

/// Measures latency at half of the saturation rate, and at half of the target rate.
fn latencies(rig: &Rig) {
    let application = Application::new(rig, "saturation");
    application.fill(rig);
    // Measured right before its use, because the speed of the machine drifts within an hour.
    let [mut saturation, mut incrs] = <[Figures; 2]>::default();
    for _ in 0..3 {
        saturation.push(run_callers(rig, from_ref(&application), CALLERS, 200_000).per_second);
        incrs.push(incr(rig, 50, 100_000).per_second);
    }
    rig.empty();
    latencies_at(rig, "half of the most", saturation.median() / 2.0, Aim::AtMost(2.0));
    latencies_at(rig, "half of 2.5 times `INCR`", AIM_OF_INCR * incrs.median() / 2.0, Aim::Open);
}

/// Compares checks with a bare `PING` on the same path, first at the same rate and alone, then among the checks.
fn latencies_at(rig: &Rig, which: &str, per_second: f64, of_p99: Aim) {
    // No other part of the run uses this policy.
    let application = Application::new(rig, which);
    application.fill(rig);
    let requests = [Request::Check(application), Request::ping(rig)];
    let [mut alone, mut beside] = <[Latencies; 2]>::default();
    for round in 1..=LATENCY_ROUNDS {
        eprintln!("latency at {which}, round {round} of {LATENCY_ROUNDS} …");
        let [first, second] =
            [0, LATENCY_ROUNDS].map(|seed| Arrivals { per_second, count: ARRIVALS, seed: seed + round });
        alone.push(&requests.each_ref().map(|request| open_loop(rig, request, &first)));
        beside.push(&open_loop_beside(rig, &requests, &second));
    }
    rig.empty();
    let rate = format!("{:.0} k/s", per_second / 1000.0);
    alone.print(&format!("at {which}, {rate}"), "bare `PING` at the same rate", of_p99);
    beside.print(&format!("at {which}, {rate}"), "bare `PING` among them", of_p99);
}

/// Percentiles 50, 95 and 99.
#[derive(Default)]
struct Latencies([Percentile; 3]);

/// Figures of both subjects and the ratio within each round. The rounds alternate, because the speed of the machine
/// drifts within a minute.
#[derive(Default)]
struct Percentile {
    slidegate: Figures,
    other: Figures,
    ratios: Figures,
}

impl Latencies {
    fn push(&mut self, [slidegate, other]: &[Latency; 2]) {
        let of = |latency: &Latency| [latency.p50, latency.p95, latency.p99];
        for (percentile, (slidegate, other)) in
            self.0.iter_mut().zip(of(slidegate).into_iter().zip(of(other)))
        {
            percentile.slidegate.push(slidegate);
            percentile.other.push(other);
            percentile.ratios.push(slidegate / other);
        }
    }

    fn print(self, here: &str, beside: &str, of_p99: Aim) {
        let of = [("p50", Aim::Open), ("p95", Aim::Open), ("p99", of_p99)];
        for ((of, aim), Percentile { slidegate, other, ratios }) in of.into_iter().zip(self.0) {
            let verdict = aim.verdict(ratios.median());
            println!("| {here}: {of} µs, {beside} | {slidegate} | {other} | {verdict} |");
        }
    }
}

fn memories(rig: &Rig, usual: &memory::UsualLayouts) {
    eprintln!("memory of counters …");
    let slidegate = memory::slidegate(rig, "100/1m", 1);
    let row = |label: &str, here: f64, beside: f64, aim| {
        println!(
            "{}",
            Row { label: format!("bytes per key: {label}"), here: here.into(), beside: beside.into(), aim }
        );
    };
    row("sliding-window, two strings", slidegate, usual.two_strings, Aim::AtMost(0.6));
    row("sliding-window, one hash", slidegate, usual.one_hash, Aim::Open);
    row("sliding-window, plain counter", slidegate, usual.counter, Aim::Open);
    row(
        "token-bucket, plain counter",
        memory::slidegate(rig, "100/1m token-bucket", 1),
        usual.counter,
        Aim::Open,
    );
    eprintln!("memory of logs …");
    let set = memory::sorted_set(rig, 100);
    row(
        "sliding-log of 100, sorted set of 100",
        memory::slidegate(rig, "100/1m sliding-log", 100),
        set,
        Aim::AtMost(1.0 / 6.0),
    );
    row(
        "strict-window, all 16 pairs, sorted set of 100",
        memory::slidegate(rig, "100/1m strict-window", 100),
        set,
        Aim::Open,
    );
    let set = memory::sorted_set(rig, 200);
    row(
        "sliding-log of 200, sorted set of 200",
        memory::slidegate(rig, "200/1m sliding-log", 200),
        set,
        Aim::AtMost(1.0 / 30.0),
    );
}
