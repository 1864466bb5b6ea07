//! Choice of the pairs that a strict window merges when its slots are full: counts and spans at their bounds, and equal prices.
//!
//! A merged pair keeps the newer time. A test detects a merge because the units of the older pair expire later.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;

const START: u64 = 1_800_000_000_000;

/// Returns a strict window of 800 ms and 8 slots after nine admissions, one more than its slots. A merged pair spans at most
/// 400 ms and counts at most half of the limit, rounded up.
fn merged(limit: u64, first: [(u64, u64); 3], others: [(u64, u64); 6]) -> Key {
    let mut key = Key::parse(&[&format!("{limit}/800ms strict-window slots=8")]);
    for (at_ms, units) in first.into_iter().chain(others) {
        assert!(key.check(START + at_ms, units).is_allowed());
    }
    key
}

/// Returns the used units one millisecond before and at the time at which an unmerged admission at `at_ms` expires.
fn used_around(key: &mut Key, at_ms: u64) -> [u64; 2] {
    let end_ms = START + at_ms + 800;
    [end_ms - 1, end_ms].map(|now_ms| key.peek(now_ms, 0).quotas()[0].used)
}

#[test]
fn a_span_of_exactly_four_windows_by_slots_is_merged() {
    let others = [(450, 5), (500, 5), (550, 5), (600, 5), (650, 5), (700, 5)];
    let mut key = merged(1000, [(0, 1), (399, 1), (400, 5)], others);
    assert_eq!(used_around(&mut key, 399), [36, 36], "the second pair expires with the third");
    assert_eq!(used_around(&mut key, 400), [36, 30]);
    // One millisecond more is too much: the third pair is merged into the fourth.
    let mut key = merged(1000, [(0, 1), (400, 1), (401, 5)], others);
    assert_eq!(used_around(&mut key, 400), [36, 35]);
    assert_eq!(used_around(&mut key, 401), [35, 35]);
}

#[test]
fn a_count_of_exactly_four_limits_by_slots_is_merged() {
    let others = [(111, 6), (211, 6), (311, 6), (411, 6), (511, 6), (611, 6)];
    // Half of a limit of 101 is rounded up to 51.
    for (limit, units) in [(100, 25), (101, 26)] {
        let mut key = merged(limit, [(0, 1), (10, units), (11, 25)], others);
        assert_eq!(
            used_around(&mut key, 10),
            [units + 61, units + 61],
            "{limit}: the second pair expires with the third"
        );
        assert_eq!(used_around(&mut key, 11), [units + 61, 36], "{limit}");
        // One unit more is too much: the oldest of the cheapest pairs is merged.
        let mut key = merged(limit, [(0, 1), (10, units + 1), (11, 25)], others);
        assert_eq!(used_around(&mut key, 10), [units + 62, 61], "{limit}");
        assert_eq!(used_around(&mut key, 11), [61, 36], "{limit}");
        assert_eq!(used_around(&mut key, 111), [36, 36], "{limit}");
        assert_eq!(used_around(&mut key, 211), [36, 24], "{limit}");
    }
}

#[test]
fn of_pairs_with_equal_price_the_oldest_is_merged() {
    let mut key = merged(
        1000,
        [50, 100, 150].map(|at_ms| (at_ms, 1)),
        [200, 250, 300, 350, 400, 450].map(|at_ms| (at_ms, 1)),
    );
    assert_eq!(used_around(&mut key, 50), [9, 8], "the start of the oldest pair is unknown");
    assert_eq!(used_around(&mut key, 100), [8, 8]);
    assert_eq!(used_around(&mut key, 150), [8, 6]);
    assert_eq!(used_around(&mut key, 200), [6, 5]);
}
