//! Wide counters: the part that does not fit into a slot's word lies in a second array, at the same index as the slot,
//! so that both can be fetched at once.

use std::sync::atomic::Ordering;

use super::atomics::fence;
use super::cache_lines::CacheLines;
use super::slots::{KeyId, SLOTS_PER_PAGE, Slot, Slots};

/// The part of a wide counter that is outside its word. Of a token bucket: the time of the debt, and the debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WidePart {
    pub(super) start_ms: u64,
    pub(super) prev: u64,
}

/// Array of the outer parts for all slots. For a large table it is only reserved address space until the first write.
pub(super) struct WideCounters(CacheLines);

/// Bytes of the array per page.
pub(super) const WIDE_PAGE_BYTES: usize = SLOTS_PER_PAGE * 2 * size_of::<u64>();

impl WideCounters {
    /// Creates the array for these slots.
    pub(super) fn new(slots: &Slots) -> Self {
        Self(slots.new_parallel_lines())
    }

    /// Returns the outer part for a slot. It is consistent only under the page's lock, or if the slot's word is the
    /// same before and after.
    #[inline(always)]
    pub(super) fn load(&self, slot: Slot<'_>) -> Option<WidePart> {
        let [start_ms, prev] = self.0.pair(slot.number)?;
        Some(WidePart { start_ms: start_ms.load(Ordering::Relaxed), prev: prev.load(Ordering::Relaxed) })
    }

    /// Writes the outer part for a slot. Requires the page's lock and a word by which no lock-free thread decides:
    /// seized, vacant, or that of a token bucket.
    #[inline]
    pub(super) fn store(&self, slot: Slot<'_>, wide: WidePart) {
        let Some([start_ms, prev]) = self.0.pair(slot.number) else {
            debug_assert!(false, "the slot is outside the array");
            return;
        };
        // A thread that sees either write must also see that the former word of the slot is gone.
        fence(Ordering::Release);
        start_ms.store(wide.start_ms, Ordering::Relaxed);
        prev.store(wide.prev, Ordering::Relaxed);
    }

    /// Prefetches the outer parts of a key's home line.
    #[inline(always)]
    pub(super) fn prefetch(&self, id: KeyId) {
        self.0.prefetch(id.home_line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_its_own_wide_part() {
        let slots = Slots::new(2);
        let wide = WideCounters::new(&slots);
        let all = || (0..2).flat_map(|page| slots.whole_page(page));
        let wide_part = |number: usize| WidePart { start_ms: number as u64, prev: u64::MAX - number as u64 };
        all().enumerate().for_each(|(number, slot)| wide.store(slot, wide_part(number)));
        assert_eq!(all().count(), 2 * SLOTS_PER_PAGE);
        assert!(all().enumerate().all(|(number, slot)| wide.load(slot) == Some(wide_part(number))));
    }
}
