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

/// How many other pages to look at when a page has nobody to spare, as long as somebody was found the last time. If not,
/// one is enough: where all are denied, a new key would look at thousands in vain.
const OTHER_PAGES: usize = 4;
/// How many may be passed because they have nobody who could go: before somebody is spared, and before it is given up.
const MOST_PASSED: usize = 64;
const MOST_SEARCHED: usize = 8192;
/// How many records go in one check at the most.
const MOST_GONE: usize = 1000;

/// Who may be given up in other pages.
#[derive(Clone, Copy)]
enum Candidate {
    AnyKey,
    Record,
}

impl Candidate {
    fn is_in(self, slot: &Slot<'_>) -> bool {
        match self {
            Self::AnyKey => slot.is_owned(),
            Self::Record => has_record(slot),
        }
    }

    fn may_be_anywhere(self, table: &Table) -> bool {
        match self {
            Self::AnyKey => true,
            Self::Record => table.records.load(Ordering::Relaxed) > 0,
        }
    }

    /// Whether it is worth while to look at a page.
    fn may_be_in(self, page: &Locked<'_>) -> bool {
        match self {
            Self::AnyKey => true,
            Self::Record => !page.inner.records.is_empty(),
        }
    }
}

/// Who was given up.
enum Gone<'a> {
    Here(Slot<'a>),
    Elsewhere,
}

impl Table {
    /// A vacant slot for a new key, counted as its own. Another key is given up for it if there are as many as may be, or
    /// if the page has no such slot.
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
        let elsewhere = vacant.map(|_| Candidate::AnyKey);
        // One goes and one comes. If it were no key in between, one of another page could come as well.
        match self.give_up(nearest, elsewhere, page, now_ms) {
            Some(Gone::Here(slot)) => Ok(vacant.unwrap_or(slot)),
            Some(Gone::Elsewhere) => vacant.ok_or_else(full),
            None => Err(full()),
        }
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

    /// Removes a key, which is counted still: the one of `candidates` with the least to lose if it is one to spare, else one
    /// to spare `elsewhere`, else, if the table may evict, that one all the same, or if there is none, any elsewhere.
    fn give_up<'a, I: Iterator<Item = Slot<'a>>>(
        &self,
        candidates: impl Fn() -> I,
        elsewhere: Option<Candidate>,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Option<Gone<'a>> {
        loop {
            let least = self.least_to_lose(candidates(), page, now_ms);
            if !least.is_some_and(|(judged, _)| self.is_to_spare(judged)) {
                if elsewhere.is_some_and(|candidate| self.give_up_to_spare(candidate, page, now_ms)) {
                    return Some(Gone::Elsewhere);
                }
                if self.settings.when_full == WhenFull::Refuse {
                    return None;
                }
            }
            let Some((judged, slot)) = least else {
                let is_found = elsewhere.is_some_and(|candidate| {
                    self.give_up_elsewhere(candidate, |_| true, (1, MOST_SEARCHED), page, now_ms)
                });
                return is_found.then_some(Gone::Elsewhere);
            };
            if self.clear_as_judged(judged, slot, page, now_ms) {
                return Some(Gone::Here(slot));
            }
        }
    }

    /// Whether a key may go although there are others.
    fn is_to_spare(&self, judged: Outlook) -> bool {
        match judged {
            Outlook::Over => true,
            Outlook::Live { .. } => self.settings.when_full == WhenFull::Evict,
            Outlook::Denied { .. } => false,
        }
    }

    /// Removes a key to spare from one of a few other pages: when nearly all keys are denied, there may still be one that is
    /// not.
    fn give_up_to_spare(&self, candidate: Candidate, page: &Locked<'_>, now_ms: u64) -> bool {
        let looks = if self.has_found_elsewhere.load(Ordering::Relaxed) { OTHER_PAGES } else { 1 };
        let may_go = |judged| self.is_to_spare(judged);
        let is_found = self.give_up_elsewhere(candidate, may_go, (looks, MOST_PASSED), page, now_ms);
        self.has_found_elsewhere.store(is_found, Ordering::Relaxed);
        is_found
    }

    /// Removes a key that `may_go` from another page, after a look at so many of those that have candidates, and of so many
    /// altogether, each time others. A page where somebody is busy is left out.
    fn give_up_elsewhere(
        &self,
        candidate: Candidate,
        may_go: impl Fn(Outlook) -> bool,
        (mut looks, pages): (usize, usize),
        page: &Locked<'_>,
        now_ms: u64,
    ) -> bool {
        let others = self.pages.len() - 1;
        for _ in 0..others.min(pages) {
            if !candidate.may_be_anywhere(self) {
                return false;
            }
            let step = self.hand.fetch_add(1, Ordering::Relaxed) % others;
            let number = if step < page.number { step } else { step + 1 };
            // To wait for a lock while another is held would be to wait for ever, if the other does the same.
            let Some(mut other) = self.pages[number].try_lock(number) else { continue };
            while candidate.may_be_in(&other) {
                let candidates = self.slots.whole_page(number).filter(|slot| candidate.is_in(slot));
                let Some((judged, slot)) = self.least_to_lose(candidates, &other, now_ms) else { break };
                if !may_go(judged) {
                    looks -= 1;
                    break;
                }
                if self.clear_as_judged(judged, slot, &mut other, now_ms) {
                    return true;
                }
            }
            if looks == 0 {
                return false;
            }
        }
        false
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
        let most = record.growth_bytes(policy);
        if most == 0 || self.has_bytes(most) {
            return Ok(());
        }
        let own_bytes = record.heap_bytes();
        let peek = Action::new(Verb::Peek, action.now_ms(), action.cost());
        if !record.decide(policy, peek).0.is_allowed() {
            return Ok(());
        }
        self.make_bytes(|_| most, (slot.number, own_bytes), page, action.now_ms())
    }

    /// Makes room for as many bytes as `more` says, by giving up records, other than that of the slot `keep`, which takes so
    /// many. Nobody goes if that could not be enough, and no more than a few in one check.
    pub(super) fn make_bytes(
        &self,
        more: impl Fn(&Locked<'_>) -> usize,
        (keep, own_bytes): (usize, usize),
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let full = || StoreError::full("the memory store is full: max_bytes is reached");
        if self.has_bytes(more(page)) {
            return Ok(());
        }
        if self.lasting_bytes() + own_bytes + more(page) > self.max_bytes {
            return Err(full());
        }
        for _ in 0..MOST_GONE {
            let number = page.number;
            let records =
                || self.slots.whole_page(number).filter(|slot| has_record(slot) && slot.number != keep);
            self.give_up(records, Some(Candidate::Record), page, now_ms).ok_or_else(full)?;
            self.keys.fetch_sub(1, Ordering::Relaxed);
            if self.has_bytes(more(page)) {
                return Ok(());
            }
        }
        Err(full())
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

fn full() -> StoreError {
    StoreError::full("the memory store is full: max_keys is reached")
}

fn has_record(slot: &Slot<'_>) -> bool {
    slot.is_owned() && slot.load().layout() == RECORD
}
