//! Stores over stores.

use std::future::Future;
use std::time::Duration;

use slidegate_core::{Check, Policy};

use super::invalidation::FeedVersion;
use super::{Operation, Responses, Store, timeout};
use crate::clock::Clock;
use crate::error::StoreError;

/// A store over another store, such as a cache or a circuit breaker.
///
/// Implement this trait instead of [`Store`]. Every property of the inner store that the layer does not change is
/// forwarded by the implementation of [`Store`] for all layers, so a layer cannot forget one.
pub trait StoreLayer: Send + Sync {
    /// Store below.
    type Inner: Store;

    /// Returns the store below.
    fn inner(&self) -> &Self::Inner;

    /// Executes operations as [`Store::execute`] does, by means of the inner store.
    fn apply(&self, operations: &[Operation<'_>]) -> impl Future<Output = Responses> + Send;

    /// Executes operations within a time as [`Store::execute_within`] does. The default sets a timer.
    fn apply_within(
        &self,
        operations: &[Operation<'_>],
        budget: Duration,
    ) -> impl Future<Output = Responses> + Send {
        timeout::within(budget, operations.len(), self.apply(operations))
    }

    /// Clears the counts of a policy as [`Store::forget`] does. The default forwards to the inner store.
    fn apply_forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        self.inner().forget(policy)
    }

    /// Returns whether this layer never waits for anything other than the inner store. The default is `true`.
    fn is_immediate(&self) -> bool {
        true
    }
}

impl<L: StoreLayer> Store for L {
    fn execute(&self, operations: &[Operation<'_>]) -> impl Future<Output = Responses> + Send {
        self.apply(operations)
    }

    fn execute_within(
        &self,
        operations: &[Operation<'_>],
        budget: Duration,
    ) -> impl Future<Output = Responses> + Send {
        self.apply_within(operations, budget)
    }

    fn forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        self.apply_forget(policy)
    }

    fn clock(&self) -> &dyn Clock {
        self.inner().clock()
    }

    fn is_immediate(&self) -> bool {
        StoreLayer::is_immediate(self) && self.inner().is_immediate()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        self.inner().feed_version(check)
    }
}
