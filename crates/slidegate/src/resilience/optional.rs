//! A layer that is present or absent.

use std::time::Duration;

use slidegate_core::{Check, Policy};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{FeedVersion, Operation, Responses, Store, StoreLayer};

/// A layer, or the store below without it. Chooses the layers of a stack at run time.
///
/// ```
/// use slidegate::resilience::{Optional, Switch};
/// use slidegate::store::{MemoryStore, Store};
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
