//! Log-once guard for events that a client can trigger.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Guard of a log line that is written at most once.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(AtomicBool);

impl LogOnce {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Returns true for the first call only.
    pub(crate) fn is_first(&self) -> bool {
        // After the first call only a load remains, which does not invalidate the cache line on other processors.
        !self.0.load(Relaxed) && !self.0.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::LogOnce;

    #[test]
    fn only_the_first_call_returns_true() {
        let guard = LogOnce::new();
        assert_eq!([(); 3].map(|()| guard.is_first()), [true, false, false]);
    }
}
