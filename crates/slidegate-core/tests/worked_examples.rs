//! Tables of worked examples for the formulas of all algorithms.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;
use slidegate_core::{
    Algorithm, Counter, FixedWindow, Moment, QuotaReport, Retry, SlidingWindow, State, TokenBucket, Verb,
};

const MINUTE: u64 = 60_000;
/// The start of some window.
const START: u64 = 1_000_000 * MINUTE;

fn sliding(limit: u64, prev: u64, cur: u64) -> Key {
    let mut key = Key::parse(&[&format!("{limit}/1m")]);
    key.states = vec![State::SlidingWindow(SlidingWindow { start_ms: START, window_ms: MINUTE, prev, cur })];
    key
}

#[test]
fn sliding_window_examples_of_the_contract() {
    // (limit, offset in percent, previous, current) → (allowed, used before, remaining after)
    let table = [
        (10, 30, 8, 3, true, 9, 0),
        (100, 25, 80, 30, true, 90, 9),
        (100, 25, 80, 40, false, 100, 0),
        (50, 25, 40, 10, true, 40, 9),
        (100, 25, 80, 25, true, 85, 14),
    ];
    for (limit, percent, prev, cur, is_allowed, used, remaining) in table {
        let mut key = sliding(limit, prev, cur);
        let now = START + MINUTE * percent / 100;
        assert_eq!(key.peek(now, 1).quotas()[0].used, used, "used of {limit} {prev} {cur}");
        let decision = key.check(now, 1);
        assert_eq!(decision.is_allowed(), is_allowed, "{limit} {prev} {cur}");
        assert_eq!(decision.remaining(), remaining, "{limit} {prev} {cur}");
    }
}

#[test]
fn rounding_up_allows_the_same_requests_as_the_exact_sum() {
    for prev in 0..=12_u64 {
        for cur in 0..=12 {
            for elapsed in 0..60 {
                let mut key = sliding(12, prev, cur);
                let exact = prev * (60 - elapsed) + (cur + 1) * 60 <= 12 * 60;
                assert_eq!(
                    key.check(START + elapsed * 1000, 1).is_allowed(),
                    exact,
                    "{prev} {cur} {elapsed}"
                );
            }
        }
    }
}

#[test]
fn sliding_window_retry_times() {
    // (previous, current, offset ms, cost) → wait
    let table = [
        // All units are in the previous window: the first one is free after a tenth of the current window.
        (10, 0, 0, 1, 6000),
        // All units are in the current window: the first one is free after a tenth of the next window.
        (0, 10, 30_000, 1, 30_000 + 6000),
        // A cost of the whole limit waits until both windows are over.
        (0, 10, 30_000, 10, 30_000 + 60_000),
        // Four of five previous units may remain, so at most four fifths of the previous window may overlap.
        (5, 5, 0, 1, 12_000),
        // The previous window must not overlap at all.
        (5, 9, 0, 1, 60_000),
    ];
    for (prev, cur, offset, cost, wait) in table {
        let mut key = sliding(10, prev, cur);
        let now = START + offset;
        assert_eq!(key.check(now, cost).retry_after_ms(), Some(wait), "{prev} {cur} {offset} {cost}");
        assert!(!key.clone().check(now + wait - 1, cost).is_allowed());
        assert!(key.check(now + wait, cost).is_allowed());
    }
}

#[test]
fn sliding_window_reset_times() {
    let reset = |prev, cur| sliding(10, prev, cur).peek(START + 1000, 0).quotas()[0].reset_after_ms;
    assert_eq!(reset(0, 0), 0);
    assert_eq!(reset(3, 0), 59_000);
    assert_eq!(reset(0, 1), 119_000);
    assert_eq!(reset(3, 1), 119_000);
}

#[test]
fn rolling_keeps_shifts_or_clears_the_counts() {
    let used = |now| sliding(100, 40, 20).peek(now, 0).quotas()[0].used;
    assert_eq!(used(START), 60);
    assert_eq!(used(START + MINUTE - 1), 21);
    assert_eq!(used(START + MINUTE), 20);
    assert_eq!(used(START + 2 * MINUTE - 1), 1);
    assert_eq!(used(START + 2 * MINUTE), 0);
}

#[test]
fn a_window_with_the_anchor_first_request_starts_at_the_first_request() {
    let mut key = Key::parse(&["10/1m anchor=first-request"]);
    let first = START + 12_345;
    for _ in 0..10 {
        assert!(key.check(first, 1).is_allowed());
    }
    assert_eq!(key.check(first, 1).retry_after_ms(), Some(MINUTE + 6000));
    assert_eq!(key.peek(first + 1, 0).quotas()[0].reset_after_ms, 2 * MINUTE - 1);
    // The count expires after two windows, and the next request starts a new window.
    assert!(key.check(first + 2 * MINUTE + 7, 10).is_allowed());
    assert_eq!(key.peek(first + 2 * MINUTE + 7, 0).quotas()[0].reset_after_ms, 2 * MINUTE);
}

#[test]
fn fixed_window_allows_twice_the_limit_across_a_boundary() {
    let mut key = Key::parse(&["10/1m fixed-window"]);
    assert!(key.check(START + MINUTE - 1, 10).is_allowed());
    let denied = key.check(START + MINUTE - 1, 1);
    assert_eq!(denied.retry_after_ms(), Some(1));
    assert_eq!(denied.quotas()[0].reset_after_ms, 1);
    assert!(key.check(START + MINUTE, 10).is_allowed());
    assert_eq!(
        FixedWindow::used(
            &FixedWindow::empty(&key.policy.quotas()[0]).view(&key.policy.quotas()[0], Moment::exact(5))
        ),
        0
    );
}

#[test]
fn token_bucket_formulas() {
    // 10 per minute with capacity 3: one token every six seconds.
    let mut key = Key::parse(&["10/1m token-bucket burst=3"]);
    let report = |used, remaining, more_after_ms, reset_after_ms, retry| {
        let mut report = QuotaReport::unused(3).with_retry(retry);
        (report.used, report.current, report.remaining) = (used, used, remaining);
        (report.more_after_ms, report.reset_after_ms) = (more_after_ms, reset_after_ms);
        report
    };
    assert_eq!(key.check(START, 3).quotas(), [report(3, 0, 6000, 18_000, None)]);
    assert_eq!(key.check(START, 1).quotas(), [report(3, 0, 6000, 18_000, Some(Retry::AfterMs(6000)))]);
    assert_eq!(key.check(START + 1, 2).quotas(), [report(3, 0, 5999, 17_999, Some(Retry::AfterMs(11_999)))]);
    assert_eq!(key.check(START + 6000, 1).quotas(), [report(3, 0, 6000, 18_000, None)]);
    assert_eq!(key.check(START, 4).quotas()[0].retry, Some(Retry::Never));
    assert_eq!(
        key.states,
        [State::TokenBucket(TokenBucket {
            debt: 3 * u128::from(MINUTE),
            at_ms: START + 6000,
            window_ms: MINUTE,
            limit: 10,
            capacity: 3,
        })]
    );
    assert_eq!(key.peek(START + 24_000, 0).quotas(), [report(0, 3, 0, 0, None)]);
}

#[test]
fn logs_free_the_oldest_units_first() {
    for algorithm in ["sliding-log", "strict-window"] {
        let mut key = Key::parse(&[&format!("5/1m {algorithm}")]);
        for (at, units) in [(0, 2), (10, 1), (10, 1), (30, 1)] {
            assert!(key.check(START + at, units).is_allowed(), "{algorithm}");
        }
        let retry = |key: &mut Key, cost| key.check(START + 40, cost).retry_after_ms();
        assert_eq!(retry(&mut key, 1), Some(MINUTE - 40), "{algorithm}");
        assert_eq!(retry(&mut key, 2), Some(MINUTE - 40), "{algorithm}");
        assert_eq!(retry(&mut key, 3), Some(MINUTE - 30), "{algorithm}");
        assert_eq!(retry(&mut key, 4), Some(MINUTE - 30), "{algorithm}");
        assert_eq!(retry(&mut key, 5), Some(MINUTE - 10), "{algorithm}");
        assert_eq!(key.peek(START + 40, 0).quotas()[0].reset_after_ms, MINUTE - 10, "{algorithm}");
        assert_eq!(key.peek(START + MINUTE + 29, 0).quotas()[0].used, 1, "{algorithm}");
        assert_eq!(key.peek(START + MINUTE + 30, 0).quotas()[0].used, 0, "{algorithm}");
    }
}

#[test]
fn a_cost_above_the_limit_is_never_allowed_and_changes_no_state() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("5/1m {algorithm}")]);
        assert!(key.check(START, 2).is_allowed());
        let before = key.states.clone();
        for cost in [6, 1 << 48, u64::MAX] {
            let decision = key.check(START, cost);
            assert!(!decision.is_allowed() && decision.is_never(), "{algorithm} {cost}");
            assert_eq!(decision.retry_after_ms(), None, "{algorithm} {cost}");
        }
        assert_eq!(key.states, before, "{algorithm}");
    }
}

#[test]
fn cost_zero_is_a_peek() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("1/1m {algorithm}")]);
        assert!(key.check(START, 1).is_allowed());
        let before = key.states.clone();
        let decision = key.check(START + 1, 0);
        assert!(decision.is_allowed());
        assert_eq!((decision.remaining(), &key.states), (0, &before), "{algorithm}");
    }
}

#[test]
fn several_quotas_are_decided_all_or_nothing() {
    let mut key = Key::parse(&["2/1s", "3/1h", "100/1d"]);
    assert!(key.check(START, 1).is_allowed());
    assert!(key.check(START, 1).is_allowed());
    let before = key.states.clone();
    let denied = key.check(START, 2);
    assert_eq!(denied.violated().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(key.states, before, "a denial spends from no quota");
    // The retry is the longest wait, which is that of the hour.
    assert_eq!(denied.retry(), denied.quotas()[1].retry);
    assert!(denied.quotas()[0].retry < denied.quotas()[1].retry);
    assert_eq!(denied.tightest().limit, 2);
    assert_eq!(denied.quotas()[2].remaining, 98);
    // After the second, only the hour denies.
    let denied = key.check(START + 2000, 2);
    assert_eq!(denied.violated().collect::<Vec<_>>(), [1]);
    assert_eq!(denied.tightest().limit, 3);
    assert!(key.check(START + 2000, 1).is_allowed());
}

#[test]
fn never_takes_precedence_over_every_wait() {
    let mut key = Key::parse(&["2/1s", "100/1h"]);
    assert!(key.check(START, 2).is_allowed());
    let denied = key.check(START, 3);
    assert!(denied.is_never());
    assert_eq!(denied.retry_after_ms(), None);
}

#[test]
fn a_refund_restores_at_most_the_limit_and_a_reset_restores_it_fully() {
    for &algorithm in Algorithm::ALL {
        let mut key = Key::parse(&[&format!("5/1m {algorithm}")]);
        assert!(key.check(START, 4).is_allowed());
        assert_eq!(key.act(Verb::Refund, START, 1).remaining(), 2, "{algorithm}");
        assert_eq!(key.act(Verb::Refund, START, 100).remaining(), 5, "{algorithm}: never above the limit");
        assert_eq!(key.act(Verb::Refund, START, u64::MAX).remaining(), 5, "{algorithm}");
        assert!(key.check(START, 5).is_allowed(), "{algorithm}");
        assert!(!key.check(START, 1).is_allowed(), "{algorithm}");
        let reset = key.act(Verb::Reset, START, 1);
        assert_eq!((reset.remaining(), reset.quotas()[0].reset_after_ms), (5, 0), "{algorithm}");
        assert!(key.check(START, 5).is_allowed(), "{algorithm}");
    }
}
