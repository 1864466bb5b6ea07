//! How long to wait before the next attempt.

use std::hash::{BuildHasher, RandomState};

const FIRST_MS: u64 = 10;
const MOST_MS: u64 = 1000;

/// Doubles from 10 ms to a second, each time by a random part less, so that many callers do not return at once.
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
        let most_ms = self.next_ms;
        self.next_ms = (most_ms * 2).min(MOST_MS);
        most_ms - RandomState::new().hash_one(most_ms) % (most_ms / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_each_time_but_not_forever() {
        let mut backoff = Backoff::default();
        for most_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            let wait_ms = backoff.next_ms();
            assert!((most_ms / 2..=most_ms).contains(&wait_ms), "{wait_ms} of {most_ms}");
        }
    }
}
