//! Charges, which count beyond the limit, blocks, limits of 0, and the breakdown of counts in reports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;
use slidegate_core::{Action, Algorithm, MAX_COUNT, MAX_WINDOW_MS, Policy, Retry, Verb, decide};

const MINUTE: u64 = 60_000;
const START: u64 = 1_000_000 * MINUTE;

fn key(limit: u64, algorithm: Algorithm) -> Key {
    Key::parse(&[&format!("{limit}/1m {algorithm}")])
}

#[test]
fn a_charge_counts_in_full_and_a_peek_is_allowed_within_the_limit() {
    // Limit, cost of each charge, and number of allowed peeks before the first denial.
    for (limit, cost, peeks) in
        [(1000, 300, 4), (1000, 2500, 1), (10_000, 7, 1429), (2, 1, 3), (1000, 1000, 2)]
    {
        for &algorithm in Algorithm::ALL {
            let mut key = key(limit, algorithm);
            let mut allowed = 0;
            while key.peek(START, 0).is_allowed() {
                allowed += 1;
                let charged = key.act(Verb::Charge, START, cost);
                assert_eq!(charged.quotas()[0].used, allowed * cost, "{algorithm}");
                assert_eq!(charged.is_allowed(), allowed * cost <= limit, "{algorithm}");
            }
            assert_eq!(allowed, peeks, "{algorithm} {limit} {cost}");
            let denied = key.peek(START, 0);
            let wait_ms = denied.retry_after_ms().unwrap();
            assert_eq!(denied.remaining(), 0, "{algorithm}");
            assert!(!key.peek(START + wait_ms - 1, 0).is_allowed(), "{algorithm} {limit} {cost}");
            assert!(key.peek(START + wait_ms, 0).is_allowed(), "{algorithm} {limit} {cost}");
            assert!(!key.check(START, 1).is_allowed(), "{algorithm}: a check does not exceed the limit");
        }
    }
}

#[test]
fn the_largest_charges_are_bounded_by_the_largest_count() {
    for &algorithm in Algorithm::ALL {
        let mut key = key(1 << 48, algorithm);
        for step in 0..2000 {
            let charged = key.act(Verb::Charge, START + step, u64::MAX);
            let used = charged.quotas()[0].used;
            assert!(
                (MAX_COUNT - (1 << 49) / MINUTE * 2 * step..=MAX_COUNT).contains(&used),
                "{algorithm} {used}"
            );
        }
        let bytes: usize = key.states.iter().flat_map(slidegate_core::State::heap_bytes).sum();
        assert!(bytes < 1024, "{algorithm}: {bytes} bytes");
    }
}

#[test]
fn a_log_of_charges_is_small_and_its_units_expire() {
    let mut key = Key::parse(&["5/1m sliding-log"]);
    for step in 0..10_000 {
        let _ = key.act(Verb::Charge, START + step * 10, 1);
    }
    let bytes: usize = key.states.iter().flat_map(slidegate_core::State::heap_bytes).sum();
    assert!(bytes < 500, "{bytes} bytes");
    let now = START + 100_000;
    let used = key.peek(now, 0).quotas()[0].used;
    assert!(
        (6000..=6000 + 6000 / 4).contains(&used),
        "{used} units counted, 6000 charged in the window; units expire late by at most a quarter of it"
    );
    assert_eq!(key.peek(now + MINUTE, 0).quotas()[0].used, 0);
}

#[test]
fn a_large_charge_expires_while_small_charges_continue() {
    for &algorithm in Algorithm::ALL {
        let mut key = key(10, algorithm);
        let _ = key.act(Verb::Charge, START, 15);
        let mut used = 0;
        for step in 1..=100 {
            used = key.act(Verb::Charge, START + step * 50_000, 1).quotas()[0].used;
        }
        assert!(used <= 3, "{algorithm}: {used}");
    }
}

#[test]
fn a_charge_spends_from_every_quota() {
    let mut key = Key::parse(&["2/1s", "10/1h"]);
    assert!(!key.act(Verb::Charge, START, 3).is_allowed());
    let denied = key.peek(START, 0);
    assert_eq!(denied.violated().collect::<Vec<_>>(), [0]);
    assert_eq!(denied.quotas().iter().map(|report| report.used).collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn a_limit_of_zero_denies_every_cost_without_a_retry_time() {
    for &algorithm in Algorithm::ALL {
        let mut key = key(0, algorithm);
        assert!(key.check(START, 0).is_allowed(), "{algorithm}");
        let denied = key.check(START, 1);
        assert!(denied.is_never() && denied.remaining() == 0 && denied.limit() == 0, "{algorithm}");
        assert!(key.act(Verb::Refund, START, 5).quotas()[0].used == 0, "{algorithm}");
        // A charge is counted and expires.
        assert!(!key.act(Verb::Charge, START, 2).is_allowed(), "{algorithm}");
        let wait_ms = key.peek(START, 0).retry_after_ms().unwrap();
        assert!(wait_ms <= 2 * MINUTE, "{algorithm} {wait_ms}");
        assert!(key.peek(START + wait_ms, 0).is_allowed(), "{algorithm}");
        // A raised limit allows requests.
        key.policy = Policy::parse("test", [&*format!("5/1m {algorithm}")]).unwrap();
        assert!(key.check(START + 2 * MINUTE, 5).is_allowed(), "{algorithm}");
    }
}

#[test]
fn a_blocked_key_is_denied_until_the_block_ends() {
    for quotas in [&["5/1m"][..], &["5/1m token-bucket"], &["5/1s", "9/1h strict-window"]] {
        let mut key = Key::parse(quotas);
        assert!(key.check(START, 2).is_allowed());
        let blocked = key.act(Verb::Block, START, 10 * MINUTE);
        assert_eq!((blocked.is_allowed(), blocked.remaining()), (true, 0));
        for (now, cost) in [(START, 1), (START + 5 * MINUTE, 0), (START + 10 * MINUTE - 1, 1)] {
            let denied = key.check(now, cost);
            assert_eq!(denied.retry_after_ms(), Some(START + 10 * MINUTE - now), "{quotas:?}");
            assert!(!key.peek(now, cost).is_allowed());
            assert!(denied.reset_after_ms() >= START + 10 * MINUTE - now);
        }
        assert!(!key.act(Verb::Charge, START + MINUTE, 1).is_allowed(), "{quotas:?}");
        assert_eq!(key.act(Verb::Refund, START + MINUTE, 1).remaining(), 0);
        assert!(key.clone().check(START, 6).is_never() || quotas.len() == 2);
        // The counts continue during the block.
        assert!(key.clone().check(START + 10 * MINUTE, 2).is_allowed(), "{quotas:?}");
        assert!(key.clone().act(Verb::Block, START + 1, 0).remaining() > 0, "{quotas:?}: ended");
        assert!(key.act(Verb::Reset, START + 1, 0).is_found());
        assert!(key.check(START + 1, 5).is_allowed(), "{quotas:?}");
    }
}

#[test]
fn a_block_lasts_at_most_a_year_and_applies_to_all_versions_of_the_policy() {
    let mut key = key(5, Algorithm::SlidingWindow);
    assert_eq!(key.act(Verb::Block, START, u64::MAX).reset_after_ms(), MAX_WINDOW_MS);
    for quotas in [["9/1h"], ["9/1h token-bucket"], ["5/1m"]] {
        key.policy = Policy::parse("test", quotas).unwrap();
        assert!(!key.check(START + 1, 1).is_allowed());
        assert!(!key.act(Verb::Charge, START + 1, 1).is_allowed());
    }
    assert!(key.check(START + MAX_WINDOW_MS, 1).is_allowed());
    assert_eq!(key.states.len(), 1, "an expired block is dropped");
    // A clock that stepped back by more than the longest block does not lock the key out.
    assert!(key.act(Verb::Block, START + 2 * MAX_WINDOW_MS, 1).remaining() == 0);
    assert!(key.check(START, 1).is_allowed());
}

#[test]
fn a_reset_reports_whether_it_removed_a_count_or_a_block() {
    for &algorithm in Algorithm::ALL {
        let mut key = key(5, algorithm);
        assert!(!key.act(Verb::Reset, START, 0).is_found(), "{algorithm}");
        assert!(key.check(START, 1).is_allowed());
        assert!(!key.check(START, 0).is_found(), "{algorithm}: not a reset");
        assert!(key.clone().act(Verb::Reset, START + 1, 0).is_found(), "{algorithm}");
        assert!(!key.act(Verb::Reset, START + 2 * MINUTE, 0).is_found(), "{algorithm}: expired");
    }
    let mut blocked = key(5, Algorithm::default());
    let _ = blocked.act(Verb::Block, START, MINUTE);
    assert!(blocked.clone().act(Verb::Reset, START, 0).is_found());
    assert!(!blocked.act(Verb::Reset, START + MINUTE, 0).is_found());
}

#[test]
fn a_report_contains_the_breakdown_of_the_count() {
    let report = |quota: &str| {
        let mut key = Key::parse(&[quota]);
        assert!(key.check(START, 4).is_allowed());
        assert!(key.check(START + MINUTE / 2, 2).is_allowed());
        assert!(key.check(START + MINUTE + MINUTE / 4, 3).is_allowed());
        let report = key.peek(START + MINUTE + MINUTE / 2, 0).tightest();
        (report.used, report.previous, report.current, report.oldest_age_ms)
    };
    assert_eq!(report("20/1m"), (6, 6, 3, None));
    assert_eq!(report("20/1m fixed-window"), (3, 0, 3, None));
    assert_eq!(report("20/1m token-bucket"), (0, 0, 0, None));
    assert_eq!(report("20/2m sliding-log"), (9, 0, 9, Some(MINUTE + MINUTE / 2)));
    assert_eq!(report("20/2m strict-window"), (9, 0, 9, Some(MINUTE + MINUTE / 2)));
    assert_eq!(report("20/1m sliding-log"), (3, 0, 3, Some(MINUTE / 4)));
}

/// By a clock with a grain, an admission at the end of one tick and an admission at the start of the tick one window later are
/// less than a window apart in real time.
#[test]
fn the_exact_algorithms_stamp_late_and_check_early() {
    for (algorithm, is_exact) in [("strict-window", true), ("sliding-log", true), ("sliding-window", false)] {
        let policy = Policy::parse("test", [&*format!("1/100ms {algorithm}")]).unwrap();
        let mut states = Vec::new();
        let mut check =
            |now_ms| decide(&mut states, &policy, Action::new(Verb::Check, now_ms, 1).with_grain_ms(4)).0;
        let first = check(START);
        assert!(first.is_allowed());
        let reset_ms = first.reset_after_ms();
        assert_eq!(reset_ms, if is_exact { 104 } else { 200 }, "{algorithm}");
        if is_exact {
            assert_eq!(check(START + 100).retry(), Some(Retry::AfterMs(4)), "{algorithm}");
            assert!(check(START + 104).is_allowed(), "{algorithm}");
        }
    }
}
