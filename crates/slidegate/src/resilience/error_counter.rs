//! Metric of the errors of a store without a fallback.

use slidegate_core::Decision;

use super::telemetry;
use crate::error::StoreError;
use crate::store::{Operation, Responses, Store, StoreLayer};

/// A store whose errors are counted in `slidegate_store_errors_total`. A [`Fallback`](super::Fallback) counts them itself.
#[derive(Debug)]
pub struct ErrorCounter<S> {
    store: S,
}

impl<S> ErrorCounter<S> {
    /// Wraps `store`.
    pub fn new(store: S) -> Self {
        Self { store }
    }
}

impl<S: Store> StoreLayer for ErrorCounter<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let responses = self.store.execute(operations).await;
        responses.iter().for_each(count_error);
        responses
    }
}

#[inline]
fn count_error(response: &Result<Decision, StoreError>) {
    if let Err(error) = response {
        telemetry::count_store_error(error);
    }
}
