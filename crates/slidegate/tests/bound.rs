//! A limiter bound to a policy.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{ManualClock, Policy};

/// A bound limiter and an unbound one return the same decisions for all policies and keys.
#[test]
fn a_bound_limiter_counts_the_same() {
    let policies = [
        vec!["3/1m"],
        vec!["3/1m anchor=first-request"],
        vec!["1000000000/1h"],
        vec!["281474976710656/1h"],
        vec!["3/1m fixed-window"],
        vec!["3/1m token-bucket"],
        vec!["3/1m", "5/1h"],
    ];
    for quotas in policies {
        let clock = ManualClock::at(1_800_000_000_123);
        let limiter = || {
            Arc::new(StoreLimiter::new(
                MemoryStore::builder().max_keys(100).clock(clock.clone()).build().unwrap(),
            ))
        };
        let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
        let (alone, shared) = (limiter(), limiter());
        let bound = shared.bind(policy.clone());
        for key in ["", "a", "user", "user:000001", "a key of more than sixteen bytes"] {
            for step in 0..40_u64 {
                clock.advance(7_001 * (step % 5));
                let cost = 1 + step % 2;
                let expected = alone.check_now(policy.key(key).cost(cost)).unwrap();
                // Alternates between both limiters: they share the counts of a key.
                let decision = if step % 3 == 0 {
                    shared.check_now(policy.key(key).cost(cost))
                } else {
                    bound.check_cost_now(key, cost)
                };
                assert_eq!(decision.unwrap(), expected, "{quotas:?}, {key:?}, step {step}");
            }
        }
        assert_eq!(bound.check_now("new").unwrap(), alone.check_now(policy.key("new")).unwrap());
        assert_eq!(bound.policy(), &policy);
        assert!(Arc::ptr_eq(bound.limiter(), &shared));
    }
}

/// More keys than one prefetch group, some of them repeated, some denied.
#[test]
fn many_keys_at_once_count_as_one_by_one() {
    for quota in ["3/1m", "1000000000/1h", "3/1m fixed-window", "3/1m token-bucket", "3/1m strict-window"] {
        let clock = ManualClock::at(1_800_000_000_123);
        let bound = || {
            let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build().unwrap();
            Arc::new(StoreLimiter::new(store)).bind(Policy::parse("api", [quota]).unwrap())
        };
        let (alone, together) = (bound(), bound());
        let keys: Vec<String> = (0..150).map(|number| format!("user:{}", number * number % 37)).collect();
        for _ in 0..3 {
            clock.advance(25_000);
            let mut decisions = Vec::new();
            together.check_each_now(&keys, |key, decision| decisions.push((key, decision.unwrap())));
            let expected: Vec<_> = keys.iter().map(|key| (key, alone.check_now(key).unwrap())).collect();
            assert_eq!(decisions, expected, "{quota}");
        }
        together.check_each_now(&[""; 0], |key, _| panic!("unexpected key {key:?}"));
    }
}

/// A binding holds a hasher that depends on the policy's salt, and a forget changes the salt.
#[test]
fn a_bound_limiter_follows_a_forget_of_its_policy() {
    for quota in ["3/1m", "1000000000/1h", "3/1m fixed-window", "3/1m token-bucket", "3/1m strict-window"] {
        let store = MemoryStore::builder().max_keys(1000).clock(ManualClock::at(1_800_000_000_123));
        let limiter = Arc::new(StoreLimiter::new(store.build().unwrap()));
        let [policy, other] = ["api", "other"].map(|name| Policy::parse(name, [quota]).unwrap());
        let (bound, bound_other) = (limiter.bind(policy.clone()), limiter.bind(other.clone()));
        let used = |policy: &Policy, key: &str| limiter.peek_now(policy.key(key)).unwrap().quotas()[0].used;
        for round in 1..=3 {
            for key in ["a", "a key of more than sixteen bytes"] {
                assert!(bound.check_cost_now(key, 2).unwrap().is_allowed(), "{quota}, round {round}");
                assert!(bound_other.check_cost_now(key, u64::from(round == 1)).unwrap().is_allowed());
                assert_eq!([used(&policy, key), used(&other, key)], [2, 1], "{quota}, round {round}");
            }
            limiter.forget_now(&policy).unwrap();
            // A new binding shares the counts with the old one.
            let again = limiter.bind(policy.clone());
            assert!(again.check_now("b").unwrap().is_allowed() && bound.check_now("b").unwrap().is_allowed());
            assert_eq!(used(&policy, "b"), 2);
            assert_eq!([used(&policy, "a"), used(&other, "a")], [0, 1], "{quota}, round {round}");
            bound.check_each_now(&["c"; 3], |_, decision| assert!(decision.unwrap().is_allowed()));
            again.check_each_now(&["c"; 1], |_, decision| {
                assert_eq!(decision.unwrap().is_allowed(), quota.starts_with("1000"));
            });
            limiter.forget_now(&policy).unwrap();
        }
    }
}
