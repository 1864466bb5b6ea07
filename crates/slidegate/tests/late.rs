//! Whoever read the clock long ago: a thread that was put aside, or that had to wait.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Check, Clock, Decision, Limiter, MemoryStore, Policy, Sleep};

const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;

/// Stands still. What it is told to be late by it is for one reading, as for a thread that goes on only then.
#[derive(Clone, Default)]
struct LateClock(Arc<AtomicU64>);

impl Clock for LateClock {
    fn now_ms(&self) -> u64 {
        NOW - self.0.swap(0, Ordering::SeqCst)
    }

    fn sleep(&self, _ms: u64) -> Sleep<'_> {
        unreachable!("nobody waits")
    }
}

type Action = fn(&Limiter<MemoryStore<LateClock>>, Check<'_>) -> Decision;

/// Each form that a counter is kept in, with what makes five of it, all of which is spent at once.
const FORMS: [(&[&str], u64); 9] = [
    (&["5/1m"], 1),
    (&["5000000000/1m"], 1_000_000_000),
    (&["5/1m anchor=first-request"], 1),
    (&["5/1m fixed-window"], 1),
    (&["5/1m token-bucket"], 1),
    (&["1000000000000/1m token-bucket burst=5"], 1),
    (&["5/1m strict-window"], 1),
    (&["5/1m sliding-log"], 1),
    (&["5/1m", "9/1h"], 1),
];

/// Once wrong: by the time of the late one the clock had stepped back, so that all counts were brought back to it, and were
/// over for the next one.
#[test]
fn who_is_late_decides_by_the_time_that_it_is() {
    let actions: [(&str, Action); 3] = [
        ("check", |limiter, check| limiter.check_now(check).unwrap()),
        ("refund", |limiter, check| limiter.refund_now(check).unwrap()),
        ("reset", |limiter, check| limiter.reset_now(check).unwrap()),
    ];
    for (quotas, unit) in FORMS {
        for (name, action) in actions {
            for late_ms in [1, MINUTE, MINUTE + 1, 3 * MINUTE, 60 * MINUTE] {
                let [on_time, late] = [0, late_ms].map(|late_ms| {
                    let clock = LateClock::default();
                    let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build().unwrap();
                    let limiter = Limiter::new(store);
                    let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
                    assert!(limiter.check_now(policy.key("k").cost(5 * unit)).unwrap().is_allowed());
                    clock.0.store(late_ms, Ordering::SeqCst);
                    let told = action(&limiter, policy.key("k").cost(unit));
                    [told, limiter.check_now(policy.key("k").cost(unit)).unwrap()]
                });
                // By a little, time stands still at what was counted last: then a window is not over sooner for it.
                assert_eq!(late[1], on_time[1], "{quotas:?}, after a {name} {late_ms} ms late");
                assert_eq!(late[0].is_allowed(), on_time[0].is_allowed(), "{quotas:?}, {name}, {late_ms}");
            }
        }
    }
}
