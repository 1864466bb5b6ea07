//! The guarantee of the exact algorithms in real time, under clocks of any grain and adversarial request times.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use proptest::prelude::*;
use slidegate_core::{Action, Algorithm, Decision, Policy, Quota, State, Verb, decide};

/// Start of the real time, which is in microseconds. The clock shows milliseconds.
const START_US: u64 = 1_700_000_000_123_456;
const US_PER_MS: u64 = 1000;

/// Request with the time since the previous one, the lag of its clock reading within the grain, and its cost.
#[derive(Clone, Copy, Debug)]
struct Request {
    after_us: u64,
    lag: prop::sample::Index,
    cost: u64,
}

/// Error of a clock, at most its grain.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// Shows the last tick. Ticks are a grain apart, with any phase.
    LastTick { phase_ms: u64 },
    /// Shows a time anywhere within the grain, independently at each reading.
    Anywhere,
}

impl Reading {
    /// Returns a whole millisecond at most `grain_ms` before the real time and never after it.
    fn now_ms(self, real_us: u64, grain_ms: u64, lag: prop::sample::Index) -> u64 {
        let latest_ms = real_us / US_PER_MS;
        match self {
            Self::LastTick { phase_ms } => latest_ms - (latest_ms + phase_ms) % grain_ms,
            Self::Anywhere => {
                let earliest_ms = (real_us - grain_ms * US_PER_MS).div_ceil(US_PER_MS);
                earliest_ms + lag.index(usize::try_from(latest_ms - earliest_ms + 1).unwrap()) as u64
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
    prop_oneof![(0..100_u64).prop_map(|phase_ms| Reading::LastTick { phase_ms }), Just(Reading::Anywhere)]
}

/// Requests with gaps of 0 to two windows, often near the length of a window or a grain.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let after_us = prop_oneof![4 => 0..=3_u64, 4 => 0..=2000_u64, 2 => 0..=30_000_u64, 1 => 0..=120_000_u64];
    let cost = prop_oneof![6 => Just(1_u64), 2 => 0..=5_u64, 1 => 0..=40_u64];
    let request = (after_us, any::<prop::sample::Index>(), cost);
    let request = request.prop_map(|(after_us, lag, cost)| Request { after_us, lag, cost });
    prop::collection::vec(request, 1..300)
}

/// Sends the requests, and returns for each its real time and its admitted units, 0 if it was denied.
fn admissions(quota: Quota, grain_ms: u64, reading: Reading, requests: &[Request]) -> Vec<(u64, u64)> {
    let mut key = Key::new(quota, grain_ms);
    let mut real_us = START_US;
    let mut admissions = Vec::new();
    for Request { after_us, lag, cost } in requests {
        real_us += after_us;
        let now_ms = reading.now_ms(real_us, grain_ms, *lag);
        assert!(now_ms * US_PER_MS <= real_us && real_us <= (now_ms + grain_ms) * US_PER_MS);
        let is_allowed = key.act(Verb::Check, now_ms, *cost).is_allowed();
        admissions.push((real_us, if is_allowed { *cost } else { 0 }));
    }
    admissions
}

/// Returns the units admitted in the span of `span_us` from `from_us`.
fn count(admissions: &[(u64, u64)], from_us: u64, span_us: u64) -> u64 {
    let within = |at_us: u64| from_us <= at_us && at_us - from_us < span_us;
    admissions.iter().filter(|(at_us, _)| within(*at_us)).map(|(_, units)| units).sum()
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
        let admissions = admissions(quota, grain_ms, reading, &requests);
        let window_us = quota.window_ms() * US_PER_MS;
        for (at_us, _) in &admissions {
            let units = count(&admissions, *at_us, window_us);
            prop_assert!(units <= quota.limit(), "{units} of {quota} from {at_us}: {admissions:?}");
        }
    }

    /// Cost of the grain: a unit counts for at most a window and two grains.
    #[test]
    fn units_in_a_log_expire_within_a_window_and_two_grains(
        quota in exact_quota(),
        grain_ms in 1..=100_u64,
        phase_ms in 0..100_u64,
        requests in requests(),
    ) {
        let quota = quota.with_algorithm(Algorithm::SlidingLog);
        let admissions = admissions(quota, grain_ms, Reading::LastTick { phase_ms }, &requests);
        for (index, Request { cost, .. }) in requests.iter().enumerate() {
            let (real_us, units) = admissions[index];
            let span_us = (quota.window_ms() + 2 * grain_ms) * US_PER_MS;
            let before = count(&admissions[..index], (real_us + 1).saturating_sub(span_us), span_us);
            prop_assert!(
                units == *cost || before + cost > quota.limit(),
                "{before} + {cost} of {quota} at {real_us}"
            );
        }
    }

    /// On the clock itself the retry time is exact for any grain.
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
                prop_assert!(!key.act(Verb::Peek, now_ms + wait_ms - 1, cost).is_allowed(), "one millisecond earlier");
                prop_assert!(key.act(Verb::Peek, now_ms + wait_ms, cost).is_allowed(), "at the retry time");
            } else {
                prop_assert_eq!(decision.is_allowed(), cost <= quota.limit());
            }
        }
    }

    /// Injected time has no grain.
    #[test]
    fn a_grain_of_zero_changes_no_decision(quota in exact_quota(), requests in requests()) {
        let (mut key, mut plain) = (Key::new(quota, 0), Vec::new());
        let mut now_ms = START_US / US_PER_MS;
        for Request { after_us, cost, .. } in requests {
            now_ms += after_us / US_PER_MS;
            let (decision, _) = decide(&mut plain, &key.policy, Action::new(Verb::Check, now_ms, cost));
            prop_assert_eq!(key.act(Verb::Check, now_ms, cost), decision);
        }
    }
}
