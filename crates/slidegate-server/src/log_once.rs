//! What is said once, because whoever causes it can do so as often as he likes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether something has been said.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(AtomicBool);

impl LogOnce {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// True for the first who asks.
    pub(crate) fn is_first(&self) -> bool {
        // Mostly it has been said, and then nothing need be written that all processors share.
        !self.0.load(Relaxed) && !self.0.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::LogOnce;

    #[test]
    fn there_is_one_first() {
        let once = LogOnce::new();
        assert_eq!([(); 3].map(|()| once.is_first()), [true, false, false]);
    }
}
