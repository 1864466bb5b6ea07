//! Whoever read the clock long ago: a thread that was put aside, or that had to wait.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Check, Clock, Decision, Limiter, MemoryStore, Policy, Sleep};

/// The beginning of a window.
const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;

/// Stands still until it is set. What it is told to be late by it is for one reading, as for a thread that goes on only then.
#[derive(Clone)]
struct LateClock(Arc<[AtomicU64; 2]>);

impl LateClock {
    fn at(now_ms: u64) -> Self {
        Self(Arc::new([AtomicU64::new(now_ms), AtomicU64::new(0)]))
    }

    fn set(&self, now_ms: u64) {
        self.0[0].store(now_ms, Ordering::SeqCst);
    }

    fn be_late_by(&self, ms: u64) {
        self.0[1].store(ms, Ordering::SeqCst);
    }
}

impl Clock for LateClock {
    fn now_ms(&self) -> u64 {
        self.0[0].load(Ordering::SeqCst) - self.0[1].swap(0, Ordering::SeqCst)
    }

    fn sleep(&self, _ms: u64) -> Sleep<'_> {
        unreachable!("nobody waits")
    }
}

type Subject = Limiter<MemoryStore<LateClock>>;
type Action = fn(&Subject, Check<'_>) -> Decision;

const ACTIONS: [(&str, Action); 3] = [
    ("check", |limiter, check| limiter.check_now(check).unwrap()),
    ("peek", |limiter, check| limiter.peek_now(check).unwrap()),
    ("refund", |limiter, check| limiter.refund_now(check).unwrap()),
];

/// Each form that a counter is kept in, with a fifth of what it allows.
const FORMS: [(&[&str], u64); 10] = [
    (&["5/1m"], 1),
    (&["5000000000/1m"], 1_000_000_000),
    (&["5/1m anchor=first-request"], 1),
    (&["5/1m fixed-window"], 1),
    (&["5000000000/1m fixed-window"], 1_000_000_000),
    (&["5/1m token-bucket"], 1),
    // As much as this owes has no room beside a slot.
    (&["250000000000000/100d token-bucket"], 50_000_000_000_000),
    (&["5/1m strict-window"], 1),
    (&["5/1m sliding-log"], 1),
    (&["5/1m", "9/1h"], 1),
];

fn subject(clock: &LateClock, max_keys: usize) -> Subject {
    Limiter::new(MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build().unwrap())
}

/// What somebody is told who is late, and another after it.
fn told(quotas: &[&str], unit: u64, action: Action, late_ms: u64) -> [Decision; 2] {
    let clock = LateClock::at(NOW - MINUTE);
    let limiter = subject(&clock, 100);
    let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
    let spend = |units| limiter.check_now(policy.key("k").cost(units * unit)).unwrap();
    assert!(spend(2).is_allowed());
    // By half of the window one of the two is left where windows slide, or both.
    clock.set(NOW + MINUTE / 2);
    while spend(1).is_allowed() {}
    clock.be_late_by(late_ms);
    let late = action(&limiter, policy.key("k").cost(unit));
    [late, spend(1)]
}

/// Once wrong: by the time of the late one the clock had stepped back, so that all counts were brought back to it, and were
/// over for the next one.
#[test]
fn who_is_late_decides_by_the_time_that_it_is() {
    for (quotas, unit) in FORMS {
        for (name, action) in ACTIONS {
            // More than half a minute: by less, this is later than the beginning of the window, which is all that some know.
            for late_ms in [MINUTE / 2 + 1, MINUTE, 2 * MINUTE, 3 * MINUTE, 60 * MINUTE] {
                let on_time = told(quotas, unit, action, 0);
                let late = told(quotas, unit, action, late_ms);
                assert_eq!(late, on_time, "{quotas:?}, a {name} {late_ms} ms late");
            }
        }
    }
}

/// What concerns others is decided by the time that it is, too: a new key in a full table finds those who are over.
#[test]
fn who_is_late_finds_room_where_others_are_over() {
    let clock = LateClock::at(NOW);
    let store = MemoryStore::builder().max_keys(1).when_full(slidegate::WhenFull::Refuse);
    let limiter = Limiter::new(store.clock(clock.clone()).build().unwrap());
    let policy = Policy::parse("api", ["5/1m"]).unwrap();
    assert!(limiter.check_now(policy.key("one")).unwrap().is_allowed());
    assert!(limiter.check_now(policy.key("other")).is_err(), "it is full");
    clock.set(NOW + 2 * MINUTE);
    clock.be_late_by(2 * MINUTE);
    assert!(limiter.check_now(policy.key("other")).unwrap().is_allowed());
}

/// A clock may say anything. Sums are made of the time by which others are judged, too.
#[test]
fn at_the_end_of_time_there_is_room_as_ever() {
    let clock = LateClock::at(u64::MAX);
    // Of keys, and of bytes.
    for (max_keys, quotas) in [(1, &["5/1m"][..]), (1, &["5/1m", "9/1h"]), (1000, &["5/1m", "9/1h"])] {
        let builder = || MemoryStore::builder().max_keys(max_keys).clock(clock.clone());
        let least =
            (1..1000).map(|pages| pages * 4096).find(|bytes| builder().max_bytes(*bytes).validate().is_ok());
        let limiter = Limiter::new(builder().max_bytes(least.unwrap() + 16_384).build().unwrap());
        let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
        for number in 0..1000 {
            let key = format!("key {number}");
            assert!(limiter.check_now(policy.key(&key)).unwrap().is_allowed(), "{quotas:?}, {key}");
        }
        assert!(limiter.store().evicted() > 100, "{max_keys}, {quotas:?}");
    }
}
