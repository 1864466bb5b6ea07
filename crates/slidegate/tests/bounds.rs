//! The memory store's bounds: floods, denied keys, expired keys, bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate::store::{MemoryStore, StoreLimiter, WhenFull};
use slidegate::{ManualClock, Policy};

const NOW: u64 = 1_800_000_000_000;
const HOUR: u64 = 3_600_000;

fn limiter(max_keys: usize, when_full: WhenFull) -> (StoreLimiter<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::at(NOW);
    let store =
        MemoryStore::builder().max_keys(max_keys).when_full(when_full).clock(clock.clone()).build().unwrap();
    (StoreLimiter::new(store), clock)
}

fn flood(limiter: &StoreLimiter<MemoryStore<ManualClock>>, policy: &Policy, name: &str, count: usize) {
    for number in 0..count {
        assert!(limiter.check_now(policy.key(&format!("{name} {number}"))).unwrap().is_allowed());
        assert!(limiter.store().len() <= limiter.store().max_keys());
    }
}

#[test]
fn a_flood_stays_within_the_cap_and_evicts_no_denied_key() {
    for quotas in
        [&["5/1h"][..], &["5000000000/1h"], &["5/1h token-bucket"], &["5/1h", "9/1d"], &["5/1h sliding-log"]]
    {
        for max_keys in [1, 100, 1000, 5000] {
            let (limiter, _) = limiter(max_keys, WhenFull::Evict);
            let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
            let limit = policy.quotas()[0].limit();
            let denied: Vec<String> =
                (0..max_keys.div_ceil(4)).map(|number| format!("denied {number}")).collect();
            for key in &denied {
                assert!(limiter.check_now(policy.key(key).cost(limit)).unwrap().is_allowed());
            }
            let bytes = limiter.store().bytes();
            if max_keys == 1 {
                // The only key is evicted for the new one, as documented.
                flood(&limiter, &policy, "flood", 100);
                assert_eq!(limiter.store().len(), 1);
                continue;
            }
            flood(&limiter, &policy, "flood", 10 * max_keys);
            for key in &denied {
                assert!(
                    !limiter.check_now(policy.key(key)).unwrap().is_allowed(),
                    "{quotas:?} {max_keys} {key}"
                );
            }
            // A second flood replaces these keys; the memory must not grow.
            flood(&limiter, &policy, "second flood", 10 * max_keys);
            assert_eq!(limiter.store().len(), max_keys, "{quotas:?}");
            assert!(
                limiter.store().bytes() <= bytes + max_keys * 1024,
                "{quotas:?}: {}",
                limiter.store().bytes()
            );
            assert!(limiter.store().evicted() > 0);
        }
    }
}

/// A key with little remaining still denies higher costs, so it must survive.
#[test]
fn a_flood_evicts_no_key_with_little_remaining() {
    for quota in
        ["1000000/1h", "1000000/1h token-bucket", "1000000/1h fixed-window", "1000000/1h sliding-log"]
    {
        let (limiter, _) = limiter(1000, WhenFull::Evict);
        let policy = Policy::parse("api", [quota]).unwrap();
        for number in 0..250 {
            let key = format!("busy {number}");
            assert!(limiter.check_now(policy.key(&key).cost(999_999)).unwrap().is_allowed());
        }
        flood(&limiter, &policy, "flood", 10_000);
        for number in 0..250 {
            let key = format!("busy {number}");
            assert!(!limiter.check_now(policy.key(&key).cost(4096)).unwrap().is_allowed(), "{quota} {key}");
        }
        assert!(limiter.store().evicted() > 0);
    }
}

#[test]
fn a_table_holds_max_keys_before_it_evicts() {
    for max_keys in [1, 10, 1000, 100_000] {
        let (limiter, _) = limiter(max_keys, WhenFull::Evict);
        let policy = Policy::parse("api", ["5/1h"]).unwrap();
        flood(&limiter, &policy, "key", max_keys);
        assert_eq!((limiter.store().len(), limiter.store().evicted()), (max_keys, 0));
        for number in 0..max_keys {
            let report = limiter.peek_now(policy.key(&format!("key {number}"))).unwrap().quotas()[0];
            assert_eq!(report.used, 1, "key {number} of {max_keys}");
        }
    }
}

#[test]
fn expired_keys_are_evicted_first() {
    let (limiter, clock) = limiter(10_000, WhenFull::Evict);
    for quotas in [&["5/1h"][..], &["5/1h token-bucket"], &["5/1h", "9/2h"]] {
        let policy = Policy::parse(&quotas.join("+"), quotas.iter().copied()).unwrap();
        flood(&limiter, &policy, "old", 10_000);
        clock.advance(4 * HOUR + 1);
        let evicted = limiter.store().evicted();
        flood(&limiter, &policy, "new", 10_000);
        assert_eq!(limiter.store().evicted(), evicted, "{quotas:?}: only expired keys were removed");
        for number in 0..10_000 {
            let report = limiter.peek_now(policy.key(&format!("new {number}"))).unwrap().quotas()[0];
            assert_eq!(report.used, 1, "{quotas:?} {number}");
        }
        clock.advance(4 * HOUR + 1);
    }
}

#[test]
fn expired_keys_are_swept() {
    for (quota, frees_bytes) in [("1000/1h sliding-log", true), ("1000/1h token-bucket", false)] {
        let (limiter, clock) = limiter(10_000, WhenFull::Evict);
        let policy = Policy::parse("api", [quota]).unwrap();
        for number in 0..5000 {
            for _ in 0..3 {
                let _ = limiter.check_now(policy.key(&format!("old {number}"))).unwrap();
                clock.advance(1);
            }
        }
        let bytes = limiter.store().bytes();
        clock.advance(2 * HOUR);
        // Each page visit that finds no count sweeps one of the page's 64 lines. A page holds about 86 keys, so two
        // peeks at each key visit each page about 172 times, regardless of the hashes.
        for number in (0..5000).chain(0..5000) {
            let _ = limiter.peek_now(policy.key(&format!("old {number}"))).unwrap();
        }
        assert_eq!(limiter.store().len(), 0, "{quota}: all are removed");
        assert_eq!(limiter.store().bytes() < bytes, frees_bytes, "{quota}");
    }
}

#[test]
fn a_full_table_that_rejects_new_keys_keeps_its_keys() {
    let (limiter, clock) = limiter(500, WhenFull::Refuse);
    let policy = Policy::parse("api", ["5/1h"]).unwrap();
    flood(&limiter, &policy, "old", 500);
    let error = limiter.check_now(policy.key("new")).unwrap_err();
    assert!(error.is_full() && error.is_transient());
    assert_eq!(error.to_string(), "the memory store is full: max_keys is reached");
    assert!(limiter.peek_now(policy.key("new")).unwrap().is_allowed(), "a peek takes no slot");
    assert_eq!(limiter.check_now(policy.key("old 7")).unwrap().remaining(), 3);
    assert_eq!((limiter.store().len(), limiter.store().evicted()), (500, 0));
    clock.advance(2 * HOUR);
    assert!(limiter.check_now(policy.key("new")).unwrap().is_allowed());
}

/// A new key finds expired keys on any page, if the table has no more pages than a new key probes.
#[test]
fn a_full_table_that_rejects_new_keys_replaces_expired_keys() {
    for max_keys in [175, 17 * 175] {
        let (limiter, clock) = limiter(max_keys, WhenFull::Refuse);
        let [long, short] = ["5/1h", "5/1s"].map(|quota| Policy::parse(quota, [quota]).unwrap());
        flood(&limiter, &long, "old", max_keys - 10);
        flood(&limiter, &short, "over", 10);
        clock.advance(2000);
        flood(&limiter, &long, "new", 10);
        assert_eq!((limiter.store().len(), limiter.store().evicted()), (max_keys, 0));
        assert!(limiter.check_now(long.key("one more")).unwrap_err().is_full());
    }
}

#[test]
fn operations_that_spend_nothing_take_no_slot() {
    for quotas in [&["5/1h", "9/1d"][..], &["5/1h token-bucket"]] {
        let (limiter, _) = limiter(100, WhenFull::Evict);
        let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
        for number in 0..1000 {
            let key = format!("key {number}");
            let _ = limiter.peek_now(policy.key(&key)).unwrap();
            let _ = limiter.check_now(policy.key(&key).cost(0)).unwrap();
            let _ = limiter.check_now(policy.key(&key).cost(6)).unwrap();
            let _ = limiter.refund_now(policy.key(&key)).unwrap();
            let _ = limiter.reset_now(policy.key(&key)).unwrap();
        }
        assert!(limiter.store().is_empty(), "{quotas:?}");
        assert!(limiter.check_now(policy.key("key")).unwrap().is_allowed());
        assert_eq!(limiter.store().len(), 1, "{quotas:?}");
        let _ = limiter.reset_now(policy.key("key")).unwrap();
        assert!(limiter.store().is_empty(), "{quotas:?}");
    }
}

fn small(max_bytes: usize, when_full: WhenFull) -> (StoreLimiter<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::at(NOW);
    let builder = MemoryStore::builder().max_keys(100).max_bytes(max_bytes).when_full(when_full);
    (StoreLimiter::new(builder.clock(clock.clone()).build().unwrap()), clock)
}

#[test]
fn bytes_are_bounded_and_a_rejection_changes_nothing() {
    let (limiter, clock) = small(64 << 10, WhenFull::Refuse);
    let policy = Policy::parse("api", ["1000000/1h sliding-log"]).unwrap();
    let mut admitted = 0;
    let error = loop {
        clock.advance(1);
        match limiter.check_now(policy.key("log")) {
            Ok(decision) => admitted += u64::from(decision.is_allowed()),
            Err(error) => break error,
        }
        assert!(limiter.store().bytes() <= limiter.store().max_bytes());
    };
    assert_eq!(error.to_string(), "the memory store is full: max_bytes is reached");
    assert!(admitted > 10_000, "{admitted}");
    assert_eq!(limiter.peek_now(policy.key("log")).unwrap().quotas()[0].used, admitted);
    let denied = limiter.check_now(policy.key("log").cost(1_000_000)).unwrap();
    assert!(!denied.is_allowed(), "a denial needs no memory and succeeds");
    assert!((0..1000).any(|number| limiter.check_now(policy.key(&format!("other {number}"))).is_err()));
    assert!(limiter.store().bytes() <= limiter.store().max_bytes());
    let keys = limiter.store().len();
    assert!(limiter.check_now(policy.key("one more")).is_err());
    assert_eq!(limiter.store().len(), keys, "a rejection evicts nothing");
    let packed = Policy::parse("small", ["5/1h"]).unwrap();
    assert!(
        limiter.check_now(packed.key("a")).unwrap().is_allowed(),
        "a packed counter needs no extra bytes"
    );
    // The logs expired and are swept, which frees bytes.
    clock.advance(2 * HOUR);
    assert!((0..200).any(|number| limiter.check_now(policy.key(&format!("later {number}"))).is_ok()));
}

/// Regression: after the bytes were used up, each further check of a record failed.
#[test]
fn an_evicting_table_evicts_for_bytes() {
    for quota in ["20/1h strict-window", "20/1h token-bucket", "1000/1h sliding-log"] {
        // One page, and several pages of which some hold no evictable record.
        for max_keys in [100, 5 * 175] {
            let clock = ManualClock::at(NOW);
            let builder = MemoryStore::builder().max_keys(max_keys).max_bytes(40 << 10);
            let limiter = StoreLimiter::new(builder.clock(clock.clone()).build().unwrap());
            let policy = Policy::parse("api", [quota]).unwrap();
            for round in 0..40 {
                for number in 0..100 {
                    clock.advance(1);
                    let response = limiter.check_now(policy.key(&format!("key {number}")));
                    assert!(
                        response.is_ok(),
                        "{quota}, {max_keys}, round {round}, key {number}: {response:?}"
                    );
                    assert!(limiter.store().bytes() <= limiter.store().max_bytes(), "{quota}");
                }
            }
            let denied = limiter.check_now(policy.key("key 7").cost(10_000)).unwrap();
            assert!(denied.is_never(), "{quota}");
        }
    }
}

/// Regression: a new record was rejected if its page held no other record and the few records elsewhere were denied or
/// not probed.
#[test]
fn bytes_are_freed_on_any_page() {
    let clock = ManualClock::at(NOW);
    let (max_keys, table_bytes) = (60 * 175, 60 * 4400);
    let builder = MemoryStore::builder().max_keys(max_keys).max_bytes(table_bytes + (8 << 10));
    let limiter = StoreLimiter::new(builder.clock(clock).build().unwrap());
    let denied = Policy::parse("denied", ["1/366d", "2/365d"]).unwrap();
    let policy = Policy::parse("login", ["5/1m", "50/1d"]).unwrap();
    for (policy, count) in [(&denied, 500), (&policy, 1000), (&denied, 100), (&policy, 500)] {
        for number in 0..count {
            let key = format!("{} {number}", policy.name());
            let response = limiter.check_now(policy.key(&key));
            assert!(response.is_ok(), "{key}: {response:?}");
            assert!(limiter.store().bytes() <= limiter.store().max_bytes());
        }
    }
    let few = limiter.store().len();
    assert!((5..60).contains(&few), "{few} keys are fewer than pages");
}

/// Regression: each check of a long log required half of its size as free bytes and evicted other keys.
#[test]
fn a_log_with_spare_capacity_evicts_nothing() {
    let clock = ManualClock::at(NOW);
    let builder = MemoryStore::builder().max_keys(60 * 175).max_bytes(500_000);
    let limiter = StoreLimiter::new(builder.clock(clock.clone()).build().unwrap());
    // Nearly at its limit, so that other keys are evicted before it.
    let log = Policy::parse("log", ["45000/1d sliding-log"]).unwrap();
    let other = Policy::parse("login", ["5/1m", "50/1d"]).unwrap();
    let count = || {
        clock.advance(1);
        assert!(limiter.check_now(log.key("log")).unwrap().is_allowed());
    };
    (0..40_000).for_each(|_| count());
    for number in 0..3000 {
        assert!(limiter.check_now(other.key(&format!("{number}"))).unwrap().is_allowed());
        if limiter.store().evicted() > 0 {
            count();
            // A growth of the log by a quarter of 80 kB freed at most this much.
            let (bytes, most) = (limiter.store().bytes(), limiter.store().max_bytes());
            assert!(bytes + 25_000 > most, "{number}: {bytes} of {most}");
        }
    }
    assert!(limiter.store().evicted() > 1000);
}

#[test]
fn a_key_is_not_evicted_for_its_own_growth() {
    let (limiter, clock) = small(40 << 10, WhenFull::Evict);
    let policy = Policy::parse("api", ["1000000/1h sliding-log"]).unwrap();
    let mut admitted = 0;
    while limiter.check_now(policy.key("log")).is_ok() {
        admitted += 1;
        clock.advance(1);
        assert!(admitted < 1_000_000, "the store must report that it is full");
    }
    assert_eq!(limiter.peek_now(policy.key("log")).unwrap().quotas()[0].used, admitted);
    // No key is evicted if that would not free enough bytes.
    let other = Policy::parse("login", ["5/1m", "50/1d"]).unwrap();
    assert!(limiter.check_now(other.key("other")).unwrap().is_allowed());
    let evicted = limiter.store().evicted();
    assert!(limiter.check_now(policy.key("log")).is_err());
    assert_eq!(limiter.store().evicted(), evicted);
    assert_eq!(limiter.peek_now(other.key("other")).unwrap().quotas()[0].used, 1);
}

#[test]
fn wide_counters_fit_into_the_default_and_fall_back_to_records_beyond() {
    for quota in ["1000000/1s", "20/1h token-bucket"] {
        let policy = Policy::parse("api", [quota]).unwrap();
        let (large, _) = limiter(200_000, WhenFull::Refuse);
        let empty = large.store().bytes();
        for number in 0..200_000 {
            assert!(large.check_now(policy.key(&format!("key {number}"))).unwrap().is_allowed());
        }
        assert!(large.store().bytes() - empty <= 24 * 200_000, "{quota}");
        let (tiny, _) = small(8 << 10, WhenFull::Refuse);
        for round in 1..=5 {
            for number in 0..10 {
                let decision = tiny.check_now(policy.key(&format!("key {number}"))).unwrap();
                assert_eq!(decision.quotas()[0].used, round, "{quota}, {number}");
            }
        }
        assert!(tiny.store().bytes() <= tiny.store().max_bytes());
    }
}

/// After a reload changes an algorithm, keys must return to their compact form.
#[test]
fn counts_of_another_version_take_bytes_until_they_expire() {
    let (limiter, clock) = limiter(1000, WhenFull::Evict);
    let [before, after] = ["5/1s", "5/1h fixed-window"].map(|quota| Policy::parse("api", [quota]).unwrap());
    let table_alone = limiter.store().bytes();
    for step in 0..5 {
        assert!(limiter.check_now(before.key("k")).unwrap().is_allowed());
        assert_eq!(limiter.check_now(after.key("k")).unwrap().remaining(), 4 - step);
        assert!(limiter.store().bytes() > table_alone);
    }
    clock.advance(2000);
    assert!(!limiter.check_now(after.key("k")).unwrap().is_allowed());
    assert!(limiter.store().bytes() > table_alone, "a denial changes nothing");
    let _ = limiter.refund_now(after.key("k")).unwrap();
    assert_eq!(limiter.store().bytes(), table_alone);
    assert_eq!(limiter.check_now(after.key("k")).unwrap().remaining(), 0);
    assert_eq!((limiter.store().bytes(), limiter.store().len()), (table_alone, 1));
}

#[test]
fn sizes_out_of_range_are_rejected() {
    let message = |builder: slidegate::store::MemoryStoreBuilder| builder.build().unwrap_err().to_string();
    assert_eq!(message(MemoryStore::builder().max_keys(0)), "max_keys: 0 is not between 1 and 2^31");
    assert_eq!(
        message(MemoryStore::builder().max_keys(usize::MAX)),
        format!("max_keys: {} is not between 1 and 2^31", usize::MAX)
    );
    assert_eq!(
        message(MemoryStore::builder().max_keys(1000).max_bytes(1000)),
        "max_bytes: 1000 is too few for 1000 keys; at least 26112"
    );
}
