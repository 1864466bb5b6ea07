//! Outcome of the most recent request to the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use slidegate_core::FallbackReason;

use crate::error::StoreError;

/// Reason for which the store did not decide.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Reason as reported in fallback decisions.
    pub reason: FallbackReason,
    /// The store's error. Its text may contain names of servers and users.
    pub error: StoreError,
}

#[derive(Debug, Default)]
pub(super) struct LastOutcome {
    is_failure: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl LastOutcome {
    pub(super) fn set_failure(&self, reason: FallbackReason, error: &StoreError) {
        let failure = Failure { reason, error: error.clone() };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.is_failure.store(true, Ordering::Release);
    }

    pub(super) fn set_success(&self) {
        // The load comes first, so that the cache line stays shared while the store works.
        if self.is_failure.load(Ordering::Relaxed) {
            self.is_failure.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the failure if the last outcome was one.
    pub(super) fn failure(&self) -> Option<Failure> {
        let is_failure = self.is_failure.load(Ordering::Acquire);
        is_failure.then(|| self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone())?
    }
}
