//! Wide counters: what does not fit into a slot's word stands at the slot's place in a second flat memory, so that both
//! can be fetched at once.

use std::sync::atomic::Ordering;

use super::atomics::fence;
use super::lines::Lines;
use super::slots::{KeyId, SLOTS_PER_PAGE, Slot};

/// The part of a wide counter that is not in the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    pub(super) start_ms: u64,
    pub(super) prev: u64,
}

/// Room for the wide counters of all slots. Of a large table it is no more than address space until the first is written.
pub(super) struct WideCounters(pub(super) Lines);

/// What the wide counters of a page take.
pub(super) const WIDE_PAGE_BYTES: usize = SLOTS_PER_PAGE * 2 * size_of::<u64>();

impl WideCounters {
    /// What stands beside a slot. Only true if the slot's word is the same before and after, or under the page's lock.
    #[inline(always)]
    pub(super) fn load(&self, slot: Slot<'_>) -> Option<Wide> {
        let [start_ms, prev] = self.0.pair(slot.number)?;
        Some(Wide { start_ms: start_ms.load(Ordering::Relaxed), prev: prev.load(Ordering::Relaxed) })
    }

    /// Under the page's lock, while nobody else decides by the slot's word: it is seized, vacant or a token bucket's.
    #[inline]
    pub(super) fn store(&self, slot: Slot<'_>, wide: Wide) {
        let Some([start_ms, prev]) = self.0.pair(slot.number) else {
            debug_assert!(false, "a slot beside which there is nothing");
            return;
        };
        // Whoever sees any of this must see that the word by which it came here was taken away before.
        fence(Ordering::Release);
        start_ms.store(wide.start_ms, Ordering::Relaxed);
        prev.store(wide.prev, Ordering::Relaxed);
    }

    /// Begins to bring into the cache what stands beside a key's own line.
    #[inline(always)]
    pub(super) fn touch(&self, id: KeyId) {
        self.0.touch(id.home);
    }
}
