//! What to do when somebody else was faster.

use std::hint::spin_loop;

/// How many moments to wait at first and at the most: some 160 and 640 ns, or several times that on processors that take
/// longer for a moment. Tuned with two cores of one kind.
const FIRST: u32 = 16;
const MOST: u32 = 64;

/// Waits for a moment each time that another thread was faster, for twice as long each time. Whoever asks again at once takes
/// the line away from the other, which then is the slower one: both spend more time on that than on checks. Whoever waits
/// leaves the other to make many of them meanwhile.
pub(super) struct Turns(u32);

impl Turns {
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    pub(super) fn wait(&mut self) {
        for _ in 0..self.0 {
            spin_loop();
        }
        self.0 = (2 * self.0).min(MOST);
    }
}
