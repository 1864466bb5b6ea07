//! Everything that can go wrong with a store, or on the way to it: real servers, and a proxy that fails on demand.
//!
//! The short form is a part of every test run and asserts what must hold however long things take. The long one asserts
//! the same, measures, and prints the tables of `docs/guarantees.md`: `make faults`.

#![cfg(all(feature = "degrade", feature = "postgres", feature = "redis"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backend;
mod course;
mod fault;
mod herd;
mod load;
mod postgres;
mod redis;
mod table;
mod tally;

use backend::Backend;
use course::{Course, LONG, SHORT};
use fault::Fault;
use postgres::PostgresBehindProxy;
use redis::RedisBehindProxy;

/// Faults of the network and of any server.
const COMMON: [Fault; 10] = [
    Fault::Down,
    Fault::Refused,
    Fault::BlackHole,
    Fault::Slow,
    Fault::Trickle,
    Fault::ResetMidReply,
    Fault::Flap,
    Fault::RestartEmpty,
    Fault::ReadOnly,
    Fault::Reconnect,
];

fn courses<B: Backend>(pace: &course::Pace) -> Vec<Course> {
    let of = |fault: &Fault| {
        eprintln!("{}: {} …", B::NAME, fault.name());
        let course = Course::run::<B>(*fault, pace);
        course.assert_promises();
        course
    };
    let control = pace.is_measured.then_some(&Fault::None);
    control.into_iter().chain(&COMMON).chain([&B::NO_ROOM]).map(of).collect()
}

#[test]
fn redis_may_fail_in_every_way_and_the_promises_hold() {
    courses::<RedisBehindProxy>(&SHORT);
}

#[test]
fn postgres_may_fail_in_every_way_and_the_promises_hold() {
    courses::<PostgresBehindProxy>(&SHORT);
}

#[test]
#[ignore = "takes some three minutes: make faults"]
fn the_whole_matrix_measured() {
    let redis = courses::<RedisBehindProxy>(&LONG);
    let postgres = courses::<PostgresBehindProxy>(&LONG);
    println!("{}\n{}", table::of("Redis", &redis), table::of("PostgreSQL", &postgres));
}
