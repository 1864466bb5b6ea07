//! Concurrent threads on the memory store: exact counts and no shared counters, during evictions and changes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{ManualClock, Policy};

const NOW: u64 = 1_800_000_000_000;
const THREADS: u64 = 8;

fn limiter(max_keys: usize, clock: ManualClock) -> StoreLimiter<MemoryStore<ManualClock>> {
    StoreLimiter::new(MemoryStore::builder().max_keys(max_keys).clock(clock).build().unwrap())
}

/// Number of admitted checks out of `THREADS × each` on one key.
fn admitted(limiter: &StoreLimiter<MemoryStore<ManualClock>>, policy: &Policy, each: u64) -> u64 {
    std::thread::scope(|scope| {
        let run = || {
            (0..each).filter(|_| limiter.check_now(policy.key("hot")).unwrap().is_allowed()).count() as u64
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn threads_on_a_frozen_clock_admit_exactly_the_limit() {
    let limiter = limiter(1000, ManualClock::at(NOW));
    for (limit, quotas) in [
        (1000, &["1000/1m"][..]),
        (1000, &["1000/1m fixed-window"]),
        (30_000, &["30000/1s"]),
        (30_000, &["30000/1s anchor=first-request"]),
        (1000, &["1000/1m token-bucket"]),
        (1000, &["1000/1m strict-window"]),
        (1000, &["1000/1m sliding-log"]),
        (1000, &["5000/1s", "1000/1m strict-window", "100000/1h sliding-log"]),
    ] {
        let policy = Policy::parse(&quotas.join("+"), quotas.iter().copied()).unwrap();
        assert_eq!(admitted(&limiter, &policy, limit / 4), limit, "{quotas:?}");
    }
}

#[test]
fn a_window_that_ends_under_load_admits_the_limit_of_each() {
    // Wide counters change windows under the lock, packed ones by compare-and-swap. About half of the threads see the
    // new window.
    for quota in ["500/1m", "500/1m fixed-window", "30000000/1m", "30000000/1m fixed-window"] {
        let clock = ManualClock::at(NOW);
        let limiter = limiter(1000, clock.clone());
        let policy = Policy::parse("api", [quota]).unwrap();
        let cost = if quota.starts_with("500/") { 1 } else { 60_000 };
        let windows = 50;
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (clock, limiter, policy, total) = (&clock, &limiter, &policy, &total);
                scope.spawn(move || {
                    for step in 0..windows * 200 {
                        if thread == 0 && step % 200 == 199 {
                            clock.advance(60_000);
                        }
                        let decision = limiter.check_now(policy.key("hot").cost(cost)).unwrap();
                        total.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                    }
                });
            }
        });
        let total = total.into_inner();
        // The first thread alone sends almost 200 checks per window. Two adjacent sliding windows admit at most the
        // limit together, because the clock jumps from the start of one window to the start of the next.
        let (least, most) = if quota.ends_with("fixed-window") {
            (windows, windows + 1)
        } else {
            (windows / 2, windows / 2 + 1)
        };
        assert!((least * 199..=most * 500).contains(&total), "{quota}: {total}");
        assert!(limiter.peek_now(policy.key("hot")).unwrap().quotas()[0].used <= 500 * cost);
    }
}

/// Few slots and many keys that evict each other. A key never has more counted than it sent. It would if two keys
/// shared a counter or a write reached the wrong key.
#[test]
fn a_reused_slot_starts_with_no_count() {
    let several = ["1000/1h", "2000/1d"];
    let quotas = [&["1000/1h"][..], &["1000000000/1h"], &several, &["1000/1h token-bucket"]];
    check_reused_slots(100, &quotas);
    // Most keys are denied, so evictions search other pages too.
    check_reused_slots(700, &[&["1/1h"], &["1/1h sliding-log"], &["1/1h", "2/1d"], &["1000/1h"]]);
}

fn check_reused_slots(max_keys: usize, quotas: &[&[&str]]) {
    const KEYS: usize = 3000;
    let limiter = limiter(max_keys, ManualClock::at(NOW));
    let sent: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let parse = |quotas: &&[&str]| Policy::parse("api", quotas.iter().copied()).unwrap();
    let policies: Vec<Policy> = quotas.iter().map(parse).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, sent, policies) = (&limiter, &sent, &policies);
            scope.spawn(move || {
                let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(thread + 1);
                for _ in 0..60_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // A third of the traffic goes to a few keys, so that some keys stay resident.
                    let key = if random.is_multiple_of(3) {
                        random >> 40 & 7
                    } else {
                        (random >> 20) % KEYS as u64
                    };
                    let key = usize::try_from(key).unwrap();
                    sent[key].fetch_add(1, Ordering::SeqCst);
                    let policy = &policies[key % policies.len()];
                    let report = limiter.check_now(policy.key(&format!("key {key}"))).unwrap().quotas()[0];
                    assert!(report.used <= sent[key].load(Ordering::SeqCst) as u64, "key {key}: {report:?}");
                }
            });
        }
    });
    assert!(limiter.store().len() <= max_keys);
    assert!(limiter.store().evicted() > 0, "the test is about evictions");
}

/// Denied keys fill nearly the whole table, and threads compete for the remaining slots.
#[test]
fn denied_keys_stay_denied_under_any_load() {
    let (max_keys, free_slots) = (4 * 175, 40);
    let limiter = limiter(max_keys, ManualClock::at(NOW));
    let policies = ["2/1h", "2/1h token-bucket", "2/1h sliding-log", "2000000000/1h"]
        .map(|quota| Policy::parse(quota, [quota]).unwrap());
    let of = |number: usize| {
        let policy = &policies[number % policies.len()];
        (policy, policy.quotas()[0].capacity())
    };
    let denied: Vec<String> = (0..max_keys - free_slots).map(|number| format!("denied {number}")).collect();
    for (number, key) in denied.iter().enumerate() {
        let (policy, limit) = of(number);
        assert!(limiter.check_now(policy.key(key).cost(limit)).unwrap().is_allowed());
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, of) = (&limiter, &of);
            scope.spawn(move || {
                for step in 0..5000 {
                    let (policy, limit) = of(step);
                    let key = format!("{thread} {step}");
                    assert!(limiter.check_now(policy.key(&key).cost(limit / 2)).unwrap().is_allowed());
                }
            });
        }
    });
    for (number, key) in denied.iter().enumerate() {
        assert!(!limiter.check_now(of(number).0.key(key)).unwrap().is_allowed(), "{key}");
    }
    assert_eq!(limiter.store().len(), max_keys);
}

/// All records are denied, and there are fewer records than pages.
#[test]
fn all_threads_evict_records_for_bytes_concurrently() {
    let (pages, table_bytes) = (60, 60 * 4400);
    let builder = MemoryStore::builder().max_keys(pages * 175).max_bytes(table_bytes + (8 << 10));
    let limiter = StoreLimiter::new(builder.clock(ManualClock::at(NOW)).build().unwrap());
    let policy = Policy::parse("login", ["1/1h", "2/1d"]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, policy) = (&limiter, &policy);
            scope.spawn(move || {
                for step in 0..2000 {
                    let response = limiter.check_now(policy.key(&format!("{thread} {step}")));
                    assert!(response.is_ok(), "{response:?}");
                }
            });
        }
    });
    assert!(limiter.store().len() < pages, "{} records", limiter.store().len());
}

/// Versions of one policy with different counter forms alternate on one key.
#[test]
fn a_limit_that_changes_under_load_loses_no_count() {
    let windows = ["10000/1h", "20000/1h", "1000000000/1h", "1000000000/1h anchor=first-request"];
    let buckets = [
        "10000/1h token-bucket",
        "20000/1h token-bucket",
        "10000/1h token-bucket burst=30000",
        "10000/1h token-bucket burst=40000",
    ];
    // The debt of the last version does not fit into the slot form of the others.
    let large = [buckets[0], buckets[1], buckets[2], "10000/1h token-bucket burst=281474976710656"];
    for forms in [windows, buckets, large] {
        let limiter = limiter(1000, ManualClock::at(NOW));
        let policies = forms.map(|quota| Policy::parse("api", [quota]).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (limiter, policies) = (&limiter, &policies);
                scope.spawn(move || {
                    for step in 0..1000 {
                        let policy = &policies[usize::try_from(thread + step / 10).unwrap() % policies.len()];
                        assert!(limiter.check_now(policy.key("hot")).unwrap().is_allowed());
                    }
                });
            }
        });
        for policy in &policies {
            let used = limiter.peek_now(policy.key("hot")).unwrap().quotas()[0].used;
            assert_eq!(used, THREADS * 1000);
        }
    }
}

/// Each thread refunds all but 1 of the units that it spends.
#[test]
fn checks_and_refunds_under_load_are_all_counted() {
    let limiter = limiter(1000, ManualClock::at(NOW));
    for quota in ["100000/1h", "1000000000/1h", "100000/1h token-bucket", "100000/1h sliding-log"] {
        let policy = Policy::parse(quota, [quota]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (limiter, policy) = (&limiter, &policy);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        assert!(limiter.check_now(policy.key("hot").cost(3)).unwrap().is_allowed());
                        assert!(limiter.refund_now(policy.key("hot").cost(2)).unwrap().is_allowed());
                    }
                });
            }
        });
        let used = limiter.peek_now(policy.key("hot")).unwrap().quotas()[0].used;
        assert_eq!(used, THREADS * 1000, "{quota}");
    }
}
