//! Real time: what the exact algorithms promise by a clock of any grain, at moments that an adversary chooses.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use proptest::prelude::*;
use slidegate_core::{Action, Algorithm, Decision, Policy, Quota, State, Verb, decide};

/// Real moments are in microseconds, a thousand for each millisecond of the clock.
const START_US: u64 = 1_700_000_000_123_456;
const US_PER_MS: u64 = 1000;

/// A request: how long after the one before it, how far its reading is behind of what the grain allows, and its cost.
#[derive(Clone, Copy, Debug)]
struct Request {
    after_us: u64,
    behind: prop::sample::Index,
    cost: u64,
}

/// How a clock is wrong, by at most its grain.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// It shows the last of its ticks, which are a grain apart and begin anywhere.
    LastTick { phase_ms: u64 },
    /// It shows anything that its grain allows, each time another.
    Anything,
}

impl Reading {
    /// A whole millisecond, not after the real moment and not more than the grain before it.
    fn now_ms(self, real_us: u64, grain_ms: u64, behind: prop::sample::Index) -> u64 {
        let latest_ms = real_us / US_PER_MS;
        match self {
            Self::LastTick { phase_ms } => latest_ms - (latest_ms + phase_ms) % grain_ms,
            Self::Anything => {
                let earliest_ms = (real_us - grain_ms * US_PER_MS).div_ceil(US_PER_MS);
                earliest_ms + behind.index(usize::try_from(latest_ms - earliest_ms + 1).unwrap()) as u64
            }
        }
    }
}

struct Key {
    policy: Policy,
    states: Vec<State>,
    grain_ms: u64,
}

impl Key {
    fn new(quota: Quota, grain_ms: u64) -> Self {
        Self { policy: Policy::new("test", [quota]).unwrap(), states: Vec::new(), grain_ms }
    }

    fn act(&mut self, verb: Verb, now_ms: u64, cost: u64) -> Decision {
        let action = Action::new(verb, now_ms, cost).with_grain_ms(self.grain_ms);
        decide(&mut self.states, &self.policy, action).0
    }
}

fn exact_quota() -> impl Strategy<Value = Quota> {
    let algorithm = prop_oneof![Just(Algorithm::StrictWindow), Just(Algorithm::SlidingLog)];
    (1..=40_u64, 1..=60_u64, algorithm).prop_map(|(limit, window_ms, algorithm)| {
        Quota::new(limit, Duration::from_millis(window_ms)).unwrap().with_algorithm(algorithm)
    })
}

fn reading() -> impl Strategy<Value = Reading> {
    prop_oneof![(0..100_u64).prop_map(|phase_ms| Reading::LastTick { phase_ms }), Just(Reading::Anything)]
}

/// From a microsecond to two windows apart, and often about as far apart as a window or a grain.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let after_us = prop_oneof![4 => 0..=3_u64, 4 => 0..=2000_u64, 2 => 0..=30_000_u64, 1 => 0..=120_000_u64];
    let cost = prop_oneof![6 => Just(1_u64), 2 => 0..=5_u64, 1 => 0..=40_u64];
    let request = (after_us, any::<prop::sample::Index>(), cost);
    let request = request.prop_map(|(after_us, behind, cost)| Request { after_us, behind, cost });
    prop::collection::vec(request, 1..300)
}

/// The units that each request was admitted with, 0 if it was denied, at its real moment.
fn sent(quota: Quota, grain_ms: u64, reading: Reading, requests: &[Request]) -> Vec<(u64, u64)> {
    let mut key = Key::new(quota, grain_ms);
    let mut real_us = START_US;
    let mut sent = Vec::new();
    for Request { after_us, behind, cost } in requests {
        real_us += after_us;
        let now_ms = reading.now_ms(real_us, grain_ms, *behind);
        assert!(now_ms * US_PER_MS <= real_us && real_us <= (now_ms + grain_ms) * US_PER_MS);
        let is_allowed = key.act(Verb::Check, now_ms, *cost).is_allowed();
        sent.push((real_us, if is_allowed { *cost } else { 0 }));
    }
    sent
}

/// Units from the moment `from_us` on, for `span_us`.
fn count(admitted: &[(u64, u64)], from_us: u64, span_us: u64) -> u64 {
    let within = |at_us: u64| from_us <= at_us && at_us - from_us < span_us;
    admitted.iter().filter(|(at_us, _)| within(*at_us)).map(|(_, units)| units).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_real_window_contains_more_than_the_limit(
        quota in exact_quota(),
        grain_ms in 1..=100_u64,
        reading in reading(),
        requests in requests(),
    ) {
        let admitted = sent(quota, grain_ms, reading, &requests);
        let window_us = quota.window_ms() * US_PER_MS;
        for (at_us, _) in &admitted {
            let units = count(&admitted, *at_us, window_us);
            prop_assert!(units <= quota.limit(), "{units} of {quota} from {at_us}: {admitted:?}");
        }
    }

    /// Cost of the grain: a log denies nothing that fits beside what was admitted within a window and two grains.
    #[test]
    fn a_log_denies_only_for_what_was_admitted_within_a_window_and_two_grains(
        quota in exact_quota(),
        grain_ms in 1..=100_u64,
        phase_ms in 0..100_u64,
        requests in requests(),
    ) {
        let quota = quota.with_algorithm(Algorithm::SlidingLog);
        let admitted = sent(quota, grain_ms, Reading::LastTick { phase_ms }, &requests);
        for (place, Request { cost, .. }) in requests.iter().enumerate() {
            let (real_us, units) = admitted[place];
            let span_us = (quota.window_ms() + 2 * grain_ms) * US_PER_MS;
            let before = count(&admitted[..place], (real_us + 1).saturating_sub(span_us), span_us);
            prop_assert!(
                units == *cost || before + cost > quota.limit(),
                "{before} + {cost} of {quota} at {real_us}"
            );
        }
    }

    /// By the clock that is read a wait is exact, whatever its grain.
    #[test]
    fn a_retry_is_exact_to_the_millisecond_of_the_clock(
        quota in exact_quota(),
        grain_ms in 0..=100_u64,
        requests in requests(),
    ) {
        let mut key = Key::new(quota, grain_ms);
        let mut now_ms = START_US / US_PER_MS;
        for Request { after_us, cost, .. } in requests {
            now_ms += after_us / US_PER_MS;
            let decision = key.act(Verb::Check, now_ms, cost);
            if let Some(wait_ms) = decision.retry_after_ms() {
                prop_assert!(!key.act(Verb::Peek, now_ms + wait_ms - 1, cost).is_allowed(), "one earlier");
                prop_assert!(key.act(Verb::Peek, now_ms + wait_ms, cost).is_allowed(), "then");
            } else {
                prop_assert_eq!(decision.is_allowed(), cost <= quota.limit());
            }
        }
    }

    /// Injected time has no grain: nothing changes for it.
    #[test]
    fn a_grain_of_nothing_changes_nothing(quota in exact_quota(), requests in requests()) {
        let (mut key, mut plain) = (Key::new(quota, 0), Vec::new());
        let mut now_ms = START_US / US_PER_MS;
        for Request { after_us, cost, .. } in requests {
            now_ms += after_us / US_PER_MS;
            let (decision, _) = decide(&mut plain, &key.policy, Action::new(Verb::Check, now_ms, cost));
            prop_assert_eq!(key.act(Verb::Check, now_ms, cost), decision);
        }
    }
}
