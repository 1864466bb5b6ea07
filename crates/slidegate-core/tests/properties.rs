//! The guarantees of all algorithms under arbitrary traffic, compared with a naive exact log.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::{Key, Log};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use slidegate_core::{
    Action, Algorithm, Anchor, Counter, FastCheck, MAX_LIMIT, MAX_WINDOW_MS, NarrowBucket, Quota,
    SlidingWindow, TokenBucket, Verb, decide_one, fast_check,
};
use std::time::Duration;

/// A time that is not the start of a window.
const START: u64 = 1_700_000_000_123;

/// A request: milliseconds since the previous request, and cost.
type Request = (u64, u64);

fn quota(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let sizes = (prop_oneof![1..=8_u64, 9..=200_u64], prop_oneof![1..=20_u64, 21..=500_u64]);
    (sizes, 1..=300_u64, 2..=16_u8, any::<bool>()).prop_map(
        move |((limit, window_ms), burst, half_slots, anchored)| {
            let quota =
                Quota::new(limit, Duration::from_millis(window_ms)).unwrap().with_algorithm(algorithm);
            match algorithm {
                Algorithm::TokenBucket => quota.with_burst(burst).unwrap(),
                Algorithm::StrictWindow => quota.with_slots(u64::from(half_slots) * 2).unwrap(),
                Algorithm::SlidingWindow | Algorithm::FixedWindow if anchored => {
                    quota.with_anchor(Anchor::FirstRequest).unwrap()
                }
                _ => quota,
            }
        },
    )
}

/// Returns numbers of all magnitudes with equal probability.
fn of_any_size() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(number, bits)| number >> bits)
}

fn any_quota() -> impl Strategy<Value = Quota> {
    prop::sample::select(Algorithm::ALL.to_vec()).prop_flat_map(quota)
}

fn from_epoch(quota: Quota) -> Quota {
    quota.with_anchor(Anchor::Epoch).unwrap()
}

/// Returns traffic with mostly small steps and costs of one, some idle windows and some costs above the limit.
fn traffic() -> impl Strategy<Value = Vec<Request>> {
    let step = prop_oneof![4 => Just(0), 8 => 0..=5_u64, 4 => 0..=60_u64, 1 => 0..=1500_u64];
    let cost = prop_oneof![8 => Just(1_u64), 3 => 0..=4_u64, 2 => 0..=40_u64, 1 => 0..=250_u64];
    prop::collection::vec((step, cost), 1..300)
}

/// Runs the traffic and returns the admissions.
fn admitted(quota: Quota, requests: &[Request]) -> Log {
    let mut key = Key::new(&[quota]);
    let mut log = Log::default();
    let mut now = START;
    for (step, cost) in requests {
        now += step;
        if key.check(now, *cost).is_allowed() {
            log.admit(now, *cost);
        }
    }
    log
}

/// Returns the units that a strict window must admit: the larger of L minus the admissions in W(1+4/S) and L(1−4/S) minus the
/// admissions in W.
fn guaranteed_by_floors(quota: &Quota, log: &Log, now: u64) -> u64 {
    let (limit, window_ms, slots) = (quota.limit(), quota.window_ms(), u64::from(quota.slots()));
    let by_time = limit.saturating_sub(log.count(now, window_ms + (4 * window_ms).div_ceil(slots)));
    let by_count = (limit * (slots - 4) / slots).saturating_sub(log.count(now, window_ms));
    by_time.max(by_count)
}

/// Traffic with many small pairs that are cheap to merge, and few large ones. Each merge rule has a row that fails without it.
#[test]
fn strict_window_keeps_its_floors_with_many_cheap_merges() {
    let heavy = |count: u64| (0..15).map(move |number| (number * 1000, count));
    // Single units for two windows: without a bound on the span, all of them would become one pair.
    let drip: Vec<_> = heavy(1000).chain((0..6000).map(|number| (15_000 + number * 20, 1))).collect();
    // Most of the limit within seconds, one unit per millisecond: without a bound on the count, all of them would become one
    // pair.
    let gush: Vec<_> = heavy(300).chain((0..14_000).map(|number| (15_000 + number, 1))).collect();
    for (name, trace) in [("drip", drip), ("gush", gush)] {
        let quota: Quota = "20000/1m strict-window".parse().unwrap();
        let mut key = Key::new(&[quota]);
        let mut log = Log::default();
        for (number, (after_ms, cost)) in trace.into_iter().enumerate() {
            let now = START + after_ms;
            if key.check(now, cost).is_allowed() {
                log.admit(now, cost);
            }
            if number % 50 == 0 {
                for later in [now, now + 30_000, now + 45_000, now + 59_000, now + 74_000] {
                    let guaranteed = guaranteed_by_floors(&quota, &log, later);
                    assert!(
                        key.peek(later, guaranteed).is_allowed(),
                        "{name}: {guaranteed} after the request at {after_ms}, checked at {later}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn strict_window_and_sliding_log_never_exceed_the_limit(
        quota in prop_oneof![quota(Algorithm::StrictWindow), quota(Algorithm::SlidingLog)],
        requests in traffic(),
    ) {
        prop_assert!(admitted(quota, &requests).busiest(quota.window_ms()) <= quota.limit());
    }

    #[test]
    fn sliding_window_stays_below_twice_the_limit(quota in quota(Algorithm::SlidingWindow), requests in traffic()) {
        let (limit, window_ms) = (quota.limit(), quota.window_ms());
        let log = admitted(quota, &requests);
        prop_assert!(log.busiest(window_ms) < 2 * limit);
        for span_ms in [1, window_ms / 4, window_ms / 2, window_ms * 3 / 4] {
            prop_assert!(log.busiest(span_ms) <= limit + limit * span_ms / window_ms);
        }
    }

    #[test]
    fn fixed_window_stays_within_twice_the_limit(quota in quota(Algorithm::FixedWindow), requests in traffic()) {
        prop_assert!(admitted(quota, &requests).busiest(quota.window_ms()) <= 2 * quota.limit());
    }

    #[test]
    fn token_bucket_stays_within_burst_and_refill(quota in quota(Algorithm::TokenBucket), requests in traffic()) {
        let log = admitted(quota, &requests);
        for span_ms in [1, 2, 7, 50, 333, quota.window_ms(), 2 * quota.window_ms()] {
            let refill = quota.limit() * span_ms / quota.window_ms();
            prop_assert!(log.busiest(span_ms) <= quota.capacity() + refill);
        }
    }

    #[test]
    fn sliding_log_equals_the_naive_log(quota in quota(Algorithm::SlidingLog), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut log = Log::default();
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            let used = log.count(now, quota.window_ms());
            let decision = key.check(now, cost);
            prop_assert_eq!(decision.is_allowed(), used + cost <= quota.limit());
            if decision.is_allowed() {
                log.admit(now, cost);
            }
            prop_assert_eq!(decision.quotas()[0].used, log.count(now, quota.window_ms()));
        }
    }

    #[test]
    fn strict_window_is_exact_while_the_limit_fits_its_slots(
        quota in quota(Algorithm::StrictWindow),
        requests in traffic(),
    ) {
        let quota = Quota::new(u64::from(quota.slots()), Duration::from_millis(quota.window_ms())).unwrap();
        let exact = admitted(quota.with_algorithm(Algorithm::SlidingLog), &requests);
        let slots = quota.limit();
        let strict = quota.with_algorithm(Algorithm::StrictWindow).with_slots(slots).unwrap();
        prop_assert_eq!(admitted(strict, &requests).0, exact.0);
    }

    #[test]
    fn strict_window_keeps_its_floors(quota in quota(Algorithm::StrictWindow), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut log = Log::default();
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            if key.check(now, cost).is_allowed() {
                log.admit(now, cost);
            }
            let guaranteed = guaranteed_by_floors(&quota, &log, now);
            prop_assert!(key.peek(now, guaranteed).is_allowed(), "{guaranteed}");
        }
    }

    #[test]
    fn a_retry_is_exact_to_the_millisecond(quota in any_quota(), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            let decision = key.check(now, cost);
            if let Some(wait) = decision.retry_after_ms() {
                prop_assert!(wait >= 1);
                prop_assert!(!key.clone().check(now + wait - 1, cost).is_allowed(), "one millisecond earlier");
                prop_assert!(key.clone().check(now + wait, cost).is_allowed(), "at the retry time");
            } else {
                prop_assert_eq!(decision.is_never(), cost > quota.capacity());
                prop_assert_eq!(decision.is_allowed(), cost <= quota.capacity());
            }
        }
    }

    #[test]
    fn a_fast_check_equals_the_full_decision(
        quota in quota(Algorithm::SlidingWindow),
        requests in traffic(),
        back in prop::collection::vec(0..3_u64, 300),
    ) {
        let mut counter = SlidingWindow::empty(&quota);
        let mut now = START;
        for ((step, cost), back) in requests.into_iter().zip(back) {
            now = now + step - back;
            let before = counter;
            let (decision, _) = decide_one(&mut counter, &quota, Action::new(Verb::Check, now, cost));
            let (outcome, spent) = match fast_check(&before, &quota, now, cost) {
                Some(FastCheck::Allowed(outcome)) => {
                    prop_assert!(cost == 0 || outcome.remaining() > 0, "the last unit is not spent on the fast path");
                    (outcome, cost)
                }
                Some(FastCheck::Denied(outcome)) => (outcome, 0),
                None => {
                    let is_in_window = before.start_ms <= now && now < before.start_ms + before.window_ms;
                    let is_last = decision.is_allowed() && decision.remaining() == 0;
                    prop_assert!(!is_in_window || before.cur == 0 || is_last);
                    continue;
                }
            };
            prop_assert_eq!(outcome, decision);
            prop_assert_eq!(SlidingWindow { cur: before.cur + spent, ..before }, counter);
        }
    }

    /// Covers all sizes up to the largest that fits, all times up to the latest one, and debts beyond the capacity, which occur
    /// after a change of the limit.
    #[test]
    fn a_narrow_bucket_equals_a_wide_one(
        limit in of_any_size(),
        window_ms in of_any_size(),
        burst in of_any_size(),
        debt in of_any_size(),
        now in prop_oneof![Just(START), Just(u64::MAX), any::<u64>()],
        steps in prop::collection::vec((of_any_size(), 0..5_u8, 0..5_u8, of_any_size()), 1..50),
    ) {
        let quota = Quota::new(limit.clamp(1, MAX_LIMIT), Duration::from_millis(window_ms.clamp(1, MAX_WINDOW_MS)));
        let quota = quota.unwrap().with_algorithm(Algorithm::TokenBucket);
        let quota = quota.with_burst(burst.clamp(1, MAX_LIMIT)).unwrap();
        // Halve the burst until it fits, so that the product is often close to the limit of 64 bits.
        let halves = (0..48).map(|halvings| quota.with_burst((quota.capacity() >> halvings).max(1)).unwrap());
        let quota = halves.into_iter().find(NarrowBucket::fits).unwrap();
        let mut now = now.min(1 << 60);
        let mut narrow = NarrowBucket { debt, at_ms: now };
        let mut wide = TokenBucket { debt: u128::from(debt), at_ms: now, ..TokenBucket::empty(&quota) };
        for (step, direction, verb, cost) in steps {
            now = match direction {
                0 => now.saturating_sub(step % (3 * quota.window_ms())),
                1 => now,
                2 => now.saturating_add(step % 1000),
                3 => now.saturating_add(step % (2 * quota.window_ms())),
                _ => now.saturating_add(step),
            };
            let verb = [Verb::Check, Verb::Check, Verb::Peek, Verb::Refund, Verb::Reset][usize::from(verb)];
            let action = Action::new(verb, now, cost);
            prop_assert_eq!(decide_one(&mut narrow, &quota, action), decide_one(&mut wide, &quota, action));
            prop_assert_eq!((u128::from(narrow.debt), narrow.at_ms), (wide.debt, wide.at_ms));
        }
    }

    #[test]
    fn a_denial_or_a_peek_changes_nothing(quota in any_quota(), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            // The first peek only creates empty states.
            let peeked = key.peek(now, cost);
            let before = key.states.clone();
            prop_assert_eq!(&key.peek(now, cost), &peeked);
            prop_assert_eq!(&key.states, &before);
            let decision = key.check(now, cost);
            prop_assert_eq!(decision.is_allowed(), peeked.is_allowed());
            if !decision.is_allowed() {
                prop_assert_eq!(&decision, &peeked);
                prop_assert_eq!(&key.states, &before);
            }
        }
    }

    #[test]
    fn remaining_and_reset_times_are_exact(quota in any_quota(), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            let report = key.check(now, cost).quotas()[0];
            prop_assert_eq!(report.remaining, quota.capacity().saturating_sub(report.used));
            prop_assert!(key.peek(now, report.remaining).is_allowed());
            prop_assert!(!key.peek(now, report.remaining + 1).is_allowed());
            prop_assert_eq!(report.more_after_ms == 0, report.used == 0);
            if report.used > 0 {
                let more_at = now + report.more_after_ms;
                prop_assert!(!key.peek(more_at - 1, report.remaining + 1).is_allowed());
                prop_assert!(key.peek(more_at, report.remaining + 1).is_allowed());
            }
            prop_assert_eq!(key.peek(now + report.reset_after_ms, 0).quotas()[0].used, 0);
            if report.reset_after_ms > 0 {
                prop_assert!(key.peek(now + report.reset_after_ms - 1, 0).quotas()[0].used > 0);
            }
        }
    }

    #[test]
    fn policies_spend_from_all_quotas_or_from_none(
        quotas in prop::collection::vec(any_quota(), 2..5),
        requests in traffic(),
    ) {
        let named = quotas.iter().enumerate().map(|(index, quota)| (index.to_string(), *quota));
        let policy = slidegate_core::Policy::with_names("test", named).unwrap();
        let mut together = Key { policy, states: Vec::new() };
        let mut alone: Vec<Key> = quotas.iter().map(|quota| Key::new(&[*quota])).collect();
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            let peeks: Vec<_> = alone.iter_mut().map(|key| key.peek(now, cost)).collect();
            let decision = together.check(now, cost);
            prop_assert_eq!(decision.is_allowed(), peeks.iter().all(slidegate_core::Decision::is_allowed));
            let violated: Vec<_> = (0..quotas.len()).filter(|index| !peeks[*index].is_allowed()).collect();
            prop_assert_eq!(decision.violated().collect::<Vec<_>>(), violated);
            prop_assert_eq!(decision.retry(), peeks.iter().filter_map(slidegate_core::Decision::retry).max());
            if decision.is_allowed() {
                for key in &mut alone {
                    prop_assert!(key.check(now, cost).is_allowed());
                }
            }
            let remaining = alone.iter_mut().map(|key| key.peek(now, 0).remaining()).min().unwrap();
            prop_assert_eq!(decision.remaining(), remaining);
        }
    }

    #[test]
    fn an_immediate_refund_restores_the_remaining_units(quota in any_quota(), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut now = START;
        for (step, cost) in requests {
            now += step;
            let before = key.peek(now, 0).remaining();
            if key.check(now, cost).is_allowed() {
                prop_assert_eq!(key.clone().act(Verb::Refund, now, cost).remaining(), before);
            }
        }
    }

    /// Refunds arbitrary units of the last window. The outstanding units never exceed the limit in any window.
    #[test]
    fn refunds_never_create_quota(
        quota in prop_oneof![quota(Algorithm::StrictWindow), quota(Algorithm::SlidingLog)],
        requests in prop::collection::vec((0..=20_u64, 1..=5_u64, any::<prop::sample::Index>(), any::<bool>()), 1..300),
    ) {
        let mut key = Key::new(&[quota]);
        let mut outstanding = Log::default();
        let mut now = START;
        for (step, cost, which, is_refund) in requests {
            now += step;
            let live: Vec<usize> = (0..outstanding.0.len())
                .filter(|index| outstanding.0[*index].0 + quota.window_ms() > now)
                .collect();
            if is_refund && !live.is_empty() {
                let before = key.peek(now, 0).remaining();
                let (_, units) = outstanding.0.remove(live[which.index(live.len())]);
                prop_assert_eq!(key.act(Verb::Refund, now, units).remaining(), before + units);
            } else if key.check(now, cost).is_allowed() {
                outstanding.admit(now, cost);
            }
        }
        prop_assert!(outstanding.busiest(quota.window_ms()) <= quota.limit());
    }

    /// Compares a key that receives refunds with a copy that does not: its additional admissions never exceed the refunds. Excludes
    /// windows that start at the first request, because a full refund moves their start, and strict windows, because merges
    /// depend on the admissions. Both keep to their limit, see above.
    #[test]
    fn a_refund_admits_no_more_than_it_gives_back(
        quota in prop_oneof![
            quota(Algorithm::SlidingWindow).prop_map(from_epoch),
            quota(Algorithm::FixedWindow).prop_map(from_epoch),
            quota(Algorithm::TokenBucket),
            quota(Algorithm::SlidingLog),
        ],
        requests in prop::collection::vec((0..=20_u64, 0..=5_u64, 0..=3_u64), 1..300),
        from in any::<prop::sample::Index>(),
    ) {
        let mut refunded = Key::new(&[quota]);
        let mut now = START;
        let (before, after) = requests.split_at(from.index(requests.len()));
        for (step, cost, back) in before {
            now += step;
            let _ = refunded.check(now, *cost);
            let _ = refunded.act(Verb::Refund, now, *back);
        }
        let mut unrefunded = refunded.clone();
        let (mut admitted, mut admitted_without, mut given_back) = (0, 0, 0);
        for (step, cost, back) in after {
            now += step;
            for _ in 0..*cost {
                admitted += u64::from(refunded.check(now, 1).is_allowed());
                admitted_without += u64::from(unrefunded.check(now, 1).is_allowed());
            }
            prop_assert!(admitted <= admitted_without + given_back, "{admitted}, {admitted_without} + {given_back}");
            let back = (*back).min(refunded.peek(now, 0).quotas()[0].used);
            let _ = refunded.act(Verb::Refund, now, back);
            given_back += back;
        }
    }

    #[test]
    fn a_refund_gives_back_at_most_the_used_units(quota in any_quota(), requests in traffic()) {
        let mut key = Key::new(&[quota]);
        let mut now = START;
        for (index, (step, cost)) in requests.into_iter().enumerate() {
            now += step;
            let before = key.peek(now, 0).quotas()[0];
            let verb = if index % 3 == 2 { Verb::Refund } else { Verb::Check };
            let after = key.act(verb, now, cost).quotas()[0];
            prop_assert!(after.remaining <= quota.capacity());
            if verb == Verb::Refund {
                prop_assert!(after.used <= before.used && before.used - after.used <= cost);
            }
        }
    }

    /// With arbitrary jumps of the clock, no decision panics and every retry time is exact. It is at most two windows (or the
    /// refill of a bucket) after the stored time, which is at most one window ahead.
    #[test]
    fn a_jumping_clock_locks_no_key_out(
        quota in any_quota(),
        requests in prop::collection::vec((0..2000_u64, 0..=20_u64), 1..100),
    ) {
        let mut key = Key::new(&[quota]);
        for (now, cost) in requests {
            let decision = key.check(now, cost);
            if let Some(wait) = decision.retry_after_ms() {
                let refill_ms = (quota.capacity() * quota.window_ms()).div_ceil(quota.limit());
                prop_assert!(wait <= quota.window_ms() + refill_ms.max(2 * quota.window_ms()), "{wait}");
                prop_assert!(!key.clone().check(now + wait - 1, cost).is_allowed());
                prop_assert!(key.clone().check(now + wait, cost).is_allowed());
            }
        }
    }

    #[test]
    fn any_text_is_a_quota_or_an_error_with_a_field_and_a_message(text in prop_oneof!["\\PC*", "[0-9]{0,20}/[0-9]{0,20}[a-z]{0,4}( [a-z-]+(=[0-9a-z-]+)?)?"]) {
        match text.parse::<Quota>() {
            Ok(quota) => prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota)),
            Err(error) => prop_assert!(!error.field().is_empty() && !error.message().is_empty()),
        }
    }

    #[test]
    fn any_valid_quota_equals_its_parsed_text(quota in any_quota()) {
        prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota));
    }
}
