//! Time budget of a store's response.

use std::time::Duration;

use crate::store::{Operation, Responses, Store, StoreLayer};

/// A store that responds within a time budget, with an error if the store below has not responded by then.
///
/// The abandoned request may have been counted; [`StoreError::may_have_counted`](crate::StoreError::may_have_counted)
/// reports this.
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
        self.store.execute_within(operations, self.budget).await
    }

    async fn apply_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        self.store.execute_within(operations, budget.min(self.budget)).await
    }

    /// A timeout needs a timer.
    fn is_immediate(&self) -> bool {
        false
    }
}
