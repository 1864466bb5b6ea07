//! Skew between a server's clock and the local clock. It affects no decision, only the comparison of logs.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use crate::clock::wall_ms;

/// Skew above which a warning is logged.
const WARN_ABOVE_MS: u64 = 1000;
/// Value before the first measurement.
const UNKNOWN: i64 = i64::MIN;

/// Last measurement for one server.
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
    /// Returns by how many milliseconds the server is ahead of the local clock; negative if it is behind.
    pub(super) fn server_ahead_ms(&self) -> Option<i64> {
        Some(self.server_ahead_ms.load(Relaxed)).filter(|ms| *ms != UNKNOWN)
    }

    /// Updates the skew from a reply that contains the server's time. `sent_ms` is the local time of its request.
    pub(super) fn observe(&self, server_ms: u64, sent_ms: u64) {
        self.update(server_ms, sent_ms, wall_ms());
    }

    /// Returns whether a warning was logged.
    fn update(&self, server_ms: u64, sent_ms: u64, received_ms: u64) -> bool {
        let round_trip_ms = received_ms.saturating_sub(sent_ms);
        // The server read its clock during the round trip, so its middle is wrong by at most half of the round trip.
        let middle_ms = sent_ms + round_trip_ms / 2;
        let ahead_ms = server_ms.cast_signed().saturating_sub(middle_ms.cast_signed());
        self.server_ahead_ms.store(ahead_ms, Relaxed);
        if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS {
            // Half of the threshold, so that a skew that varies with the round trip does not warn repeatedly.
            if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS / 2 {
                self.has_warned.store(false, Relaxed);
            }
            return false;
        }
        // One warning, and only for a skew that a slow reply does not explain.
        if ahead_ms.unsigned_abs() <= WARN_ABOVE_MS + round_trip_ms || self.has_warned.swap(true, Relaxed) {
            return false;
        }
        tracing::warn!(
            server_ahead_ms = ahead_ms,
            "the clock of redis differs from the local clock; limits follow the server's clock, synchronize both"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_warned_of_once_until_it_has_ended() {
        let skew = Skew::default();
        assert_eq!(skew.server_ahead_ms(), None);
        assert!(!skew.update(10_900, 10_000, 10_000), "less than a second");
        assert!(!skew.update(12_000, 10_000, 12_000), "a slow reply may explain it");
        assert!(skew.update(11_001, 10_000, 10_000));
        assert!(!skew.update(90_000, 10_000, 10_000), "already warned");
        assert_eq!(skew.server_ahead_ms(), Some(80_000));
        assert!(!skew.update(11_000, 10_000, 10_000), "nearly synchronized");
        assert!(!skew.update(11_001, 10_000, 10_000), "still the same skew");
        assert!(!skew.update(10_000, 10_000, 10_000), "synchronized");
        assert!(skew.update(1_000, 10_000, 10_000), "skewed again, behind");
        assert_eq!(skew.server_ahead_ms(), Some(-9000));
    }
}
