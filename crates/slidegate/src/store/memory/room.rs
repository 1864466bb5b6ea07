//! Room in the table: who gets a place, who gives it up, and how many bytes there may be.

use std::sync::atomic::Ordering;

use slidegate_core::{Action, Policy, Verb};

use super::page::Locked;
use super::record::{Outlook, outlook};
use super::settings::WhenFull;
use super::slots::{KeyId, Slot};
use super::table::Table;
use super::word::{RECORD, Word};
use crate::error::StoreError;

impl Table {
    /// A vacant slot for a new key, counted as its own. Another key of the page is given up for it if there is none, or
    /// if there are as many keys as may be.
    pub(super) fn place(
        &self,
        id: KeyId,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<Slot<'_>, StoreError> {
        let vacant = self.slots.nearest_first(id).find(|slot| !slot.is_owned());
        let more = |keys| (keys < self.settings.max_keys).then_some(keys + 1);
        if let Some(slot) = vacant
            && self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            return Ok(slot);
        }
        let nearest = || self.slots.nearest_first(id).filter(Slot::is_owned);
        let given_up = self
            .give_up(nearest, page, now_ms)
            .ok_or(StoreError::full("the memory store is full: max_keys is reached"))?;
        // One goes and one comes. If it were no key in between, one of another page could come as well.
        Ok(vacant.unwrap_or(given_up))
    }

    /// Of `candidates`, the key with the least to lose among the first 16; a denied one only if all are. One that is
    /// over is taken as soon as it is met, and looked for among all if no other may be taken.
    fn least_to_lose<'a>(
        &self,
        candidates: impl Iterator<Item = Slot<'a>>,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Option<(Outlook, Slot<'a>)> {
        const ENOUGH: usize = 16;
        let mut least: Option<(Outlook, Slot<'a>)> = None;
        for (seen, slot) in candidates.enumerate() {
            let is_enough = match least {
                Some((Outlook::Over, _)) => true,
                Some((Outlook::Live { .. }, _)) => {
                    seen >= ENOUGH && self.settings.when_full == WhenFull::Evict
                }
                Some((Outlook::Denied { .. }, _)) | None => false,
            };
            if is_enough {
                break;
            }
            let outlook = self.outlook(slot, slot.load(), page, now_ms);
            if least.is_none_or(|(least, _)| outlook < least) {
                least = Some((outlook, slot));
            }
        }
        least
    }

    /// Removes the one of `candidates` with the least to lose, if it is over or the table may evict. It is counted as
    /// a key still.
    fn give_up<'a, I: Iterator<Item = Slot<'a>>>(
        &self,
        candidates: impl Fn() -> I,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Option<Slot<'a>> {
        loop {
            let (judged, slot) = self.least_to_lose(candidates(), page, now_ms)?;
            if judged != Outlook::Over && self.settings.when_full == WhenFull::Refuse {
                return None;
            }
            if self.clear_as_judged(judged, slot, page, now_ms) {
                return Some(slot);
            }
        }
    }

    /// Removes the key of a slot unless it has more to lose than it was judged by: others count meanwhile, and it may
    /// be denied by now.
    fn clear_as_judged(&self, judged: Outlook, slot: Slot<'_>, page: &mut Locked<'_>, now_ms: u64) -> bool {
        loop {
            let word = slot.load();
            let outlook = self.outlook(slot, word, page, now_ms);
            if outlook > judged {
                return false;
            }
            if self.clear(slot, word, page) {
                if outlook != Outlook::Over {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
        }
    }

    /// Removes the key of a slot, whatever it counts.
    pub(super) fn remove(&self, slot: Slot<'_>, page: &mut Locked<'_>) {
        while !self.clear(slot, slot.load(), page) {}
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a slot from its key and frees what lies beside it, unless something else than `word` is counted by now.
    fn clear(&self, slot: Slot<'_>, word: Word, page: &mut Locked<'_>) -> bool {
        let is_vacated = slot.vacate(word);
        if is_vacated && word.layout() == RECORD {
            self.free_record(word, page);
        }
        is_vacated
    }

    /// Frees the record that a word has stood for.
    pub(super) fn free_record(&self, word: Word, page: &mut Locked<'_>) {
        if let Some(record) = page.inner.records.try_remove(word.record_number()) {
            let before = page.inner.slab_bytes();
            if page.inner.records.is_empty() {
                page.inner.records.shrink_to_fit();
            }
            self.count_bytes(before + record.heap_bytes(), page.inner.slab_bytes());
        }
    }

    /// Removes keys that are over from one line, so that a busy page cleans itself and none needs a thread.
    pub(super) fn sweep(&self, page: &mut Locked<'_>, now_ms: u64) {
        let line = page.inner.hand;
        page.inner.hand = line.wrapping_add(1);
        for slot in self.slots.line_of_page(page.number, line) {
            if !slot.is_owned() {
                continue;
            }
            let word = slot.load();
            // Unless it has counted something since.
            if self.outlook(slot, word, page, now_ms) == Outlook::Over && self.clear(slot, word, page) {
                self.keys.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// What would be lost with this slot, whose word is `word`.
    fn outlook(&self, slot: Slot<'_>, word: Word, page: &Locked<'_>, now_ms: u64) -> Outlook {
        if word.layout() == RECORD {
            let record = page.inner.records.get(word.record_number());
            return record.map_or(Outlook::Over, |record| record.outlook(now_ms));
        }
        let counted = self.counted(slot, word);
        counted.map_or(Outlook::Over, |(state, quota)| outlook(&state, quota, now_ms))
    }

    /// Makes sure that a record can take what a check may add to it. One that is denied adds nothing.
    pub(super) fn let_record_grow(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        number: usize,
        page: &mut Locked<'_>,
        action: Action,
    ) -> Result<(), StoreError> {
        let Some(record) = page.inner.records.get_mut(number) else { return Ok(()) };
        // A log grows by a quarter, a strict window by some pairs, a changed policy by some states.
        let most = record.heap_bytes() / 2 + 256 * policy.quotas().len();
        if self.has_bytes(most) {
            return Ok(());
        }
        let peek = Action::new(Verb::Peek, action.now_ms(), action.cost());
        if !record.decide(policy, peek).0.is_allowed() {
            return Ok(());
        }
        self.make_bytes(|_| most, slot.number, page, action.now_ms())
    }

    /// Makes room for as many bytes as `more` says, by giving up records of the page, other than that of the slot
    /// `keep`.
    pub(super) fn make_bytes(
        &self,
        more: impl Fn(&Locked<'_>) -> usize,
        keep: usize,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        while !self.has_bytes(more(page)) {
            let has_record =
                |slot: &Slot<'_>| slot.is_owned() && slot.number != keep && slot.load().layout() == RECORD;
            let number = page.number;
            let records = || self.slots.whole_page(number).filter(has_record);
            self.give_up(records, page, now_ms)
                .ok_or(StoreError::full("the memory store is full: max_bytes is reached"))?;
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn has_bytes(&self, more: usize) -> bool {
        self.bytes() + more <= self.max_bytes
    }

    /// Something beside the table took `before` bytes and takes `after` now.
    pub(super) fn count_bytes(&self, before: usize, after: usize) {
        if before != after {
            self.beside_bytes.fetch_add(after, Ordering::Relaxed);
            self.beside_bytes.fetch_sub(before, Ordering::Relaxed);
        }
    }
}
