//! Store of a limiter, with access to its tiers.

use std::future::Future;
use std::time::Duration;

use crate::limiter::Limiter;
use crate::stack::StoreStack;
use crate::store::{Operation, Responses, Store, StoreLayer};

/// Store of a [`Limiter`]. Marks the layers that are built from a limiter and so have its tiers.
#[derive(Clone, Debug)]
pub struct LimiterStore(pub(super) Limiter);

impl StoreLayer for LimiterStore {
    type Inner = StoreStack;

    fn inner(&self) -> &StoreStack {
        self.0.store()
    }

    fn apply(&self, operations: &[Operation<'_>]) -> impl Future<Output = Responses> + Send {
        self.inner().execute(operations)
    }

    fn apply_within(
        &self,
        operations: &[Operation<'_>],
        budget: Duration,
    ) -> impl Future<Output = Responses> + Send {
        self.inner().execute_within(operations, budget)
    }
}
