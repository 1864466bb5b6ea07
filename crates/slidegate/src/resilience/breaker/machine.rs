//! State machine of the breaker, without a clock and without a lock.

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
    /// `sent_at_ms` is the send time of the probe in flight, if there is one.
    Probing {
        left: u32,
        sent_at_ms: Option<u64>,
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

#[derive(Debug)]
pub(super) struct Machine {
    settings: BreakerSettings,
    phase: Phase,
    /// Incremented each time the breaker opens, so that outcomes of earlier requests are ignored.
    epoch: u64,
    /// Most recent outcomes, one bit each: set for a failure, the latest in the lowest bit.
    outcomes: u64,
    /// Time of the first failure among them.
    failing_since_ms: Option<u64>,
    open_ms: u64,
    random: fastrand::Rng,
}

impl Machine {
    pub(super) fn new(settings: BreakerSettings, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let phase = Phase::Closed;
        Self { settings, phase, epoch: 0, outcomes: 0, failing_since_ms: None, open_ms: 0, random }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.phase.state()
    }

    pub(super) fn admit(&mut self, now_ms: u64) -> Option<u64> {
        match &mut self.phase {
            Phase::Closed => {}
            Phase::Open { until_ms } if now_ms < *until_ms => return None,
            Phase::Open { .. } => {
                self.phase = Phase::Probing { left: self.settings.probes.max(1), sent_at_ms: Some(now_ms) };
            }
            // A probe whose permit is held without being settled blocks further probes only for a limited time.
            Phase::Probing { sent_at_ms: Some(sent_at_ms), .. }
                if now_ms.saturating_sub(*sent_at_ms) < millis(self.settings.max_open_duration) =>
            {
                return None;
            }
            Phase::Probing { sent_at_ms, .. } => *sent_at_ms = Some(now_ms),
            Phase::Recovering { since_ms, for_ms } => {
                let (elapsed_ms, for_ms) = (now_ms.saturating_sub(*since_ms), *for_ms);
                if elapsed_ms >= for_ms {
                    self.phase = Phase::Closed;
                    self.open_ms = 0;
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
            // No permit is issued while the breaker is open.
            Phase::Open { .. } => {}
            Phase::Closed | Phase::Recovering { .. } => {
                if outcome == Outcome::Unknown {
                    return;
                }
                if self.record(outcome == Outcome::Failure, now_ms) {
                    self.open(now_ms);
                }
            }
            Phase::Probing { left, sent_at_ms } => match outcome {
                Outcome::Failure => self.open(now_ms),
                Outcome::Unknown => *sent_at_ms = None,
                Outcome::Success if *left > 1 => (*left, *sent_at_ms) = (*left - 1, None),
                Outcome::Success => {
                    let for_ms = shortened(&mut self.random, millis(self.settings.recovery_duration));
                    self.phase = Phase::Recovering { since_ms: now_ms, for_ms };
                }
            },
        }
    }

    /// Records an outcome. Returns whether the breaker must open.
    fn record(&mut self, has_failed: bool, now_ms: u64) -> bool {
        let sample_size = self.settings.sample_size.clamp(1, 64);
        self.outcomes = (self.outcomes << 1 | u64::from(has_failed)) & (u64::MAX >> (64 - sample_size));
        if self.outcomes == 0 {
            self.failing_since_ms = None;
        } else if self.failing_since_ms.is_none() {
            self.failing_since_ms = Some(now_ms);
        }
        let min_ms = u64::try_from(self.settings.min_failure_duration.as_millis()).unwrap_or(u64::MAX);
        let is_long = self.failing_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= min_ms);
        has_failed
            && is_long
            && self.outcomes.count_ones() >= self.settings.failure_threshold.clamp(1, sample_size)
    }

    fn open(&mut self, now_ms: u64) {
        let max_ms = millis(self.settings.max_open_duration);
        // The previous duration is zero unless the breaker has opened before without closing since.
        self.open_ms = (2 * self.open_ms).max(millis(self.settings.open_duration)).min(max_ms);
        let until_ms = now_ms.saturating_add(shortened(&mut self.random, self.open_ms));
        self.phase = Phase::Open { until_ms };
        self.epoch += 1;
        self.outcomes = 0;
        self.failing_since_ms = None;
    }
}

/// Returns a random duration between half of `ms` and `ms`.
fn shortened(random: &mut fastrand::Rng, ms: u64) -> u64 {
    ms - random.u64(0..=ms / 2)
}

/// Converts a duration to milliseconds, between 1 ms and one day.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, 86_400_000)
}
