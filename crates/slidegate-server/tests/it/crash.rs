//! Limits in a shared store survive a server that is killed under load.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use crate::process::{ServeProcess, slidegate};

const LIMIT: usize = 300;
const CLIENTS: usize = 8;
/// Number of allowed requests before the kill.
const ALLOWED_BEFORE_KILL: usize = 60;

fn serve(store: &str) -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--store", store]))
}

fn check_body() -> String {
    json!({"quotas": [format!("{LIMIT}/1d sliding-log")], "key": "user:1"}).to_string()
}

/// Returns whether the request was allowed, or `None` without a response.
fn check(address: SocketAddr) -> Option<bool> {
    let body = check_body();
    let length = body.len();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all([head, body].concat().as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let decision: Value = serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok()?;
    let is_allowed = decision["allowed"].as_bool()?;
    // A denial may come from the cache of denials. An allowed request is always counted by the store.
    assert!(!is_allowed || decision["source"] == "store", "{decision}");
    Some(is_allowed)
}

/// Sends requests from all clients until each gets a denial or no response. The store may have counted a request
/// without a response.
fn check_from_all_clients(address: SocketAddr, allowed: &AtomicUsize, without_response: &AtomicUsize) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(true) = check(address).or_else(|| {
                    without_response.fetch_add(1, Ordering::Relaxed);
                    None
                }) {
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

fn assert_limit_survives_a_kill(store: &str) {
    let (allowed, without_response) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut first = serve(store);
    std::thread::scope(|scope| {
        let (address, allowed, without_response) = (first.address(), &allowed, &without_response);
        scope.spawn(move || check_from_all_clients(address, allowed, without_response));
        until("enough requests are allowed", || match allowed.load(Ordering::Relaxed) {
            count if count >= ALLOWED_BEFORE_KILL => Ok(()),
            count => Err(count.to_string()),
        });
        first.signal_and_wait("KILL");
    });
    let allowed_before = allowed.load(Ordering::Relaxed);
    assert!(allowed_before < LIMIT, "the limit was reached before the kill");
    assert_eq!(without_response.load(Ordering::Relaxed), CLIENTS, "each client lost one response");
    let second = serve(store);
    check_from_all_clients(second.address(), &allowed, &without_response);
    assert_eq!(without_response.load(Ordering::Relaxed), CLIENTS, "the second server served all requests");
    let allowed = allowed.load(Ordering::Relaxed);
    assert!(
        (LIMIT - CLIENTS..=LIMIT).contains(&allowed),
        "{allowed} of {LIMIT}, {allowed_before} of them before the kill"
    );
}

#[test]
fn a_limit_in_redis_survives_a_killed_server() {
    let redis = Server::start(Flavour::Redis);
    assert_limit_survives_a_kill(&(redis.url() + "?budget_ms=20000"));
}

#[test]
fn a_limit_in_postgres_survives_a_killed_server() {
    let postgres = Postgres::start();
    let store = format!("{}?budget_ms=20000", postgres.url());
    assert_limit_survives_a_kill(&store);
}
