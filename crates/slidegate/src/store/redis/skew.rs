//! How far a server's clock is from the caller's. No decision depends on it; people who read logs do.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use crate::clock::wall_ms;

/// Further apart than this is worth a warning.
const WARN_ABOVE_MS: u64 = 1000;
/// Until it was measured.
const UNKNOWN: i64 = i64::MIN;

/// The last measurement of one server.
#[derive(Debug)]
pub(super) struct Skew {
    server_ahead_ms: AtomicI64,
    has_warned: AtomicBool,
}

impl Default for Skew {
    fn default() -> Self {
        Self { server_ahead_ms: AtomicI64::new(UNKNOWN), has_warned: AtomicBool::new(false) }
    }
}

impl Skew {
    /// By how many milliseconds the server is ahead of the caller; negative if it is behind.
    pub(super) fn server_ahead_ms(&self) -> Option<i64> {
        Some(self.server_ahead_ms.load(Relaxed)).filter(|ms| *ms != UNKNOWN)
    }

    /// Takes the server's time from an answer to what was sent at `sent_ms`, by the caller's wall clock.
    pub(super) fn observe(&self, server_ms: u64, sent_ms: u64) {
        self.note(server_ms, sent_ms, wall_ms());
    }

    /// Returns whether that was worth a warning.
    fn note(&self, server_ms: u64, sent_ms: u64, received_ms: u64) -> bool {
        let round_trip_ms = received_ms.saturating_sub(sent_ms);
        // The server read its clock somewhere between; the middle is wrong by half of the round trip at the most.
        let middle_ms = sent_ms + round_trip_ms / 2;
        let ahead_ms = server_ms.cast_signed().saturating_sub(middle_ms.cast_signed());
        self.server_ahead_ms.store(ahead_ms, Relaxed);
        if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS {
            // Not yet together again if only the way has made a difference.
            if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS / 2 {
                self.has_warned.store(false, Relaxed);
            }
            return false;
        }
        // Once, and only for what a slow answer does not explain.
        if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS + round_trip_ms || self.has_warned.swap(true, Relaxed) {
            return false;
        }
        tracing::warn!(
            server_ahead_ms = ahead_ms,
            "the clock of redis differs from this one; limits follow the server's, logs will not match"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_once_for_each_time_that_the_clocks_part() {
        let skew = Skew::default();
        assert_eq!(skew.server_ahead_ms(), None);
        assert!(!skew.note(10_900, 10_000, 10_000), "less than a second");
        assert!(!skew.note(12_000, 10_000, 12_000), "a slow answer may explain it");
        assert!(skew.note(11_001, 10_000, 10_000));
        assert!(!skew.note(90_000, 10_000, 10_000), "it is known");
        assert_eq!(skew.server_ahead_ms(), Some(80_000));
        assert!(!skew.note(11_000, 10_000, 10_000), "nearly together");
        assert!(!skew.note(11_001, 10_000, 10_000), "which is no news");
        assert!(!skew.note(10_000, 10_000, 10_000), "together again");
        assert!(skew.note(1_000, 10_000, 10_000), "and apart, behind");
        assert_eq!(skew.server_ahead_ms(), Some(-9000));
    }
}
