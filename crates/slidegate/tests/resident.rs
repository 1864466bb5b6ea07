//! What the memory store says that it takes is what the process takes. In a process of its own, whose memory is nobody
//! else's.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate::{Limiter, MemoryStore, Policy, Quota, WhenFull};

const KEYS: usize = 100_000;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// One after the other: the memory of a process is that of all its threads.
#[test]
fn what_is_counted_is_what_is_taken() {
    bytes_that_change_hands_stay_within_the_bound();
    counted_bytes_are_real_and_are_given_back();
}

fn counted_bytes_are_real_and_are_given_back() {
    let store = MemoryStore::builder().max_keys(KEYS).max_bytes(1 << 30).when_full(WhenFull::Refuse);
    let limiter = Limiter::new(store.build().unwrap());
    // One for all, and one that each request brings along.
    let named = Policy::parse("api", ["20/1h token-bucket", "100/1d strict-window"]).unwrap();
    let quotas: Vec<Quota> = (1..=16).map(|hours| format!("9/{hours}h").parse().unwrap()).collect();
    let policy = |number: usize| {
        if number.is_multiple_of(2) {
            named.clone()
        } else {
            Policy::anonymous(quotas.iter().copied()).unwrap()
        }
    };
    let before = resident();
    for number in 0..KEYS {
        let check = policy(number);
        assert!(limiter.check_now(check.key(&number.to_be_bytes())).unwrap().is_allowed());
    }
    let (real, counted) = (resident() - before, limiter.store().bytes());
    // The allocator rounds up.
    assert!((counted / 2..counted + counted / 4).contains(&real), "{real} are taken, {counted} are counted");
    for number in 0..KEYS {
        let _ = limiter.reset_now(policy(number).key(&number.to_be_bytes())).unwrap();
    }
    assert!(limiter.store().bytes() < 4_000_000, "{} are left", limiter.store().bytes());
}

/// One kind after the other in a table that is full all the while: what one leaves behind is of use to the next.
fn bytes_that_change_hands_stay_within_the_bound() {
    let store = MemoryStore::builder().max_keys(KEYS).max_bytes(30_000_000);
    let limiter = Limiter::new(store.build().unwrap());
    let before = resident();
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
        let (real, most) = (resident() - before, limiter.store().max_bytes());
        // Beside what it rounds up, the allocator leaves gaps.
        assert!(real < most + most / 4, "{quotas:?}: {real} are taken, {most} are allowed");
    }
}
