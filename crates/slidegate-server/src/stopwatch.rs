//! How long something took. No decision depends on it.
#![expect(clippy::disallowed_methods, reason = "the one file of the service that reads a clock")]

use std::time::Instant;

/// Runs from when it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
