//! Limits and windows that change at run time, and clocks that step back.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;
use slidegate_core::{Action, Algorithm, Policy, Verb, decide};

const MINUTE: u64 = 60_000;
const START: u64 = 1_000_000 * MINUTE;

fn change(key: &mut Key, quotas: &[&str]) {
    key.policy = Policy::parse("test", quotas.iter().copied()).unwrap();
}

#[test]
fn a_lowered_limit_leaves_zero_and_a_raised_limit_leaves_more() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("10/1m {algorithm}")]);
        assert!(key.check(START, 8).is_allowed());
        change(&mut key, &[&format!("5/1m {algorithm}")]);
        let denied = key.check(START, 1);
        assert!(!denied.is_allowed(), "{algorithm}");
        // The debt of a bucket is capped, so that no client waits longer than the new bucket takes to fill.
        let used = if algorithm == Algorithm::TokenBucket { 5 } else { 8 };
        assert_eq!((denied.remaining(), denied.quotas()[0].used), (0, used), "{algorithm}");
        let wait = denied.retry_after_ms().unwrap();
        assert!(!key.clone().check(START + wait - 1, 1).is_allowed(), "{algorithm}");
        assert!(key.clone().check(START + wait, 1).is_allowed(), "{algorithm}");
        change(&mut key, &[&format!("20/1m {algorithm}")]);
        assert_eq!(key.check(START, 1).remaining(), 20 - used - 1, "{algorithm}");
    }
}

#[test]
fn a_changed_window_keeps_the_count_without_a_lock_out() {
    for &algorithm in Algorithm::ALL {
        for (before, after, after_ms) in
            [("1h", "1m", MINUTE), ("1m", "1h", 60 * MINUTE), ("60s", "61s", 61_000)]
        {
            let mut key = Key::parse(&[&format!("10/{before} {algorithm}")]);
            assert!(key.check(START + 5, 10).is_allowed());
            change(&mut key, &[&format!("10/{after} {algorithm}")]);
            let denied = key.check(START + 6, 1);
            assert!(!denied.is_allowed(), "{algorithm} {before}→{after}: no second burst");
            // The retry time is exact, although a denial must not spend, and it is short.
            let wait = denied.retry_after_ms().unwrap();
            assert!(wait <= 2 * after_ms, "{algorithm} {before}→{after}: {wait}");
            assert!(!key.clone().check(START + 6 + wait - 1, 1).is_allowed(), "{algorithm} {before}→{after}");
            assert!(!key.check(START + 6 + wait / 2, 1).is_allowed(), "{algorithm} {before}→{after}");
            assert!(key.check(START + 6 + wait, 1).is_allowed(), "{algorithm} {before}→{after}");
        }
    }
}

#[test]
fn a_sliding_window_counts_used_units_as_spent_at_the_change_of_its_window() {
    let mut key = Key::parse(&["10/1m"]);
    assert!(key.check(START, 10).is_allowed());
    // In the middle of the next window, 5 units are counted. They count fully in the new window, which starts now.
    change(&mut key, &["10/1h"]);
    let now = START + MINUTE + MINUTE / 2;
    let decision = key.check(now, 5);
    assert!(decision.is_allowed());
    assert_eq!(decision.quotas()[0].reset_after_ms, 2 * 60 * MINUTE);
    assert_eq!(key.check(now + 60 * MINUTE - 1, 1).quotas()[0].used, 10);
}

#[test]
fn another_algorithm_starts_empty() {
    let mut key = Key::parse(&["10/1m"]);
    assert!(key.check(START, 10).is_allowed());
    change(&mut key, &["10/1m sliding-log"]);
    assert_eq!(key.check(START, 1).remaining(), 9);
}

/// Alternates between two versions, as tiers of a policy do, or servers during the rollout of a new configuration.
#[test]
fn alternating_versions_each_enforce_their_own_limit() {
    let versions: [(&[&str], &[&str], [usize; 2]); 5] = [
        (&["5/1h"], &["6/1h token-bucket"], [5, 6]),
        (&["5/1h sliding-log"], &["6/1h strict-window"], [5, 6]),
        (&["5/1h fixed-window"], &["6/1h"], [5, 6]),
        // Both share the hour, and the minute counts the units that either one admits.
        (&["5/1m", "20/1h"], &["6/1h"], [3, 3]),
        // A unit that is spent under one rate is also owed under the other one.
        (&["5/1m", "20/1h token-bucket"], &["9/1m strict-window", "6/1h token-bucket"], [5, 3]),
    ];
    for (one, other, expected) in versions {
        let mut key = Key::parse(one);
        let mut admitted = [0; 2];
        for step in 0..200 {
            change(&mut key, [one, other][step % 2]);
            admitted[step % 2] += usize::from(key.check(START, 1).is_allowed());
        }
        assert_eq!(admitted, expected, "{one:?}, {other:?}");
        // Expired states are dropped.
        assert!(key.check(START + 3 * 60 * MINUTE, 1).is_allowed());
        assert!(key.states.len() <= other.len(), "{one:?}, {other:?}");
    }
}

/// Alternates between two windows, which count together. A denial by one must not restart the other.
#[test]
fn alternating_windows_lock_no_key_out() {
    for &algorithm in Algorithm::ALL {
        for (one, other) in [("5/2s", "5/3s"), ("5/3s", "5/2s"), ("5/1s", "5/3s")] {
            let versions = [one, other].map(|quota| format!("{quota} {algorithm}"));
            let mut key = Key::parse(&[&versions[0]]);
            let (mut last, mut admitted) = (0, 0);
            for step in 0..1000 {
                change(&mut key, &[&versions[step % 2]]);
                let now = step as u64 * 100;
                let decision = key.check(START + now, 1);
                if decision.is_allowed() {
                    assert!(now - last <= 6000, "{versions:?}: no request was allowed for {} ms", now - last);
                    (last, admitted) = (now, admitted + 1);
                }
            }
            assert!(100_000 - last <= 6000, "{versions:?}: no request was allowed since {last}");
            let alone = |seconds: u64| 5 * (100 / seconds + 1);
            let max_admitted = alone(one[2..3].parse().unwrap()) + alone(other[2..3].parse().unwrap());
            assert!(
                admitted <= max_admitted,
                "{versions:?}: {admitted}, more than {max_admitted} of both alone"
            );
        }
    }
}

/// A fraction of a token that is lost with each denial would be a lock-out.
#[test]
fn debts_of_alternating_rates_are_paid_off() {
    let mut key = Key::parse(&["1/1h token-bucket"]);
    let mut admitted = [0, 0];
    // Two hours at twenty requests per second, in the order that once lost the paid-off fraction.
    for step in 0..144_000 {
        for (tier, quota) in ["1/1h token-bucket", "1/1m token-bucket"].iter().enumerate() {
            change(&mut key, &[quota]);
            admitted[tier] += u32::from(key.check(START + step * 50, 1).is_allowed());
        }
    }
    // A unit that one version admits is also owed under the other one.
    assert_eq!(admitted, [1, 119]);
}

#[test]
fn at_most_sixteen_states_of_other_versions_are_retained() {
    let mut key = Key::parse(&["10/1h"]);
    for step in 0..100 {
        let algorithm = ["token-bucket", "sliding-window"][step % 2];
        change(&mut key, &[&format!("1000/{}m {algorithm}", 60 + step)]);
        assert!(key.check(START, 1).is_allowed());
        assert_eq!(key.states.len(), 1 + step.min(16));
    }
}

/// A clock was far ahead and has stepped back. The units of that time must not remain until the clock reaches it again.
#[test]
fn states_from_the_future_are_dropped() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("5/1s {algorithm}")]);
        assert!(key.check(START + 10_000 * MINUTE, 5).is_allowed());
        change(&mut key, &[if algorithm == Algorithm::FixedWindow { "5/1h" } else { "5/1h fixed-window" }]);
        assert!(key.check(START, 1).is_allowed());
        assert_eq!(key.states.len(), 1, "{algorithm}");
    }
}

#[test]
fn a_lowered_bucket_is_full_after_its_fill_time() {
    for lowered in ["10/1m token-bucket", "1000/1s token-bucket burst=10", "1/1m token-bucket burst=10"] {
        let fill_ms = Key::parse(&[lowered]).check(START, 10).quotas()[0].reset_after_ms;
        let mut key = Key::parse(&["1000/1s token-bucket"]);
        assert!(key.check(START, 1000).is_allowed());
        change(&mut key, &[lowered]);
        let denied = key.check(START, 10);
        assert_eq!(denied.retry_after_ms(), Some(fill_ms), "{lowered}");
        assert!(!key.check(START + fill_ms - 1, 10).is_allowed(), "{lowered}");
        assert!(key.check(START + fill_ms, 10).is_allowed(), "{lowered}");
        // The debt falls at the former rate until the change.
        let mut key = Key::parse(&["1000/1s token-bucket"]);
        assert!(key.check(START, 1000).is_allowed());
        change(&mut key, &[lowered]);
        assert!(key.check(START + 3000, 10).is_allowed(), "{lowered}: the bucket has refilled");
    }
}

/// Capping the debt of the other version would allow it a burst with each request of this version.
#[test]
fn alternating_buckets_keep_each_others_debts() {
    let mut key = Key::parse(&["20/1h token-bucket"]);
    let mut admitted = [0, 0];
    for step in 0..1000 {
        let quota = ["20/1h token-bucket", "10/1h token-bucket"][step % 2];
        change(&mut key, &[quota]);
        admitted[step % 2] += u64::from(key.check(START, 1).is_allowed());
    }
    assert_eq!(admitted, [15, 5], "twenty in total; the smaller bucket is empty after ten of them");
}

/// Covers limits that are raised and lowered again, and alternating tiers. Each version counts the admissions of the others.
#[test]
fn no_order_of_versions_admits_more_than_the_largest_limit() {
    for &algorithm in Algorithm::ALL {
        for (one, other, most) in [
            ("10/1m", "10/1h", 10),
            ("10/1h", "10/1m", 10),
            ("10/1m", "11/1m", 11),
            ("100/1m", "1000/1m", 1000),
            ("10/1m", "12/2m", 12),
        ] {
            let versions = [one, other].map(|quota| format!("{quota} {algorithm}"));
            for order in [[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 0], [0, 1, 1, 0]] {
                let mut key = Key::parse(&[&versions[order[0]]]);
                let mut admitted = 0;
                assert!(key.check(START, 1).is_allowed());
                for (phase, version) in order.into_iter().enumerate() {
                    change(&mut key, &[&versions[version]]);
                    let now = START + 1 + phase as u64;
                    admitted += (0..most).filter(|_| key.check(now, 1).is_allowed()).count();
                }
                // A bucket refills in the meantime.
                assert!(admitted < most + usize::from(most == 1000), "{versions:?} {order:?}: {admitted}");
            }
        }
    }
}

#[test]
fn a_count_is_retained_while_another_tier_is_in_use() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::StrictWindow, Algorithm::FixedWindow] {
        let of = |quota: &str| format!("{quota} {algorithm}");
        for others in [&[][..], &["10/1m token-bucket"], &["10/1m token-bucket", "10/1m sliding-log"]] {
            let mut key = Key::parse(&[&of("10/1h")]);
            assert!(key.check(START, 10).is_allowed());
            for other in others {
                change(&mut key, &[other]);
                assert!(key.check(START, 1).is_allowed());
            }
            change(&mut key, &[&of("10/1m")]);
            assert!(!key.check(START, 1).is_allowed(), "{algorithm} {others:?}: carried over");
            // The count of the minute has expired, and does not restart from that of the hour.
            assert!(key.check(START + 3 * MINUTE, 10).is_allowed(), "{algorithm} {others:?}");
            change(&mut key, &[&of("10/1h")]);
            assert!(!key.check(START + 3 * MINUTE, 1).is_allowed(), "{algorithm} {others:?}: still counted");
            change(&mut key, &[&of("10/1m")]);
            assert!(!key.check(START + 3 * MINUTE, 1).is_allowed(), "{algorithm} {others:?}");
            assert!(key.check(START + 6 * MINUTE, 10).is_allowed(), "{algorithm} {others:?}");
        }
    }
}

#[test]
fn the_nearest_window_is_carried_over_from_any_position() {
    let mut key = Key::parse(&["10/1s", "1000/1h"]);
    assert!(key.check(START, 10).is_allowed());
    assert!(key.check(START + 5000, 10).is_allowed());
    change(&mut key, &["2000/2h", "20/2s"]);
    let used = |decision: slidegate_core::Decision| {
        decision.quotas().iter().map(|report| report.used).collect::<Vec<_>>()
    };
    assert_eq!(used(key.peek(START + 5000, 0)), [20, 10]);
    // Each state is the source of one copy: a further quota starts empty.
    change(&mut key, &["2000/2h", "20/2s", "30/3s"]);
    assert_eq!(used(key.peek(START + 5000, 0)), [20, 10, 0]);
}

#[test]
fn quotas_keep_their_counts_when_other_quotas_are_added_or_removed() {
    let mut key = Key::parse(&["10/1s", "20/1h"]);
    assert!(key.check(START, 7).is_allowed());
    change(&mut key, &["10/1s", "15/1m", "20/1h"]);
    let used = |key: &mut Key| key.peek(START, 0).quotas().iter().map(|q| q.used).collect::<Vec<_>>();
    assert_eq!(used(&mut key), [7, 0, 7]);
    assert!(key.check(START, 1).is_allowed());
    assert_eq!(used(&mut key), [8, 1, 8]);
    change(&mut key, &["20/1h", "15/1m"]);
    assert_eq!(used(&mut key), [8, 1]);
    change(&mut key, &["20/1h"]);
    assert_eq!(used(&mut key), [8]);
    let mut logs = Key::parse(&["10/1s sliding-log", "20/1h sliding-log"]);
    assert!(logs.check(START, 7).is_allowed());
    change(&mut logs, &["20/1h sliding-log", "10/1s sliding-log"]);
    assert_eq!(logs.peek(START + 2000, 0).quotas().iter().map(|q| q.used).collect::<Vec<_>>(), [7, 0]);
}

#[test]
fn time_stands_still_after_a_small_step_back() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("10/1m {algorithm}")]);
        assert!(key.check(START + 100, 10).is_allowed());
        let denied = key.check(START - 200, 1);
        assert!(!denied.is_allowed(), "{algorithm}");
        let wait = denied.retry_after_ms().unwrap();
        assert!(!key.clone().check(START - 200 + wait - 1, 1).is_allowed(), "{algorithm}");
        assert!(key.check(START - 200 + wait, 1).is_allowed(), "{algorithm}");
    }
}

#[test]
fn a_clock_that_steps_far_back_keeps_the_counts_and_locks_no_key_out() {
    for &algorithm in Algorithm::ALL {
        for back in [2 * MINUTE + 1, 10 * MINUTE, START - 17, START] {
            let mut key = Key::parse(&[&format!("10/1m {algorithm}")]);
            assert!(key.check(START, 10).is_allowed());
            let now = START - back;
            let denied = key.check(now, 1);
            assert!(!denied.is_allowed(), "{algorithm}: the counts are kept");
            let wait = denied.retry_after_ms().unwrap();
            assert!(wait <= 2 * MINUTE, "{algorithm}: {wait}");
            // Frequent requests must not postpone the retry time.
            for step in 1..wait / 1000 {
                assert!(!key.check(now + step * 1000 - 1, 1).is_allowed(), "{algorithm}");
            }
            assert!(!key.clone().check(now + wait - 1, 1).is_allowed(), "{algorithm} {back}");
            assert!(key.check(now + wait, 1).is_allowed(), "{algorithm} {back}");
        }
    }
}

#[test]
fn a_far_step_of_the_clock_with_a_changed_window_does_not_panic() {
    for &algorithm in Algorithm::ALL {
        for (before, after) in [("1s", "1d"), ("1d", "1s")] {
            let mut key = Key::parse(&[&format!("10/{before} {algorithm}")]);
            assert!(key.check(START, 10).is_allowed());
            change(&mut key, &[&format!("10/{after} {algorithm}")]);
            let _ = key.check(START - 30 * 24 * 60 * MINUTE - 999, 1);
            let _ = key.check(0, 1);
            let _ = key.check(u64::MAX, 1);
        }
    }
}

/// Regression test: a peek or a denial under other quotas dropped the states of the first quotas.
#[test]
fn a_peek_or_a_denial_under_other_quotas_drops_no_state() {
    for others in [&["10/1m strict-window"][..], &["10/1m", "20/1h"], &["10/1h"]] {
        let mut key = Key::parse(&["10/1m"]);
        assert!(key.check(START, 7).is_allowed());
        change(&mut key, others);
        let _ = key.peek(START, 1);
        assert!(key.check(START, 11).is_never());
        change(&mut key, &["10/1m"]);
        let used = key.peek(START, 0).quotas()[0].used;
        assert_eq!(used, 7, "{others:?}");
    }
    // A peek under a shorter window does not make the count expire faster.
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("10/1h {algorithm}")]);
        assert!(key.check(START, 10).is_allowed());
        change(&mut key, &[&format!("10/1s {algorithm}")]);
        let _ = key.peek(START + 100, 1);
        change(&mut key, &[&format!("10/1h {algorithm}")]);
        assert!(key.peek(START + 5000, 0).quotas()[0].used >= 9, "{algorithm}");
    }
}

/// After a step back by exactly one window, time stands still at the stored time. The longest wait is therefore three windows.
#[test]
fn time_stands_still_after_a_step_back_by_exactly_a_window() {
    let mut key = Key::parse(&["4/276ms"]);
    assert!(key.check(828, 1).is_allowed());
    assert!(key.check(552, 0).is_allowed());
    let denied = key.check(552, 4);
    assert_eq!(denied.retry_after_ms(), Some(3 * 276));
    assert!(!key.check(552 + 3 * 276 - 1, 4).is_allowed());
    assert!(key.check(552 + 3 * 276, 4).is_allowed());
    // One millisecond further back, the window restarts.
    let mut key = Key::parse(&["4/276ms"]);
    assert!(key.check(828, 1).is_allowed());
    assert_eq!(key.check(551, 4).retry_after_ms(), Some(276 + 1));
}

/// A peek counts nothing, so the counts of other quotas expire at their own times.
#[test]
fn a_peek_reports_when_counts_of_other_quotas_expire() {
    let bucket = |quota: &str| Policy::parse("p", [quota]).unwrap();
    let (former, any) = (bucket("10/100s token-bucket"), bucket("1/1s token-bucket burst=1000000"));
    let mut states = Vec::new();
    let mut peek =
        |policy: &Policy, verb, now_ms, cost| decide(&mut states, policy, Action::new(verb, now_ms, cost)).0;
    assert_eq!(peek(&any, Verb::Peek, 1000, 0).expires_after_ms(), 0);
    assert_eq!(peek(&former, Verb::Check, 1000, 3).expires_after_ms(), 30_000);
    assert_eq!(peek(&any, Verb::Peek, 1001, 0).expires_after_ms(), 29_999);
    assert_eq!(peek(&former, Verb::Peek, 1001, 0).expires_after_ms(), 29_999);
    assert_eq!(peek(&any, Verb::Peek, 30_999, 0).expires_after_ms(), 1);
    assert_eq!(peek(&any, Verb::Peek, 31_000, 0).expires_after_ms(), 0);
}
