//! Direct access to a memory store without layers.

use std::sync::Arc;

use slidegate_core::{Decision, Policy};

use crate::clock::AnyClock;
use crate::error::StoreError;
use crate::stack::StoreStack;
use crate::store::memory::{Binding, MemoryStore};

/// A memory store without layers, with the work done once that is the same for all keys of a policy.
pub(crate) struct FastPath {
    pub(super) memory: Arc<MemoryStore<AnyClock>>,
    pub(super) binding: Binding,
}

impl FastPath {
    /// Returns `None` if the store is remote or has a layer.
    pub(crate) fn new(policy: &Policy, store: &StoreStack) -> Option<Self> {
        let memory = store.bare_memory()?;
        Some(Self { binding: memory.bind(policy), memory: Arc::clone(memory) })
    }

    /// Checks a key under the policy that this path was created for.
    #[inline(always)]
    pub(crate) fn check(&self, policy: &Policy, key: &[u8], cost: u64) -> Result<Decision, StoreError> {
        self.memory.check_bound(policy, &self.binding, key, cost)
    }
}
