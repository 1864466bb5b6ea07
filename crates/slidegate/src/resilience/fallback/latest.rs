//! What came of it when the store was last asked, whoever asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use slidegate_core::Reason;

use crate::error::StoreError;

/// Why a store did not decide.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// As it stands in decisions that were made without the store.
    pub reason: Reason,
    /// What exactly has happened. It may name servers and users.
    pub error: StoreError,
}

#[derive(Debug, Default)]
pub(super) struct Latest {
    is_failure: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Latest {
    /// It has not decided.
    pub(super) fn failed(&self, reason: Reason, error: &StoreError) {
        let failure = Failure { reason, error: error.clone() };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.is_failure.store(true, Ordering::Release);
    }

    /// It has.
    pub(super) fn decided(&self) {
        // Looked at first: the same word is written by nobody as long as all is well.
        if self.is_failure.load(Ordering::Relaxed) {
            self.is_failure.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        let is_failure = self.is_failure.load(Ordering::Acquire);
        is_failure.then(|| self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone())?
    }
}
