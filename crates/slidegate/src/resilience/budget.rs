//! Time budget of a store's response.

use std::future::Future;
use std::time::Duration;

use crate::error::StoreError;
use crate::store::StoreLayer;
use crate::store::responses::Responses;
use crate::store::{Operation, Store};

/// A store that responds within a time budget, with an error if the store below has not responded by then.
///
/// The abandoned request may have been counted; [`StoreError::may_have_counted`] reports this.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::Budget;
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// let limiter = StoreLimiter::new(Budget::new(MemoryStore::new(), Duration::from_millis(5)));
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

impl<S: Store> StoreLayer for Budget<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let responses = within(self.budget, self.store.execute(operations)).await;
        responses.unwrap_or_else(|| operations.iter().map(|_| Err(budget_exceeded(self.budget))).collect())
    }

    /// A timeout needs a timer.
    fn is_immediate(&self) -> bool {
        false
    }
}

/// Returns the response if it arrives within the budget.
pub(super) async fn within<T>(budget: Duration, response: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(budget, response).await.ok()
}

pub(super) fn budget_exceeded(budget: Duration) -> StoreError {
    StoreError::lost(format!("no response of the store within {budget:?}")).too_late()
}
