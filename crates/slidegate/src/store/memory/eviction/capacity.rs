//! Allocation of slots and bytes within `max_keys` and `max_bytes`.

use std::sync::atomic::Ordering;

use slidegate_core::{Action, Policy, Verb};

use super::super::eviction_rank::EvictionRank;
use super::super::page::LockedPage;
use super::super::request::TableRequest;
use super::super::slots::{KeyId, Slot};
use super::super::table::Table;
use super::super::word::{RECORD, Word};
use super::capacity_error::CapacityError;
use super::policy::{CandidateKind, Evicted, has_record};

/// Records that one check evicts at most.
const MAX_EVICTIONS_PER_CHECK: usize = 1000;

impl Table {
    /// Returns a vacant slot for a new key and adds the key to the count of keys. Evicts another key if `max_keys` is
    /// reached or the page has no vacant slot.
    pub(in super::super) fn allocate_slot(
        &self,
        id: KeyId,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> Result<Slot<'_>, CapacityError> {
        let vacant = self.slots.by_distance(id).find(|slot| !slot.is_owned());
        let more = |keys| (keys < self.settings.max_keys).then_some(keys + 1);
        if let Some(slot) = vacant
            && self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            return Ok(slot);
        }
        let own = || self.slots.by_distance(id).filter(Slot::is_owned);
        // The new key inherits the victim's share of `max_keys`. If the count dropped in between, another page could
        // take it.
        match self.evict(CandidateKind::AnyKey, own, vacant.is_some(), page, now_ms)? {
            Evicted::InPage(slot) => Ok(vacant.unwrap_or(slot)),
            Evicted::InOtherPage => vacant.ok_or(CapacityError::Keys),
        }
    }

    /// Removes the key of a slot, whatever its count.
    pub(in super::super) fn remove(&self, slot: Slot<'_>, page: &mut LockedPage<'_>) {
        while !self.clear(slot, slot.load(), page) {}
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    /// Vacates a slot and frees its record, without changing the count of keys. Returns `false`, and changes nothing,
    /// if its word is no longer `word`.
    pub(in super::super) fn clear(&self, slot: Slot<'_>, word: Word, page: &mut LockedPage<'_>) -> bool {
        let is_vacated = slot.vacate(word);
        if is_vacated {
            page.state.keys -= 1;
            if word.layout() == RECORD {
                self.free_record(word, page);
            }
        }
        is_vacated
    }

    /// Frees the record that `word` referred to.
    pub(in super::super) fn free_record(&self, word: Word, page: &mut LockedPage<'_>) {
        if let Some(record) = page.state.records.try_remove(word.record_number()) {
            self.records.fetch_sub(1, Ordering::Relaxed);
            let before = page.state.slab_bytes();
            if page.state.records.is_empty() {
                page.state.records.shrink_to_fit();
            }
            self.update_byte_count(before + record.heap_bytes(), page.state.slab_bytes());
        }
    }

    /// Removes idle keys from the next line of the page. Each visit sweeps one line, so no background thread is needed.
    pub(in super::super) fn sweep(&self, page: &mut LockedPage<'_>, now_ms: u64) {
        let line = page.state.hand;
        page.state.hand = line.wrapping_add(1);
        for slot in self.slots.line_of_page(page.number, usize::from(line)) {
            if !slot.is_owned() {
                continue;
            }
            let word = slot.load();
            // `clear` fails if the key has been counted again since the load.
            let is_idle = self.eviction_rank(slot, word, page, now_ms) == EvictionRank::Idle;
            if is_idle && self.clear(slot, word, page) {
                self.keys.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Reserves the bytes that this action may add to the record of a slot. A denied check adds none.
    pub(in super::super) fn reserve_record_growth(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
        action: Action,
        request: TableRequest<'_>,
    ) -> Result<(), CapacityError> {
        let number = slot.load().record_number();
        let Some(record) = page.state.records.get_mut(number) else { return Ok(()) };
        let max_growth = record.growth_bytes(policy);
        if max_growth == 0 || self.has_free_bytes(max_growth) {
            return Ok(());
        }
        let own_bytes = record.heap_bytes();
        let peek = Action::at(Verb::Peek, action.moment(), action.cost());
        if action.verb() == Verb::Check && !record.decide(policy, peek).0.is_allowed() {
            return Ok(());
        }
        self.reserve_bytes(|_| max_growth, (slot.number, own_bytes), page, request)
    }

    /// Evicts records until `needed` bytes are free, at most [`MAX_EVICTIONS_PER_CHECK`] of them. The record of
    /// `protected_slot`, of `own_bytes`, is not evicted. Evicts none if the bytes could not suffice.
    pub(in super::super) fn reserve_bytes(
        &self,
        needed: impl Fn(&LockedPage<'_>) -> usize,
        (protected_slot, own_bytes): (usize, usize),
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Result<(), CapacityError> {
        if self.has_free_bytes(needed(page)) {
            return Ok(());
        }
        if self.permanent_bytes() + own_bytes + needed(page) > self.max_bytes {
            return Err(CapacityError::Bytes);
        }
        let (number, now_ms) = (page.number, request.now_ms());
        for _ in 0..MAX_EVICTIONS_PER_CHECK {
            let is_candidate = |slot: &Slot<'_>| has_record(slot) && slot.number != protected_slot;
            let own = || self.slots.whole_page(number).filter(is_candidate);
            self.evict(CandidateKind::Record, own, true, page, now_ms)?;
            self.keys.fetch_sub(1, Ordering::Relaxed);
            if self.has_free_bytes(needed(page)) {
                return Ok(());
            }
        }
        Err(CapacityError::Bytes)
    }

    pub(in super::super) fn has_free_bytes(&self, needed: usize) -> bool {
        self.bytes() + needed <= self.max_bytes
    }

    /// Updates the count of bytes outside the slots after an allocation has changed from `before` to `after` bytes.
    pub(in super::super) fn update_byte_count(&self, before: usize, after: usize) {
        if before != after {
            self.out_of_line_bytes.fetch_add(after, Ordering::Relaxed);
            self.out_of_line_bytes.fetch_sub(before, Ordering::Relaxed);
        }
    }
}
