//! Faults of a store and of its network, with real servers and a proxy that fails on demand.
//!
//! The short form runs with all tests and asserts the guarantees that do not depend on speed. The long form asserts the
//! same, measures, and prints the tables of `docs/benchmarks.md`: `make faults`.

#![cfg(all(feature = "resilience", feature = "postgres", feature = "redis"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backend;
mod fault;
mod fault_run;
mod herd;
mod load;
mod postgres;
mod redis;
mod table;
mod tally;

use backend::Backend;
use fault::Fault;
use fault_run::{FaultRun, LONG, SHORT};
use postgres::PostgresBehindProxy;
use redis::RedisBehindProxy;

/// Faults of the network and of any server.
const COMMON: [Fault; 10] = [
    Fault::Down,
    Fault::RefuseConnections,
    Fault::BlackHole,
    Fault::Slow,
    Fault::Trickle,
    Fault::ResetMidReply,
    Fault::Flap,
    Fault::RestartEmpty,
    Fault::ReadOnly,
    Fault::Reconnect,
];

fn runs<B: Backend>(timing: &fault_run::Timing) -> Vec<FaultRun> {
    let run_fault = |fault: &Fault| {
        eprintln!("{}: {} …", B::NAME, fault.name());
        let run = FaultRun::run::<B>(*fault, timing);
        run.assert_guarantees();
        run
    };
    let control = timing.is_measured.then_some(&Fault::None);
    control.into_iter().chain(&COMMON).chain([&B::FULL]).map(run_fault).collect()
}

#[test]
fn the_guarantees_hold_for_each_fault_of_redis() {
    runs::<RedisBehindProxy>(&SHORT);
}

#[test]
fn the_guarantees_hold_for_each_fault_of_postgres() {
    runs::<PostgresBehindProxy>(&SHORT);
}

#[test]
#[ignore = "takes about 3 minutes: make faults"]
fn measures_the_fault_matrix() {
    let redis = runs::<RedisBehindProxy>(&LONG);
    let postgres = runs::<PostgresBehindProxy>(&LONG);
    println!("{}\n{}", table::of("Redis", &redis), table::of("PostgreSQL", &postgres));
}
