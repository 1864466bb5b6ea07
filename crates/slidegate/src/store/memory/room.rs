//! Room in the table: who gets a place, and how many bytes there may be.

use std::sync::atomic::Ordering;

use slidegate_core::{Action, Policy, Verb};

use super::asked::Asked;
use super::giving_up::{Candidate, Gone, has_record};
use super::page::Locked;
use super::record::Outlook;
use super::slots::{KeyId, Slot};
use super::table::Table;
use super::word::{RECORD, Word};
use crate::error::StoreError;

/// How many records go in one check at the most.
const MOST_GONE: usize = 1000;

/// Why there is none.
#[derive(Debug)]
pub(super) enum NoRoom {
    ForKeys,
    ForBytes,
    /// Another thread is at work where there may be some, in this page or where it was just looked: to be asked again without
    /// the lock of a page, for which that one may be waiting in turn.
    Yet(usize),
}

impl NoRoom {
    /// What is used up, or for which page to wait before that is known.
    pub(super) fn error(self) -> Result<usize, StoreError> {
        match self {
            Self::ForKeys => Err(StoreError::full("the memory store is full: max_keys is reached")),
            Self::ForBytes => Err(StoreError::full("the memory store is full: max_bytes is reached")),
            Self::Yet(page) => Ok(page),
        }
    }
}

impl Table {
    /// A vacant slot for a new key, counted as its own. Another key is given up for it if there are as many as may be, or
    /// if the page has no such slot.
    pub(super) fn place(&self, id: KeyId, page: &mut Locked<'_>, now_ms: u64) -> Result<Slot<'_>, NoRoom> {
        let vacant = self.slots.nearest_first(id).find(|slot| !slot.is_owned());
        let more = |keys| (keys < self.settings.max_keys).then_some(keys + 1);
        if let Some(slot) = vacant
            && self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            return Ok(slot);
        }
        let own = || self.slots.nearest_first(id).filter(Slot::is_owned);
        // One goes and one comes. If it were no key in between, one of another page could come as well.
        match self.give_up(Candidate::AnyKey, own, vacant.is_some(), page, now_ms)? {
            Gone::Here(slot) => Ok(vacant.unwrap_or(slot)),
            Gone::Elsewhere => vacant.ok_or(NoRoom::ForKeys),
        }
    }

    /// Removes the key of a slot, whatever it counts.
    pub(super) fn remove(&self, slot: Slot<'_>, page: &mut Locked<'_>) {
        while !self.clear(slot, slot.load(), page) {}
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a slot from its key and frees what lies beside it, unless something else than `word` is counted by now.
    pub(super) fn clear(&self, slot: Slot<'_>, word: Word, page: &mut Locked<'_>) -> bool {
        let is_vacated = slot.vacate(word);
        if is_vacated {
            page.inner.keys -= 1;
            if word.layout() == RECORD {
                self.free_record(word, page);
            }
        }
        is_vacated
    }

    /// Frees the record that a word has stood for.
    pub(super) fn free_record(&self, word: Word, page: &mut Locked<'_>) {
        if let Some(record) = page.inner.records.try_remove(word.record_number()) {
            self.records.fetch_sub(1, Ordering::Relaxed);
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
        for slot in self.slots.line_of_page(page.number, usize::from(line)) {
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

    /// Makes sure that a record can take what a check may add to it. One that is denied adds nothing.
    pub(super) fn let_record_grow(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut Locked<'_>,
        action: Action,
        asked: Asked<'_>,
    ) -> Result<(), NoRoom> {
        let number = slot.load().record_number();
        let Some(record) = page.inner.records.get_mut(number) else { return Ok(()) };
        let most = record.growth_bytes(policy);
        if most == 0 || self.has_bytes(most) {
            return Ok(());
        }
        let own_bytes = record.heap_bytes();
        let peek = Action::at(Verb::Peek, action.moment(), action.cost());
        if action.verb() == Verb::Check && !record.decide(policy, peek).0.is_allowed() {
            return Ok(());
        }
        self.make_bytes(|_| most, (slot.number, own_bytes), page, asked)
    }

    /// Makes room for as many bytes as `more` says, by giving up records, other than that of the slot `keep`, which takes so
    /// many. Nobody goes if that could not be enough, and no more than a few in one check.
    pub(super) fn make_bytes(
        &self,
        more: impl Fn(&Locked<'_>) -> usize,
        (keep, own_bytes): (usize, usize),
        page: &mut Locked<'_>,
        asked: Asked<'_>,
    ) -> Result<(), NoRoom> {
        if self.has_bytes(more(page)) {
            return Ok(());
        }
        if self.lasting_bytes() + own_bytes + more(page) > self.max_bytes {
            return Err(NoRoom::ForBytes);
        }
        let (number, now_ms) = (page.number, asked.now_ms());
        for _ in 0..MOST_GONE {
            let own = || self.slots.whole_page(number).filter(|slot| has_record(slot) && slot.number != keep);
            self.give_up(Candidate::Record, own, true, page, now_ms)?;
            self.keys.fetch_sub(1, Ordering::Relaxed);
            if self.has_bytes(more(page)) {
                return Ok(());
            }
        }
        Err(NoRoom::ForBytes)
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
