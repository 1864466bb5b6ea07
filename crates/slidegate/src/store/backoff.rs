//! Backoff between attempts.

use std::hash::{BuildHasher, RandomState};

const FIRST_MS: u64 = 10;
const MAX_MS: u64 = 1000;

/// Pauses that double from 10 ms to one second. Each is shortened at random, so that callers do not return simultaneously.
#[derive(Debug)]
pub(crate) struct Backoff {
    next_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next_ms: FIRST_MS }
    }
}

impl Backoff {
    pub(crate) fn next_ms(&mut self) -> u64 {
        let max_ms = self.next_ms;
        self.next_ms = (max_ms * 2).min(MAX_MS);
        max_ms - RandomState::new().hash_one(max_ms) % (max_ms / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::default();
        for max_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            let wait_ms = backoff.next_ms();
            assert!((max_ms / 2..=max_ms).contains(&wait_ms), "{wait_ms} of {max_ms}");
        }
    }
}
