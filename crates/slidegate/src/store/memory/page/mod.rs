//! Pages: the lock of each group of slots, and the state that it protects.

mod denied_pages;
mod record;

use std::sync::{PoisonError, TryLockError};

use slab::Slab;

pub(super) use self::denied_pages::DeniedPages;
pub(super) use self::record::Record;

use super::atomics::{Mutex, MutexGuard};

#[derive(Default)]
pub(super) struct Page {
    state: Mutex<PageState>,
}

/// State that only the holder of the page's lock may access.
#[derive(Default)]
pub(super) struct PageState {
    pub(super) records: Slab<Record>,
    /// Whether a slot of the page has ever held a wide counter.
    pub(super) has_wide: bool,
    /// Number of owned slots.
    pub(super) keys: usize,
    /// Whether the page was ever entered into [`DeniedPages`].
    pub(super) was_denied: bool,
    /// Next line to sweep for idle keys.
    pub(super) hand: u8,
}

/// A page whose lock is held.
pub(super) struct LockedPage<'a> {
    pub(super) number: usize,
    pub(super) state: MutexGuard<'a, PageState>,
}

impl Page {
    pub(super) fn lock(&self, number: usize) -> LockedPage<'_> {
        LockedPage { number, state: self.state.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Locks the page unless another thread holds the lock.
    pub(super) fn try_lock(&self, number: usize) -> Option<LockedPage<'_>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(LockedPage { number, state })
    }
}

#[cfg(not(slidegate_loom))]
impl Page {
    /// Prefetches the lock, by a read of its poison flag, which lies beside it.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        std::hint::black_box(self.state.is_poisoned());
    }
}

/// Does nothing in a model: loom's lock has no poison flag to read.
#[cfg(slidegate_loom)]
impl Page {
    pub(super) fn prefetch(&self) {}
}

impl PageState {
    /// Bytes of an entry of the slab, occupied or vacant: the record and a word of metadata.
    const ENTRY_BYTES: usize = size_of::<Record>() + size_of::<usize>();

    /// Returns the bytes that the slab has allocated.
    pub(super) fn slab_bytes(&self) -> usize {
        self.records.capacity() * Self::ENTRY_BYTES
    }

    /// Returns the bytes that the slab may allocate for one more record: it doubles when full.
    pub(super) fn growth_for_one_more(&self) -> usize {
        let is_full = self.records.len() == self.records.capacity();
        if is_full { self.slab_bytes().max(4 * Self::ENTRY_BYTES) } else { 0 }
    }
}
