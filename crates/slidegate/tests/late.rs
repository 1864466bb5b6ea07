//! Threads that decide with a stale clock reading, after a preemption or a lock wait.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{Check, Clock, Decision, Policy, Sleep};

/// Start of a window.
const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;

/// A manual clock. `delay_next_reading_by` makes one reading stale, as for a thread preempted after it.
#[derive(Clone)]
struct StaleClock(Arc<[AtomicU64; 2]>);

impl StaleClock {
    fn at(now_ms: u64) -> Self {
        Self(Arc::new([AtomicU64::new(now_ms), AtomicU64::new(0)]))
    }

    fn set(&self, now_ms: u64) {
        self.0[0].store(now_ms, Ordering::SeqCst);
    }

    fn delay_next_reading_by(&self, ms: u64) {
        self.0[1].store(ms, Ordering::SeqCst);
    }
}

impl Clock for StaleClock {
    fn now_ms(&self) -> u64 {
        self.0[0].load(Ordering::SeqCst) - self.0[1].swap(0, Ordering::SeqCst)
    }

    fn sleep(&self, _ms: u64) -> Sleep<'_> {
        unreachable!("no test sleeps")
    }
}

type Subject = StoreLimiter<MemoryStore<StaleClock>>;
type Action = fn(&Subject, Check<'_>) -> Decision;

const ACTIONS: [(&str, Action); 3] = [
    ("check", |limiter, check| limiter.check_now(check).unwrap()),
    ("peek", |limiter, check| limiter.peek_now(check).unwrap()),
    ("refund", |limiter, check| limiter.refund_now(check).unwrap()),
];

/// All forms of a counter, with a fifth of the limit.
const COUNTER_FORMS: [(&[&str], u64); 10] = [
    (&["5/1m"], 1),
    (&["5000000000/1m"], 1_000_000_000),
    (&["5/1m anchor=first-request"], 1),
    (&["5/1m fixed-window"], 1),
    (&["5000000000/1m fixed-window"], 1_000_000_000),
    (&["5/1m token-bucket"], 1),
    // A debt too large for a slot.
    (&["250000000000000/100d token-bucket"], 50_000_000_000_000),
    (&["5/1m strict-window"], 1),
    (&["5/1m sliding-log"], 1),
    (&["5/1m", "9/1h"], 1),
];

fn subject(clock: &StaleClock, max_keys: usize) -> Subject {
    StoreLimiter::new(MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build().unwrap())
}

/// Returns the decision of a late action and the decision of the next check.
fn late_and_next_decision(quotas: &[&str], unit: u64, action: Action, late_ms: u64) -> [Decision; 2] {
    let clock = StaleClock::at(NOW - MINUTE);
    let limiter = subject(&clock, 100);
    let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
    let spend = |units| limiter.check_now(policy.key("k").cost(units * unit)).unwrap();
    assert!(spend(2).is_allowed());
    // At half of the window, sliding windows still count 1 of the 2 units, the others 0 or 2.
    clock.set(NOW + MINUTE / 2);
    while spend(1).is_allowed() {}
    clock.delay_next_reading_by(late_ms);
    let late = action(&limiter, policy.key("k").cost(unit));
    [late, spend(1)]
}

/// Regression: a late reading looked like a clock that had stepped back. All counts moved back with it and expired for
/// the next request.
#[test]
fn a_late_thread_decides_by_the_current_time() {
    for (quotas, unit) in COUNTER_FORMS {
        for (name, action) in ACTIONS {
            // More than half a minute. A shorter delay stays after the start of the window, and some forms store only
            // that.
            for late_ms in [MINUTE / 2 + 1, MINUTE, 2 * MINUTE, 3 * MINUTE, 60 * MINUTE] {
                let on_time = late_and_next_decision(quotas, unit, action, 0);
                let late = late_and_next_decision(quotas, unit, action, late_ms);
                assert_eq!(late, on_time, "{quotas:?}, a {name} {late_ms} ms late");
            }
        }
    }
}

/// Evictions use the current time too: a new key in a full table replaces an expired one.
#[test]
fn a_late_thread_replaces_expired_keys() {
    let clock = StaleClock::at(NOW);
    let store = MemoryStore::builder().max_keys(1).when_full(slidegate::store::WhenFull::Refuse);
    let limiter = StoreLimiter::new(store.clock(clock.clone()).build().unwrap());
    let policy = Policy::parse("api", ["5/1m"]).unwrap();
    assert!(limiter.check_now(policy.key("one")).unwrap().is_allowed());
    assert!(limiter.check_now(policy.key("other")).is_err(), "the table is full");
    clock.set(NOW + 2 * MINUTE);
    clock.delay_next_reading_by(2 * MINUTE);
    assert!(limiter.check_now(policy.key("other")).unwrap().is_allowed());
}

/// Sums of times for the eviction of other keys must not overflow at the maximum time.
#[test]
fn evictions_work_at_the_maximum_time() {
    let clock = StaleClock::at(u64::MAX);
    // Bound by keys, and by bytes.
    for (max_keys, quotas) in [(1, &["5/1m"][..]), (1, &["5/1m", "9/1h"]), (1000, &["5/1m", "9/1h"])] {
        let builder = || MemoryStore::builder().max_keys(max_keys).clock(clock.clone());
        let least =
            (1..1000).map(|pages| pages * 4096).find(|bytes| builder().max_bytes(*bytes).validate().is_ok());
        let limiter = StoreLimiter::new(builder().max_bytes(least.unwrap() + 16_384).build().unwrap());
        let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
        for number in 0..1000 {
            let key = format!("key {number}");
            assert!(limiter.check_now(policy.key(&key)).unwrap().is_allowed(), "{quotas:?}, {key}");
        }
        assert!(limiter.store().evicted() > 100, "{max_keys}, {quotas:?}");
    }
}
