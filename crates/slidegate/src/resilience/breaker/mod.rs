//! A circuit breaker: whoever fails too often is left alone for a while, and then asked again little by little.

mod machine;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use self::machine::{Machine, Outcome};
use crate::clock::{Clock, PreciseClock};

/// When a store is left alone, and how it is taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// So many failures …
    pub failures: u32,
    /// … among so many answers, at most 64 …
    pub among: u32,
    /// … over at least this long, and the store is left alone. Requests that share a connection fail together when it
    /// breaks, which is one failure and no reason.
    pub over: Duration,
    /// For how long at first. Each time that it fails again before it has recovered doubles it.
    pub rest: Duration,
    /// The longest that it ever becomes.
    pub longest_rest: Duration,
    /// How many requests have to succeed after that, one by one, before others follow.
    pub probes: u32,
    /// For how long a growing share of requests is let through after that.
    pub recovery: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            among: 10,
            over: Duration::from_millis(100),
            rest: Duration::from_millis(500),
            longest_rest: Duration::from_secs(10),
            probes: 3,
            recovery: Duration::from_secs(10),
        }
    }
}

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Lets them through.
    Closed,
    /// Lets none through.
    Open,
    /// Lets one through at a time, to see whether it succeeds.
    Probing,
    /// Lets a growing share of them through.
    Recovering,
}

impl BreakerState {
    /// The name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "probing",
            Self::Recovering => "recovering",
        }
    }
}

/// A circuit breaker. Ask it for a [`Permit`] before each request, and tell the permit how it went.
///
/// Rests and recoveries are shortened at random, by up to half, so that many nodes which saw a store fail together do
/// not come back together.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::{Breaker, BreakerSettings, BreakerState};
///
/// let settings = BreakerSettings { over: Duration::ZERO, ..BreakerSettings::default() };
/// let breaker = Breaker::new(settings);
/// for _ in 0..5 {
///     breaker.admit().expect("still closed").failed();
/// }
/// assert_eq!(breaker.state(), BreakerState::Open);
/// assert!(breaker.admit().is_none());
/// ```
pub struct Breaker<C = PreciseClock> {
    clock: C,
    /// Whose requests it lets through, for logs and metrics.
    policy: Box<str>,
    machine: Mutex<Machine>,
}

impl Breaker {
    /// A breaker on the system's clock.
    pub fn new(settings: BreakerSettings) -> Self {
        Self::seeded(settings, PreciseClock::default(), fastrand::u64(..))
    }
}

impl<C: Clock> Breaker<C> {
    /// A breaker that does the same each time for the same seed and the same course of events.
    pub fn seeded(settings: BreakerSettings, clock: C, seed: u64) -> Self {
        Self { clock, policy: "(all)".into(), machine: Mutex::new(Machine::new(settings, seed)) }
    }

    /// For the requests of this policy alone, which is how logs and metrics call it.
    pub fn for_policy(mut self, policy: &str) -> Self {
        self.policy = policy.into();
        show(&self.policy, BreakerState::Closed);
        self
    }

    /// Leave to ask the store; `None` if it is to be left alone.
    pub fn admit(&self) -> Option<Permit<'_, C>> {
        let epoch = self.change(Machine::admit)?;
        Some(Permit { breaker: self, epoch, is_settled: false })
    }

    /// What it does with requests. One that has rested long enough is open until the next request.
    pub fn state(&self) -> BreakerState {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).state()
    }

    fn settle(&self, epoch: u64, outcome: Outcome) {
        self.change(|machine, now_ms| machine.settle(epoch, now_ms, outcome));
    }

    /// Changes the machine, and tells of it if that is another state.
    fn change<T>(&self, change: impl FnOnce(&mut Machine, u64) -> T) -> T {
        let now_ms = self.clock.now_ms();
        let (changed, before, after) = {
            let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
            let before = machine.state();
            (change(&mut machine, now_ms), before, machine.state())
        };
        if before != after {
            tell(&self.policy, before, after);
        }
        changed
    }
}

impl<C> fmt::Debug for Breaker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("machine", &self.machine).finish_non_exhaustive()
    }
}

fn tell(policy: &str, before: BreakerState, after: BreakerState) {
    let (from, to) = (before.name(), after.name());
    metrics::counter!("slidegate_breaker_transitions_total", "policy" => policy.to_owned(), "to" => to)
        .increment(1);
    show(policy, after);
    match (before, after) {
        // As long as a store is away, this is so again and again and says nothing new.
        (BreakerState::Probing, BreakerState::Open) => {
            tracing::debug!(policy, from, to, "the store still fails and is left alone for longer");
        }
        (_, BreakerState::Open) => {
            tracing::warn!(policy, from, to, "the store fails and is left alone for a while");
        }
        (_, BreakerState::Probing) => {
            tracing::debug!(policy, from, to, "the store is asked again, one request at a time");
        }
        (_, BreakerState::Recovering) => {
            tracing::info!(policy, from, to, "the store answers again and gets a growing share");
        }
        (_, BreakerState::Closed) => tracing::info!(policy, from, to, "the store has recovered"),
    }
}

fn show(policy: &str, now: BreakerState) {
    for state in [BreakerState::Closed, BreakerState::Open, BreakerState::Probing, BreakerState::Recovering] {
        let is_it = u32::from(state == now);
        metrics::gauge!("slidegate_breaker_state", "policy" => policy.to_owned(), "state" => state.name())
            .set(is_it);
    }
}

/// Leave for one request. Tell it how the request went; if nobody does, because the caller gave up, nothing is
/// concluded.
#[derive(Debug)]
#[must_use = "a permit has to be told how the request went"]
pub struct Permit<'a, C: Clock = PreciseClock> {
    breaker: &'a Breaker<C>,
    epoch: u64,
    is_settled: bool,
}

impl<C: Clock> Permit<'_, C> {
    /// The store has answered.
    pub fn succeeded(mut self) {
        self.settle(Outcome::Success);
    }

    /// The store has failed.
    pub fn failed(mut self) {
        self.settle(Outcome::Failure);
    }

    /// The store has failed, or it has not.
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

    /// Fails so often, for as long as it takes to be noticed.
    fn fail(breaker: &Breaker<ManualClock>, times: usize) {
        for _ in 1..times {
            breaker.admit().unwrap().failed();
        }
        breaker.clock.advance(100);
        breaker.admit().unwrap().failed();
    }

    #[test]
    fn many_failures_at_one_moment_are_one() {
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
        assert_eq!(breaker.state(), BreakerState::Closed, "those before are forgotten");
        fail(&breaker, 4);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn a_probe_that_is_never_heard_of_is_not_waited_for_for_ever() {
        let (breaker, clock) = breaker(0);
        fail(&breaker, 5);
        clock.advance(500);
        let put_aside = breaker.admit().unwrap();
        clock.advance(9_999);
        assert!(breaker.admit().is_none());
        clock.advance(1);
        assert!(breaker.admit().is_some());
        drop(put_aside);
    }

    #[test]
    fn a_few_failures_among_many_answers_are_nothing() {
        let (breaker, _) = breaker(1);
        for round in 0..100 {
            let permit = breaker.admit().unwrap();
            permit.settled(round % 5 < 2);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        fail(&breaker, 3);
        assert_eq!(breaker.state(), BreakerState::Open, "two of the ten before and three");
    }

    #[test]
    fn one_at_a_time_after_a_rest_and_then_a_growing_share() {
        for seed in 0..100 {
            let (breaker, clock) = breaker(seed);
            fail(&breaker, 5);
            clock.advance(249);
            assert!(breaker.admit().is_none(), "rests at least this long");
            clock.advance(251);
            for _ in 0..3 {
                let probe = breaker.admit().expect("rested at most twice as long");
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
    fn whoever_fails_again_rests_twice_as_long_up_to_the_longest() {
        let (breaker, clock) = breaker(3);
        fail(&breaker, 5);
        let mut rest_ms = 500;
        for _ in 0..10 {
            clock.advance(rest_ms);
            fail(&breaker, 1);
            rest_ms = (2 * rest_ms).min(10_000);
            clock.advance(rest_ms / 2 - 1);
            assert!(breaker.admit().is_none(), "{rest_ms}");
        }
        assert_eq!(rest_ms, 10_000);
    }

    #[test]
    fn a_caller_who_gives_up_leaves_the_place_to_the_next() {
        let (breaker, clock) = breaker(4);
        fail(&breaker, 5);
        clock.advance(500);
        drop(breaker.admit().unwrap());
        assert_eq!(breaker.state(), BreakerState::Probing);
        assert!(breaker.admit().is_some());
    }

    #[test]
    fn what_was_asked_before_the_rest_says_nothing_after_it() {
        let (breaker, clock) = breaker(5);
        let late: Vec<_> = (0..10).map(|_| breaker.admit().unwrap()).collect();
        fail(&breaker, 5);
        clock.advance(500);
        let probe = breaker.admit().unwrap();
        late.into_iter().for_each(Permit::failed);
        assert_eq!(breaker.state(), BreakerState::Probing, "late failures do not end a probe");
        probe.succeeded();
        assert!(breaker.admit().is_some());
    }

    #[test]
    fn nodes_come_back_at_different_times() {
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
