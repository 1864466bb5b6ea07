//! Merges of a strict window with full slots: spans and counts at their bounds, and pairs of equal price.
//!
//! A merged pair keeps the newer time. A merge shows in the units of the older pair, which expire later.

use slidegate::store::{Operation, Store};
use slidegate::{Policy, Verb};

use super::{START, Subject};

/// Nine admissions of one key, one more than the slots of `LIMIT/800ms strict-window slots=8`. A merged pair spans at most 400 ms,
/// and counts at most half of the limit, rounded up.
struct Case {
    name: &'static str,
    limit: u64,
    /// Time after the start, and units.
    admissions: [(u64, u64); 9],
    /// Time of an admission, and the used units one millisecond before and at the expiry of an unmerged pair of that time.
    used: &'static [(u64, [u64; 2])],
}

/// Returns three admissions followed by six of the same number of units.
fn followed_by(first: [(u64, u64); 3], times: [u64; 6], units: u64) -> [(u64, u64); 9] {
    let mut all = [(0, 0); 9];
    all[..3].copy_from_slice(&first);
    all[3..].copy_from_slice(&times.map(|at_ms| (at_ms, units)));
    all
}

fn cases() -> [Case; 7] {
    let late = [450, 500, 550, 600, 650, 700];
    let apart = [111, 211, 311, 411, 511, 611];
    let count = |units: u64| followed_by([(0, 1), (10, units), (11, 25)], apart, 6);
    [
        Case {
            name: "a span of exactly four windows by slots",
            limit: 1000,
            admissions: followed_by([(0, 1), (399, 1), (400, 5)], late, 5),
            used: &[(399, [36, 36]), (400, [36, 30])],
        },
        // The third pair is merged into the fourth.
        Case {
            name: "a span of one millisecond more",
            limit: 1000,
            admissions: followed_by([(0, 1), (400, 1), (401, 5)], late, 5),
            used: &[(400, [36, 35]), (401, [35, 35])],
        },
        Case {
            name: "a count of exactly four limits by slots",
            limit: 100,
            admissions: count(25),
            used: &[(10, [86, 86]), (11, [86, 36])],
        },
        // The oldest of the cheapest pairs is merged.
        Case {
            name: "a count of one unit more",
            limit: 100,
            admissions: count(26),
            used: &[(10, [87, 61]), (11, [61, 36]), (111, [36, 36]), (211, [36, 24])],
        },
        Case {
            name: "a count of exactly four limits by slots, rounded up",
            limit: 101,
            admissions: count(26),
            used: &[(10, [87, 87]), (11, [87, 36])],
        },
        Case {
            name: "a count of one unit more than the rounded one",
            limit: 101,
            admissions: count(27),
            used: &[(10, [88, 61]), (11, [61, 36]), (111, [36, 36]), (211, [36, 24])],
        },
        // The start of the oldest pair is unknown, so it is not merged.
        Case {
            name: "pairs of equal price, of which the oldest is merged",
            limit: 1000,
            admissions: followed_by([(50, 1), (100, 1), (150, 1)], [200, 250, 300, 350, 400, 450], 1),
            used: &[(50, [9, 8]), (100, [8, 8]), (150, [8, 6]), (200, [6, 5])],
        },
    ]
}

/// Each store merges the same pairs as the core, at both bounds of a merge too.
pub(crate) async fn strict_windows_merge_up_to_their_bounds<S: Store>(subject: Subject<S>) {
    for (number, case) in (0..).zip(cases()) {
        let start_ms = START + 10_000 * number;
        let quota = format!("{}/800ms strict-window slots=8", case.limit);
        let policy = Policy::parse("merged", [quota.as_str()]).unwrap();
        let run = async |verb: Verb, at_ms: u64, cost: u64| {
            (subject.set_now)(start_ms + at_ms);
            let operation = Operation::new(verb, policy.key(case.name).cost(cost));
            subject.store.execute(&[operation]).await.into_single().unwrap()
        };
        for (at_ms, units) in case.admissions {
            assert!(run(Verb::Check, at_ms, units).await.is_allowed(), "{}", case.name);
        }
        for (at_ms, expected) in case.used {
            let end_ms = at_ms + 800;
            let used = [
                run(Verb::Peek, end_ms - 1, 0).await.quotas()[0].used,
                run(Verb::Peek, end_ms, 0).await.quotas()[0].used,
            ];
            assert_eq!(used, *expected, "{}, at {at_ms}", case.name);
        }
    }
}

/// A quota with fewer slots than its count has pairs. Pairs are merged when units are added, and not by a refund or a denial.
pub(crate) async fn fewer_slots_merge_nothing_until_units_are_added<S: Store>(subject: Subject<S>) {
    const WINDOW_MS: u64 = 3_600_000;
    let many = Policy::parse("slots", ["1000/1m strict-window slots=16"]).unwrap();
    let few = Policy::parse("slots", ["9/1h strict-window slots=4"]).unwrap();
    let actions =
        [("refund", Verb::Refund, 1, 7), ("denial", Verb::Check, 9, 8), ("charge of 0", Verb::Charge, 0, 8)];
    for (number, (key, verb, cost, left)) in (0..).zip(actions) {
        let start_ms = START + 10 * WINDOW_MS * number;
        let run = async |verb: Verb, at_ms: u64, policy: &Policy, cost: u64| {
            (subject.set_now)(start_ms + at_ms);
            let operation = Operation::new(verb, policy.key(key).cost(cost));
            subject.store.execute(&[operation]).await.into_single().unwrap()
        };
        for pair in 1..=8 {
            assert!(run(Verb::Check, 100 * pair, &many, 1).await.is_allowed(), "{key}");
        }
        let acted = run(verb, 900, &few, cost).await;
        assert_eq!((acted.is_allowed(), acted.quotas()[0].used), (verb != Verb::Check, left), "{key}");
        for pair in 9 - left..=8 {
            let used = run(Verb::Peek, 100 * pair + WINDOW_MS, &few, 0).await.quotas()[0].used;
            assert_eq!(used, 8 - pair, "{key}, pair {pair}");
        }
    }
}
