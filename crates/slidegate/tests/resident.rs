//! Compares the memory store's byte count with the memory of the process. Runs in its own process because the resident
//! size includes all tests.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate::store::{MemoryStore, StoreLimiter, WhenFull};
use slidegate::{Policy, Quota};

const KEYS: usize = 100_000;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Runs both checks one after the other, because the threads of a process share its memory.
#[test]
fn counted_bytes_match_resident_bytes() {
    reused_bytes_stay_within_the_bound();
    counted_bytes_are_resident_and_are_freed();
}

fn counted_bytes_are_resident_and_are_freed() {
    let store = MemoryStore::builder().max_keys(KEYS).max_bytes(1 << 30).when_full(WhenFull::Refuse);
    let limiter = StoreLimiter::new(store.build().unwrap());
    // One shared policy, and an anonymous policy for each request.
    let named = Policy::parse("api", ["20/1h token-bucket", "100/1d strict-window"]).unwrap();
    let quotas: Vec<Quota> = (1..=16).map(|hours| format!("9/{hours}h").parse().unwrap()).collect();
    let policy = |number: usize| {
        if number.is_multiple_of(2) {
            named.clone()
        } else {
            Policy::anonymous(quotas.iter().copied()).unwrap()
        }
    };
    let before = resident_bytes();
    for number in 0..KEYS {
        let check = policy(number);
        assert!(limiter.check_now(check.key(&number.to_be_bytes())).unwrap().is_allowed());
    }
    let (real, counted) = (resident_bytes() - before, limiter.store().bytes());
    // The allocator rounds up.
    assert!(
        (counted / 2..counted + counted / 4).contains(&real),
        "{real} bytes are resident, {counted} are counted"
    );
    for number in 0..KEYS {
        let _ = limiter.reset_now(policy(number).key(&number.to_be_bytes())).unwrap();
    }
    assert!(limiter.store().bytes() < 4_000_000, "{} bytes are left", limiter.store().bytes());
}

/// Fills the table with one kind of record after another. Each kind reuses the memory of the one before.
fn reused_bytes_stay_within_the_bound() {
    let store = MemoryStore::builder().max_keys(KEYS).max_bytes(30_000_000);
    let limiter = StoreLimiter::new(store.build().unwrap());
    let before = resident_bytes();
    let kinds: [&[&str]; 6] = [
        &["90/1h sliding-log", "80/2h sliding-log", "70/3h sliding-log"],
        &["20/1h strict-window"],
        &["20/1h sliding-log", "30/2h sliding-log"],
        &["10/1h", "20/2h"],
        &["100/1h strict-window", "10/1h token-bucket", "20/2h", "10/1d fixed-window"],
        &["20/1h strict-window"],
    ];
    for (number, quotas) in kinds.iter().enumerate() {
        let policy = Policy::parse(&number.to_string(), quotas.iter().copied()).unwrap();
        for key in 0..2 * KEYS {
            assert!(limiter.check_now(policy.key(&key.to_be_bytes())).unwrap().is_allowed());
        }
        let (real, most) = (resident_bytes() - before, limiter.store().max_bytes());
        // The allocator rounds up and leaves gaps.
        assert!(real < most + most / 4, "{quotas:?}: {real} bytes are resident, {most} are allowed");
    }
}
