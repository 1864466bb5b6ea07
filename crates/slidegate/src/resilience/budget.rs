//! An answer within a time, whatever the store does.

use std::future::Future;
use std::time::Duration;

use slidegate_core::{Check, Decision, Policy};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::invalidation::FeedVersion;
use crate::store::{Operation, Store};

/// A store that answers within a budget: with an error if nothing better has come by then.
///
/// A request that is given up may have been counted, which the error says.
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
    /// `store`, with so much time for each call.
    pub fn new(store: S, budget: Duration) -> Self {
        Self { store, budget }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Store for Budget<S> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let answer = within(self.budget, self.store.execute(operation)).await;
        answer.unwrap_or_else(|| Err(too_late(self.budget)))
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let answers = within(self.budget, self.store.execute_many(operations)).await;
        answers.unwrap_or_else(|| vec![Err(too_late(self.budget)); operations.len()])
    }

    /// Without a limit of time, for it takes longer than a decision.
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

/// What comes within the budget.
pub(super) async fn within<T>(budget: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(budget, answer).await.ok()
}

pub(super) fn too_late(budget: Duration) -> StoreError {
    StoreError::lost(format!("the store has not answered within {budget:?}")).too_late()
}
