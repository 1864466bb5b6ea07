//! Measures durations for metrics. No decision depends on them.
//!
//! Each request takes several readings, so they use the processor's time-stamp counter where it is invariant: a reading
//! takes half the time of a reading of the system clock.
#![expect(clippy::disallowed_methods, reason = "the one file of the service that reads a clock")]

use quanta::Instant;

/// A point in time, to be compared with a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the nanoseconds between the two points, saturating; 0 if `later` is earlier.
    pub(crate) fn ns_until(self, later: Self) -> u64 {
        u64::try_from(later.0.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    pub(crate) fn after_us(self, us: u64) -> Self {
        Self(self.0 + std::time::Duration::from_micros(us))
    }
}
