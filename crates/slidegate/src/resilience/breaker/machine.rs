//! What a breaker does next, without a clock and without a lock.

use std::time::Duration;

use super::{BreakerSettings, BreakerState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    Failure,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    Open {
        until_ms: u64,
    },
    /// `asked_ms` is when the one on its way was sent, if there is one.
    Probing {
        left: u32,
        asked_ms: Option<u64>,
    },
    Recovering {
        since_ms: u64,
        for_ms: u64,
    },
}

impl Phase {
    fn state(self) -> BreakerState {
        match self {
            Self::Closed => BreakerState::Closed,
            Self::Open { .. } => BreakerState::Open,
            Self::Probing { .. } => BreakerState::Probing,
            Self::Recovering { .. } => BreakerState::Recovering,
        }
    }
}

/// The breaker without a clock and without a lock.
#[derive(Debug)]
pub(super) struct Machine {
    settings: BreakerSettings,
    phase: Phase,
    /// Grows with each rest, so that what was asked before says nothing about what came after.
    epoch: u64,
    /// The last answers, a failure being a one, the latest in the lowest bit.
    answers: u64,
    /// When the first of the failures among them was seen.
    failing_since_ms: Option<u64>,
    rest_ms: u64,
    random: fastrand::Rng,
}

impl Machine {
    pub(super) fn new(settings: BreakerSettings, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let phase = Phase::Closed;
        Self { settings, phase, epoch: 0, answers: 0, failing_since_ms: None, rest_ms: 0, random }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.phase.state()
    }

    pub(super) fn admit(&mut self, now_ms: u64) -> Option<u64> {
        match &mut self.phase {
            Phase::Closed => {}
            Phase::Open { until_ms } if now_ms < *until_ms => return None,
            Phase::Open { .. } => {
                self.phase = Phase::Probing { left: self.settings.probes.max(1), asked_ms: Some(now_ms) };
            }
            // One that is never heard of again, because its caller has put it aside, must not be the last.
            Phase::Probing { asked_ms: Some(asked_ms), .. }
                if now_ms.saturating_sub(*asked_ms) < millis(self.settings.longest_rest) =>
            {
                return None;
            }
            Phase::Probing { asked_ms, .. } => *asked_ms = Some(now_ms),
            Phase::Recovering { since_ms, for_ms } => {
                let (elapsed_ms, for_ms) = (now_ms.saturating_sub(*since_ms), *for_ms);
                if elapsed_ms >= for_ms {
                    self.phase = Phase::Closed;
                    self.rest_ms = 0;
                } else if self.random.u64(0..for_ms) > elapsed_ms + for_ms / 16 {
                    return None;
                }
            }
        }
        Some(self.epoch)
    }

    pub(super) fn settle(&mut self, epoch: u64, now_ms: u64, outcome: Outcome) {
        if epoch != self.epoch {
            return;
        }
        match &mut self.phase {
            // Nobody is asked while it is open.
            Phase::Open { .. } => {}
            Phase::Closed | Phase::Recovering { .. } => {
                if outcome == Outcome::Unknown {
                    return;
                }
                if self.fails(outcome == Outcome::Failure, now_ms) {
                    self.open(now_ms);
                }
            }
            Phase::Probing { left, asked_ms } => match outcome {
                Outcome::Failure => self.open(now_ms),
                Outcome::Unknown => *asked_ms = None,
                Outcome::Success if *left > 1 => (*left, *asked_ms) = (*left - 1, None),
                Outcome::Success => {
                    let for_ms = shortened(&mut self.random, millis(self.settings.recovery));
                    self.phase = Phase::Recovering { since_ms: now_ms, for_ms };
                }
            },
        }
    }

    /// Takes note of an answer. Whether there are too many failures, and for long enough.
    fn fails(&mut self, has_failed: bool, now_ms: u64) -> bool {
        let among = self.settings.among.clamp(1, 64);
        self.answers = (self.answers << 1 | u64::from(has_failed)) & (u64::MAX >> (64 - among));
        if self.answers == 0 {
            self.failing_since_ms = None;
        } else if self.failing_since_ms.is_none() {
            self.failing_since_ms = Some(now_ms);
        }
        let over_ms = u64::try_from(self.settings.over.as_millis()).unwrap_or(u64::MAX);
        let is_long =
            self.failing_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= over_ms);
        has_failed && is_long && self.answers.count_ones() >= self.settings.failures.clamp(1, among)
    }

    fn open(&mut self, now_ms: u64) {
        let longest_ms = millis(self.settings.longest_rest);
        // Zero unless it has not recovered since the last time.
        self.rest_ms = (2 * self.rest_ms).max(millis(self.settings.rest)).min(longest_ms);
        let until_ms = now_ms.saturating_add(shortened(&mut self.random, self.rest_ms));
        self.phase = Phase::Open { until_ms };
        self.epoch += 1;
        self.answers = 0;
        self.failing_since_ms = None;
    }
}

/// Between half of it and all of it.
fn shortened(random: &mut fastrand::Rng, ms: u64) -> u64 {
    ms - random.u64(0..=ms / 2)
}

/// At least one, at most a day.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, 86_400_000)
}
