//! Backoff after a failed compare-and-swap.

use std::hint::spin_loop;

/// Spins of the first and the longest wait: about 160 ns and 640 ns, several times that on processors with a slower spin
/// hint. Tuned on two cores of one kind.
const FIRST: u32 = 16;
const MAX: u32 = 64;

/// Exponential backoff by spinning.
///
/// A thread that retries at once takes the cache line from the thread that has just won it, and both spend more time on
/// transfers of the line than on checks. A thread that waits lets the other make many checks meanwhile.
pub(super) struct SpinBackoff(u32);

impl SpinBackoff {
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    pub(super) fn wait(&mut self) {
        for _ in 0..self.0 {
            spin_loop();
        }
        self.0 = (2 * self.0).min(MAX);
    }
}
