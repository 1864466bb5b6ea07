//! A server that is killed in the midst of its work, and the one that comes after it: limits are the store's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use crate::process::{ServeProcess, slidegate};

const LIMIT: usize = 300;
const ASKERS: usize = 8;
/// How many are allowed before it is killed.
const SOME: usize = 60;

fn serve(store: &str) -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--store", store]))
}

fn asked_for() -> String {
    json!({"quotas": [format!("{LIMIT}/1d sliding-log")], "key": "user:1"}).to_string()
}

/// What the server decided; none if it did not live to say so.
fn ask(address: SocketAddr) -> Option<bool> {
    let body = asked_for();
    let length = body.len();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all([head, body].concat().as_bytes()).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let answer: Value = serde_json::from_str(said.split_once("\r\n\r\n")?.1).ok()?;
    let is_allowed = answer["allowed"].as_bool()?;
    // A denial may be remembered; what is allowed is counted.
    assert!(!is_allowed || answer["source"] == "store", "{answer}");
    Some(is_allowed)
}

/// Asks from all sides until it is told no, or nothing at all. Whoever was told nothing may have been counted.
fn ask_from_all_sides(address: SocketAddr, allowed: &AtomicUsize, untold: &AtomicUsize) {
    std::thread::scope(|scope| {
        for _ in 0..ASKERS {
            scope.spawn(|| {
                while let Some(true) = ask(address).or_else(|| {
                    untold.fetch_add(1, Ordering::Relaxed);
                    None
                }) {
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

fn nothing_is_given_twice_and_only_what_was_under_way_is_lost(store: &str) {
    let (allowed, untold) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut first = serve(store);
    std::thread::scope(|scope| {
        let (address, allowed, untold) = (first.address(), &allowed, &untold);
        scope.spawn(move || ask_from_all_sides(address, allowed, untold));
        until("some are allowed", || match allowed.load(Ordering::Relaxed) {
            some if some >= SOME => Ok(()),
            few => Err(few.to_string()),
        });
        first.signal_and_wait("KILL");
    });
    let before = allowed.load(Ordering::Relaxed);
    assert!(before < LIMIT, "it was killed too late to show anything");
    assert_eq!(untold.load(Ordering::Relaxed), ASKERS, "each was told nothing once");
    let second = serve(store);
    ask_from_all_sides(second.address(), &allowed, &untold);
    assert_eq!(untold.load(Ordering::Relaxed), ASKERS, "nobody was told nothing by the second");
    let allowed = allowed.load(Ordering::Relaxed);
    assert!((LIMIT - ASKERS..=LIMIT).contains(&allowed), "{allowed} of {LIMIT}, {before} of them before");
}

#[test]
fn a_limit_in_redis_outlives_a_server_that_is_killed() {
    let redis = Server::start(Flavour::Redis);
    nothing_is_given_twice_and_only_what_was_under_way_is_lost(&(redis.url() + "?budget_ms=20000"));
}

#[test]
fn a_limit_in_postgres_outlives_a_server_that_is_killed() {
    let postgres = Postgres::start();
    let store = format!("{}?budget_ms=20000", postgres.url());
    nothing_is_given_twice_and_only_what_was_under_way_is_lost(&store);
}
