//! What lies beside a page of slots.

use std::sync::{PoisonError, TryLockError};

use slab::Slab;

use super::atomics::{Mutex, MutexGuard};
use super::record::Record;

#[derive(Default)]
pub(super) struct Page {
    inner: Mutex<Inner>,
}

/// What only the holder of a page's lock may touch.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) records: Slab<Record>,
    /// Whether a wide counter was ever kept for one of its slots.
    pub(super) has_wide: bool,
    /// How many of its slots are owned.
    pub(super) keys: usize,
    /// Whether it was ever found that nobody of it could go, see [`Barren`](super::barren::Barren).
    pub(super) was_barren: bool,
    /// The line to look at next for keys that are over.
    pub(super) hand: u8,
}

/// A page whose lock is held.
pub(super) struct Locked<'a> {
    pub(super) number: usize,
    pub(super) inner: MutexGuard<'a, Inner>,
}

impl Page {
    pub(super) fn lock(&self, number: usize) -> Locked<'_> {
        Locked { number, inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Nothing if another has the lock.
    pub(super) fn try_lock(&self, number: usize) -> Option<Locked<'_>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { number, inner })
    }
}

/// The model checker's lock cannot be looked at.
#[cfg(not(slidegate_loom))]
impl Page {
    /// Begins to bring it into the cache: whether its lock is poisoned stands beside it.
    #[inline(always)]
    pub(super) fn touch(&self) {
        std::hint::black_box(self.inner.is_poisoned());
    }
}

#[cfg(slidegate_loom)]
impl Page {
    pub(super) fn touch(&self) {}
}

impl Inner {
    /// A record's place in the slab, occupied or not: the record and a word about it.
    const ENTRY_BYTES: usize = size_of::<Record>() + size_of::<usize>();

    /// What the places for records take, be they occupied or not.
    pub(super) fn slab_bytes(&self) -> usize {
        self.records.capacity() * Self::ENTRY_BYTES
    }

    /// What one more record may make them take beyond that: a slab doubles.
    pub(super) fn growth_for_one_more(&self) -> usize {
        let is_full = self.records.len() == self.records.capacity();
        if is_full { self.slab_bytes().max(4 * Self::ENTRY_BYTES) } else { 0 }
    }
}
