//! Time budget of a store's response.

use std::future::Future;
use std::time::Duration;

use slidegate_core::{Check, Decision, Policy};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::invalidation::FeedVersion;
use crate::store::{Operation, Store};

/// A store that responds within a time budget, with an error if the store below has not responded by then.
///
/// The abandoned request may have been counted; [`StoreError::may_have_counted`] reports this.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::Budget;
/// use slidegate::{Limiter, MemoryStore};
///
/// let limiter = Limiter::new(Budget::new(MemoryStore::new(), Duration::from_millis(5)));
/// # let _ = limiter;
/// ```
#[derive(Debug)]
pub struct Budget<S> {
    store: S,
    budget: Duration,
}

impl<S> Budget<S> {
    /// Wraps `store` with a budget for each call.
    pub fn new(store: S, budget: Duration) -> Self {
        Self { store, budget }
    }

    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Store for Budget<S> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let response = within(self.budget, self.store.execute(operation)).await;
        response.unwrap_or_else(|| Err(budget_exceeded(self.budget)))
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let responses = within(self.budget, self.store.execute_many(operations)).await;
        responses.unwrap_or_else(|| vec![Err(budget_exceeded(self.budget)); operations.len()])
    }

    /// Forgets the policy without a time limit, because this takes longer than a decision.
    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.store.forget(policy).await
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        self.store.feed_version(check)
    }
}

/// Returns the response if it arrives within the budget.
pub(super) async fn within<T>(budget: Duration, response: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(budget, response).await.ok()
}

pub(super) fn budget_exceeded(budget: Duration) -> StoreError {
    StoreError::lost(format!("no response of the store within {budget:?}")).too_late()
}
