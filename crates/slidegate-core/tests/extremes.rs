//! The widest quotas: products beyond 2^53 and 2^64 give the same integers as arbitrary precision.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;
use slidegate_core::{Algorithm, MAX_LIMIT, MAX_WINDOW_MS, Quota, SlidingWindow, State};
use std::time::Duration;

fn widest(algorithm: Algorithm) -> Key {
    let quota = Quota::new(MAX_LIMIT, Duration::from_millis(MAX_WINDOW_MS)).unwrap();
    Key::new(&[quota.with_algorithm(algorithm)])
}

const START: u64 = 60 * MAX_WINDOW_MS;

#[test]
fn the_weight_is_exact_at_the_largest_product() {
    let mut key = widest(Algorithm::SlidingWindow);
    let state = |prev, cur| {
        State::SlidingWindow(SlidingWindow { start_ms: START, window_ms: MAX_WINDOW_MS, prev, cur })
    };
    for (prev, elapsed) in
        [(MAX_LIMIT, 1), (MAX_LIMIT - 1, MAX_WINDOW_MS - 1), (MAX_LIMIT / 3, MAX_WINDOW_MS / 7)]
    {
        key.states = vec![state(prev, 0)];
        let exact =
            (u128::from(prev) * u128::from(MAX_WINDOW_MS - elapsed)).div_ceil(u128::from(MAX_WINDOW_MS));
        assert_eq!(u128::from(key.peek(START + elapsed, 0).quotas()[0].used), exact);
    }
}

#[test]
fn retry_times_are_exact_for_the_widest_quotas() {
    for &algorithm in Algorithm::ALL {
        for cost in [1, 2, MAX_LIMIT / 3, MAX_LIMIT - 1, MAX_LIMIT] {
            let mut key = widest(algorithm);
            assert!(key.check(START + 12_345, MAX_LIMIT).is_allowed());
            let denied = key.check(START + 12_345, cost);
            let at = START + 12_345 + denied.retry_after_ms().unwrap();
            assert!(!key.clone().check(at - 1, cost).is_allowed(), "{algorithm} {cost}");
            assert!(key.check(at, cost).is_allowed(), "{algorithm} {cost}");
        }
    }
}

#[test]
fn the_smallest_quota_allows_one_unit_per_window() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("1/1ms {algorithm}")]);
        assert!(key.check(START, 1).is_allowed(), "{algorithm}");
        let wait = key.check(START, 1).retry_after_ms().unwrap();
        assert!((1..=2).contains(&wait), "{algorithm}: {wait}");
        assert!(key.check(START + wait, 1).is_allowed(), "{algorithm}");
    }
}
