//! How long something took. No decision depends on it.
//!
//! By the processor's own counter where it is steady, which is read in half the time that the system's clock takes: several
//! of these are read for each request.
#![expect(clippy::disallowed_methods, reason = "the one file of the service that reads a clock")]

use quanta::Instant;

/// A moment, to be compared with a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds; 0 if it is not later, and what fits if it is centuries.
    pub(crate) fn ns_until(self, later: Self) -> u64 {
        u64::try_from(later.0.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }

    #[cfg(test)]
    pub(crate) fn after_us(self, us: u64) -> Self {
        Self(self.0 + std::time::Duration::from_micros(us))
    }
}
