//! How far the server's clock is from the caller's. No decision depends on it; people who read logs do.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::clock::wall_ms;

/// Further apart than this is worth a warning.
const WARN_ABOVE_MS: u64 = 1000;
/// Until it was measured.
const UNKNOWN: i64 = i64::MIN;

/// The last measurement.
#[derive(Debug)]
pub(super) struct Skew {
    server_ahead_ms: AtomicI64,
}

impl Default for Skew {
    fn default() -> Self {
        Self { server_ahead_ms: AtomicI64::new(UNKNOWN) }
    }
}

impl Skew {
    /// By how many milliseconds the server is ahead of the caller; negative if it is behind.
    pub(super) fn server_ahead_ms(&self) -> Option<i64> {
        Some(self.server_ahead_ms.load(Relaxed)).filter(|ms| *ms != UNKNOWN)
    }

    /// Takes the server's time from an answer to what was sent at `sent_ms`, by the caller's wall clock.
    pub(super) fn observe(&self, server_ms: u64, sent_ms: u64) {
        let received_ms = wall_ms();
        let round_trip_ms = received_ms.saturating_sub(sent_ms);
        // The server read its clock somewhere between; the middle is wrong by half of the round trip at the most.
        let middle_ms = sent_ms + round_trip_ms / 2;
        let ahead_ms = server_ms.cast_signed().saturating_sub(middle_ms.cast_signed());
        let before = self.server_ahead_ms.swap(ahead_ms, Relaxed);
        let is_wide = |ms: i64| ms != UNKNOWN && ms.unsigned_abs() > WARN_ABOVE_MS;
        if is_wide(ahead_ms) && ahead_ms.unsigned_abs() > WARN_ABOVE_MS + round_trip_ms && !is_wide(before) {
            tracing::warn!(
                server_ahead_ms = ahead_ms,
                "the clock of redis differs from this one; limits follow the server's, logs will not match"
            );
        }
    }
}
