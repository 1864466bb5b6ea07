//! Circuit breaker: stops requests to a failing store and resumes them gradually.

mod machine;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use self::machine::{Machine, Outcome};
use crate::clock::{Clock, PreciseClock};

/// Thresholds and durations of a [`Breaker`].
///
/// The breaker opens when at least `failure_threshold` of the last `sample_size` requests have failed and the first of
/// these failures is at least `min_failure_duration` old. Requests that share a connection fail together when it
/// breaks; the minimum duration counts them as one failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of failures that opens the breaker.
    pub failure_threshold: u32,
    /// Number of most recent requests that are evaluated, at most 64.
    pub sample_size: u32,
    /// Minimum age of the first failure among them.
    pub min_failure_duration: Duration,
    /// Time for which the breaker stays open at first. It doubles each time the store fails again before it has
    /// recovered.
    pub open_duration: Duration,
    /// Maximum time for which the breaker stays open.
    pub max_open_duration: Duration,
    /// Number of requests, one at a time, that must succeed before the breaker recovers.
    pub probes: u32,
    /// Time over which the share of admitted requests grows during recovery.
    pub recovery_duration: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failure_threshold: 5,
            sample_size: 10,
            min_failure_duration: Duration::from_millis(100),
            open_duration: Duration::from_millis(500),
            max_open_duration: Duration::from_secs(10),
            probes: 3,
            recovery_duration: Duration::from_secs(10),
        }
    }
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Admits all requests.
    Closed,
    /// Admits no requests.
    Open,
    /// Admits one request at a time.
    Probing,
    /// Admits a growing share of requests.
    Recovering,
}

impl BreakerState {
    /// Returns the name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "probing",
            Self::Recovering => "recovering",
        }
    }
}

/// A circuit breaker. [`admit`](Self::admit) returns a [`Permit`] for each request, which reports the outcome.
///
/// Open and recovery durations are shortened at random by up to half, so that nodes which saw a store fail together do
/// not return together.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::{Breaker, BreakerSettings, BreakerState};
///
/// let settings = BreakerSettings { min_failure_duration: Duration::ZERO, ..BreakerSettings::default() };
/// let breaker = Breaker::new(settings);
/// for _ in 0..5 {
///     breaker.admit().expect("still closed").failed();
/// }
/// assert_eq!(breaker.state(), BreakerState::Open);
/// assert!(breaker.admit().is_none());
/// ```
pub struct Breaker<C = PreciseClock> {
    clock: C,
    /// Policy label in logs and metrics.
    policy: Box<str>,
    machine: Mutex<Machine>,
}

impl Breaker {
    /// Creates a breaker on the system clock.
    pub fn new(settings: BreakerSettings) -> Self {
        Self::seeded(settings, PreciseClock::default(), fastrand::u64(..))
    }
}

impl<C: Clock> Breaker<C> {
    /// Creates a breaker that is deterministic for a given seed and sequence of events.
    pub fn seeded(settings: BreakerSettings, clock: C, seed: u64) -> Self {
        Self { clock, policy: "(all)".into(), machine: Mutex::new(Machine::new(settings, seed)) }
    }

    /// Sets the policy label in logs and metrics.
    pub fn for_policy(mut self, policy: &str) -> Self {
        self.policy = policy.into();
        set_state_gauge(&self.policy, BreakerState::Closed);
        self
    }

    /// Returns a permit to send a request, or `None` if the breaker rejects it.
    pub fn admit(&self) -> Option<Permit<'_, C>> {
        let epoch = self.change(Machine::admit)?;
        Some(Permit { breaker: self, epoch, is_settled: false })
    }

    /// Returns the state. An open breaker changes to probing with the next request after its open duration.
    pub fn state(&self) -> BreakerState {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).state()
    }

    fn settle(&self, epoch: u64, outcome: Outcome) {
        self.change(|machine, now_ms| machine.settle(epoch, now_ms, outcome));
    }

    /// Applies a change to the machine and reports the transition if the state changed.
    fn change<T>(&self, change: impl FnOnce(&mut Machine, u64) -> T) -> T {
        let now_ms = self.clock.now_ms();
        let (changed, before, after) = {
            let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
            let before = machine.state();
            (change(&mut machine, now_ms), before, machine.state())
        };
        if before != after {
            report_transition(&self.policy, before, after);
        }
        changed
    }
}

impl<C> fmt::Debug for Breaker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("machine", &self.machine).finish_non_exhaustive()
    }
}

fn report_transition(policy: &str, before: BreakerState, after: BreakerState) {
    let (from, to) = (before.name(), after.name());
    metrics::counter!("slidegate_breaker_transitions_total", "policy" => policy.to_owned(), "to" => to)
        .increment(1);
    set_state_gauge(policy, after);
    match (before, after) {
        // Repeats while the store is unavailable, hence the level.
        (BreakerState::Probing, BreakerState::Open) => {
            tracing::debug!(policy, from, to, "the store still fails; the breaker stays open for longer");
        }
        (_, BreakerState::Open) => {
            tracing::warn!(policy, from, to, "the store fails; the breaker opens and sends it no requests");
        }
        (_, BreakerState::Probing) => {
            tracing::debug!(policy, from, to, "the breaker sends one request at a time to the store");
        }
        (_, BreakerState::Recovering) => {
            tracing::info!(policy, from, to, "the store responds again and gets a growing share of requests");
        }
        (_, BreakerState::Closed) => tracing::info!(policy, from, to, "the store has recovered"),
    }
}

fn set_state_gauge(policy: &str, now: BreakerState) {
    for state in [BreakerState::Closed, BreakerState::Open, BreakerState::Probing, BreakerState::Recovering] {
        let value = u32::from(state == now);
        metrics::gauge!("slidegate_breaker_state", "policy" => policy.to_owned(), "state" => state.name())
            .set(value);
    }
}

/// Permit for one request, which takes its outcome. A permit that is dropped, because the caller gave up, counts
/// neither as a success nor as a failure.
#[derive(Debug)]
#[must_use = "the breaker needs the outcome of the request"]
pub struct Permit<'a, C: Clock = PreciseClock> {
    breaker: &'a Breaker<C>,
    epoch: u64,
    is_settled: bool,
}

impl<C: Clock> Permit<'_, C> {
    /// Reports a success.
    pub fn succeeded(mut self) {
        self.settle(Outcome::Success);
    }

    /// Reports a failure.
    pub fn failed(mut self) {
        self.settle(Outcome::Failure);
    }

    /// Reports a failure or a success.
    pub(super) fn settled(self, has_failed: bool) {
        if has_failed {
            self.failed();
        } else {
            self.succeeded();
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        self.is_settled = true;
        self.breaker.settle(self.epoch, outcome);
    }
}

impl<C: Clock> Drop for Permit<'_, C> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle(Outcome::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn breaker(seed: u64) -> (Breaker<ManualClock>, ManualClock) {
        let clock = ManualClock::at(1_000_000);
        (Breaker::seeded(BreakerSettings::default(), clock.clone(), seed), clock)
    }

    /// Reports failures over the minimum failure duration.
    fn fail(breaker: &Breaker<ManualClock>, times: usize) {
        for _ in 1..times {
            breaker.admit().unwrap().failed();
        }
        breaker.clock.advance(100);
        breaker.admit().unwrap().failed();
    }

    #[test]
    fn simultaneous_failures_count_as_one() {
        let (breaker, clock) = breaker(0);
        let at_once: Vec<_> = (0..100).map(|_| breaker.admit().unwrap()).collect();
        at_once.into_iter().for_each(Permit::failed);
        assert_eq!(breaker.state(), BreakerState::Closed);
        clock.advance(10);
        for _ in 0..10 {
            breaker.admit().unwrap().succeeded();
        }
        clock.advance(1000);
        breaker.admit().unwrap().failed();
        assert_eq!(breaker.state(), BreakerState::Closed, "earlier failures have left the sample");
        fail(&breaker, 4);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn an_unsettled_probe_expires() {
        let (breaker, clock) = breaker(0);
        fail(&breaker, 5);
        clock.advance(500);
        let held = breaker.admit().unwrap();
        clock.advance(9_999);
        assert!(breaker.admit().is_none());
        clock.advance(1);
        assert!(breaker.admit().is_some());
        drop(held);
    }

    #[test]
    fn failures_below_the_threshold_keep_the_breaker_closed() {
        let (breaker, _) = breaker(1);
        for round in 0..100 {
            let permit = breaker.admit().unwrap();
            permit.settled(round % 5 < 2);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        fail(&breaker, 3);
        assert_eq!(breaker.state(), BreakerState::Open, "two of the last ten, and three more");
    }

    #[test]
    fn an_open_breaker_probes_and_then_admits_a_growing_share() {
        for seed in 0..100 {
            let (breaker, clock) = breaker(seed);
            fail(&breaker, 5);
            clock.advance(249);
            assert!(breaker.admit().is_none(), "stays open for at least half the duration");
            clock.advance(251);
            for _ in 0..3 {
                let probe = breaker.admit().expect("open for at most the duration");
                assert_eq!(breaker.state(), BreakerState::Probing);
                assert!(breaker.admit().is_none(), "one at a time");
                probe.succeeded();
            }
            assert_eq!(breaker.state(), BreakerState::Recovering);
            let admitted = |breaker: &Breaker<_>| {
                (0..1000).filter(|_| breaker.admit().map(Permit::succeeded).is_some()).count()
            };
            let mut shares = Vec::new();
            for _ in 0..4 {
                shares.push(admitted(&breaker));
                clock.advance(1000);
            }
            assert!(shares[0] < 150 && shares.is_sorted(), "{seed}: {shares:?}");
            clock.advance(6000);
            assert_eq!((admitted(&breaker), breaker.state()), (1000, BreakerState::Closed));
        }
    }

    #[test]
    fn repeated_failures_double_the_open_duration_up_to_the_maximum() {
        let (breaker, clock) = breaker(3);
        fail(&breaker, 5);
        let mut open_ms = 500;
        for _ in 0..10 {
            clock.advance(open_ms);
            fail(&breaker, 1);
            open_ms = (2 * open_ms).min(10_000);
            clock.advance(open_ms / 2 - 1);
            assert!(breaker.admit().is_none(), "{open_ms}");
        }
        assert_eq!(open_ms, 10_000);
    }

    #[test]
    fn a_dropped_probe_permit_admits_the_next_probe() {
        let (breaker, clock) = breaker(4);
        fail(&breaker, 5);
        clock.advance(500);
        drop(breaker.admit().unwrap());
        assert_eq!(breaker.state(), BreakerState::Probing);
        assert!(breaker.admit().is_some());
    }

    #[test]
    fn outcomes_of_requests_before_the_breaker_opened_are_ignored() {
        let (breaker, clock) = breaker(5);
        let late: Vec<_> = (0..10).map(|_| breaker.admit().unwrap()).collect();
        fail(&breaker, 5);
        clock.advance(500);
        let probe = breaker.admit().unwrap();
        late.into_iter().for_each(Permit::failed);
        assert_eq!(breaker.state(), BreakerState::Probing, "late failures do not end the probing");
        probe.succeeded();
        assert!(breaker.admit().is_some());
    }

    #[test]
    fn breakers_with_different_seeds_probe_at_different_times() {
        let returns = |seed| {
            let (breaker, clock) = breaker(seed);
            fail(&breaker, 5);
            (0..500)
                .find(|_| {
                    breaker.admit().is_some() || {
                        clock.advance(1);
                        false
                    }
                })
                .unwrap()
        };
        let times: Vec<usize> = (0..200).map(returns).collect();
        let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(last - first > 200, "{first} to {last} ms");
    }
}
