//! The stack without the feature `resilience`: the store alone.

use std::time::Duration;

use crate::error::SettingsError;
use crate::store::{AnyStore, MemoryStoreBuilder};

pub(super) type Layers = AnyStore;

#[derive(Clone, Debug, Default)]
pub(super) struct Protection {}

#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signatures are those of the feature")]
impl Protection {
    pub(super) fn push_onto(
        self,
        store: AnyStore,
        _url_budget: Option<Duration>,
        _local: MemoryStoreBuilder,
    ) -> Result<Layers, SettingsError> {
        Ok(store)
    }

    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(super) fn longest_budget(&self, _url_budget: Option<Duration>) -> Option<Duration> {
        None
    }
}

#[expect(clippy::unused_self, reason = "the signatures are those of the feature")]
impl Layers {
    pub(super) fn base(&self) -> &AnyStore {
        self
    }

    pub(super) fn is_bare(&self) -> bool {
        true
    }
}
