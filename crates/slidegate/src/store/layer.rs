//! Stores over stores, and layers that are present or absent.

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

/// A layer, or the store below without it. Chooses the layers of a stack at run time.
///
/// ```
/// use slidegate::resilience::Switch;
/// use slidegate::store::{MemoryStore, Optional, Store};
///
/// let is_switchable = false;
/// let store = Optional::new(is_switchable, MemoryStore::new(), Switch::new);
/// assert!(store.layer().is_none() && store.is_immediate());
/// ```
#[derive(Debug)]
pub enum Optional<L: StoreLayer> {
    /// The layer over the store.
    Present(L),
    /// The store alone.
    Absent(L::Inner),
}

impl<L: StoreLayer> Optional<L> {
    /// Puts the layer over the store if `is_present`.
    pub fn new(is_present: bool, store: L::Inner, layer: impl FnOnce(L::Inner) -> L) -> Self {
        if is_present { Self::Present(layer(store)) } else { Self::Absent(store) }
    }

    /// Puts the layer over the store if `is_present`, and returns the error of `layer`.
    pub fn try_new<E>(
        is_present: bool,
        store: L::Inner,
        layer: impl FnOnce(L::Inner) -> Result<L, E>,
    ) -> Result<Self, E> {
        if is_present { layer(store).map(Self::Present) } else { Ok(Self::Absent(store)) }
    }

    /// Returns the layer if it is present.
    pub fn layer(&self) -> Option<&L> {
        match self {
            Self::Present(layer) => Some(layer),
            Self::Absent(_) => None,
        }
    }

    /// Returns the store below.
    pub fn inner(&self) -> &L::Inner {
        match self {
            Self::Present(layer) => layer.inner(),
            Self::Absent(store) => store,
        }
    }
}

impl<L: StoreLayer> Store for Optional<L> {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        match self {
            Self::Present(layer) => layer.execute(operations).await,
            Self::Absent(store) => store.execute(operations).await,
        }
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        match self {
            Self::Present(layer) => layer.execute_within(operations, budget).await,
            Self::Absent(store) => store.execute_within(operations, budget).await,
        }
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match self {
            Self::Present(layer) => layer.forget(policy).await,
            Self::Absent(store) => store.forget(policy).await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        match self {
            Self::Present(layer) => layer.clock(),
            Self::Absent(store) => store.clock(),
        }
    }

    fn is_immediate(&self) -> bool {
        match self {
            Self::Present(layer) => Store::is_immediate(layer),
            Self::Absent(store) => store.is_immediate(),
        }
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match self {
            Self::Present(layer) => layer.feed_version(check),
            Self::Absent(store) => store.feed_version(check),
        }
    }
}
