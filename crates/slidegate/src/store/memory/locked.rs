//! Decisions under the lock of a page: all that are more than a change of one word.

use std::sync::atomic::Ordering;

use slidegate_core::{Action, Decision, Policy, State, Verb, decide};

use super::atomics::yield_now;
use super::eviction::CapacityError;
use super::layout::{Counts, Form, Layout, counts_of};
use super::page::{LockedPage, Record};
use super::request::TableRequest;
use super::slots::{KeyId, Slot};
use super::table::Table;
use super::wide::WIDE_PAGE_BYTES;
use super::word::{RECORD, Word};
use crate::error::StoreError;

/// Storage for the states of a key: a word, packed or wide, or a record.
enum StoragePlan<'a> {
    Word(&'a Layout, Counts),
    Record,
}

impl Table {
    /// Decides under the page's lock: new keys, records, changed quotas, resets, and new windows of wide counters.
    pub(super) fn execute_locked(
        &self,
        policy: &Policy,
        id: KeyId,
        request: TableRequest<'_>,
    ) -> Result<Decision, StoreError> {
        self.execute_in_locked_page(self.lock_page(id), policy, id, request)
    }

    /// Decides in a page whose lock is held. Releases the lock while it waits for another page that may have a victim.
    pub(super) fn execute_in_locked_page<'a>(
        &'a self,
        mut page: LockedPage<'a>,
        policy: &Policy,
        id: KeyId,
        request: TableRequest<'_>,
    ) -> Result<Decision, StoreError> {
        loop {
            let capacity_error = match self.execute_in_page(&mut page, policy, id, request) {
                Ok(decision) => return Ok(decision),
                Err(capacity_error) => capacity_error,
            };
            let busy = capacity_error.busy_page()?;
            drop(page);
            drop(self.pages[busy].lock(busy));
            yield_now();
            page = self.lock_page(id);
        }
    }

    fn is_counting(&self, slot: Slot<'_>, page: &LockedPage<'_>, now_ms: u64) -> bool {
        let word = slot.load();
        if word.layout() == RECORD {
            let record = page.state.records.get(word.record_number());
            return record.is_some_and(|record| record.is_counting(now_ms));
        }
        self.read_state(slot, word).is_some_and(|(state, _)| state.expires_at_ms(now_ms).is_some())
    }

    pub(super) fn lock_page(&self, id: KeyId) -> LockedPage<'_> {
        let number = id.page();
        self.pages[number].lock(number)
    }

    #[inline(never)]
    fn execute_in_page(
        &self,
        page: &mut LockedPage<'_>,
        policy: &Policy,
        id: KeyId,
        request: TableRequest<'_>,
    ) -> Result<Decision, CapacityError> {
        let decided = match self.slots.find(id) {
            Some(slot) if request.verb() == Verb::Reset => {
                let action = request.action_now();
                let is_found = self.is_counting(slot, page, action.now_ms());
                self.remove(slot, page);
                Ok(decide_absent(policy, action).0.with_found(is_found))
            }
            Some(slot) => {
                let decided = self.execute_found(policy, slot, page, request);
                // Only new keys push old ones out. A request for a live key skips the sweep, which would read other
                // lines.
                if decided.as_ref().is_ok_and(is_counting) {
                    return decided;
                }
                decided
            }
            None => self.execute_absent(policy, id, page, request),
        };
        self.sweep(page, request.now_ms());
        decided
    }

    fn execute_found(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Result<Decision, CapacityError> {
        loop {
            let word = slot.load();
            if word.layout() == RECORD {
                return self.execute_on_record(policy, slot, word, page, request);
            }
            let before = self.read_state(slot, word).map(|(state, _)| state);
            let action = request.action_after(before.as_ref().map_or(0, State::latest_ms));
            let mut states: Vec<State> = before.into_iter().collect();
            let (decision, is_changed) = decide(&mut states, policy, action);
            if !is_changed {
                return Ok(decision);
            }
            // Nothing is changed yet: if the states do not fit, the key stays as it was.
            let plan = self.plan(policy, &mut states, slot.number, page, request)?;
            if slot.seize(word) {
                slot.put(self.apply_plan(&plan, policy, states, slot, page));
                self.note_counter_change(slot, page, action.now_ms());
                return Ok(decision);
            }
        }
    }

    fn execute_on_record(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        word: Word,
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Result<Decision, CapacityError> {
        let number = word.record_number();
        let action = request.action_after(page.state.records.get(number).map_or(0, Record::latest_ms));
        if action.verb().adds_state() {
            self.reserve_record_growth(policy, slot, page, action, request)?;
        }
        let Some(record) = page.state.records.get_mut(number) else {
            debug_assert!(false, "a word that refers to a freed record");
            self.remove(slot, page);
            return Ok(decide_absent(policy, action).0);
        };
        let before = record.heap_bytes();
        let was_one = record.only_state().is_some();
        let (decision, is_changed) = record.decide(policy, action);
        self.update_byte_count(before, record.heap_bytes());
        if is_changed {
            self.note_counter_change(slot, page, action.now_ms());
        }
        if !was_one {
            self.return_to_word(policy, slot, word, page, action.now_ms());
        }
        Ok(decision)
    }

    /// Moves a record of a single state back into a word, if it fits, after the states of other versions have expired.
    fn return_to_word(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        word: Word,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> Option<()> {
        let state = page.state.records.get(word.record_number())?.only_state()?.clone();
        let (layout, counts) = self.layout_for(policy, &state, page, now_ms)?;
        if slot.seize(word) {
            self.free_record(word, page);
            slot.put(self.write(layout, counts, slot, page));
        }
        Some(())
    }

    fn execute_absent(
        &self,
        policy: &Policy,
        id: KeyId,
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Result<Decision, CapacityError> {
        let action = request.action_now();
        let (decision, states) = decide_absent(policy, action);
        // A key without a count needs no slot.
        let Some(mut states) = states else { return Ok(decision) };
        let plan = self.plan(policy, &mut states, usize::MAX, page, request)?;
        let slot = self.allocate_slot(id, page, action.now_ms())?;
        slot.occupy(id.tag, self.apply_plan(&plan, policy, states, slot, page));
        page.state.keys += 1;
        self.note_counter_change(slot, page, action.now_ms());
        Ok(decision)
    }

    /// Plans where to keep `states`: in a packed word if they fit, else in a wide one, else in a record, for which it
    /// reserves the bytes. The record of `protected_slot` is not evicted for it.
    fn plan(
        &self,
        policy: &Policy,
        states: &mut Vec<State>,
        protected_slot: usize,
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Result<StoragePlan<'_>, CapacityError> {
        if let [state] = states.as_slice()
            && let Some((layout, counts)) = self.layout_for(policy, state, page, request.action().now_ms())
        {
            return Ok(StoragePlan::Word(layout, counts));
        }
        states.shrink_to_fit();
        let heap = Record::heap_bytes_of(policy, states);
        self.reserve_bytes(
            |page| heap + page.state.growth_for_one_more(),
            (protected_slot, 0),
            page,
            request,
        )?;
        Ok(StoragePlan::Record)
    }

    /// Returns the layout and counts to keep a policy's only state in a word: packed if it fits, else wide.
    fn layout_for(
        &self,
        policy: &Policy,
        state: &State,
        page: &LockedPage<'_>,
        now_ms: u64,
    ) -> Option<(&Layout, Counts)> {
        let [quota] = policy.quotas() else { return None };
        let counts = counts_of(state, quota)?;
        Form::of(quota).iter().find_map(|form| {
            let layout =
                self.layouts.for_policy(policy, *form, now_ms).filter(|layout| layout.fits(counts))?;
            let has_bytes =
                *form == Form::Packed || page.state.has_wide || self.has_free_bytes(WIDE_PAGE_BYTES);
            has_bytes.then_some((layout, counts))
        })
    }

    /// Stores `states` as planned. Returns the word to put into the slot, which is vacant or seized.
    fn apply_plan(
        &self,
        plan: &StoragePlan<'_>,
        policy: &Policy,
        states: Vec<State>,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
    ) -> Word {
        match plan {
            StoragePlan::Word(layout, counts) => self.write(layout, *counts, slot, page),
            StoragePlan::Record => {
                let record = Record::new(policy, states);
                let before = page.state.slab_bytes();
                self.update_byte_count(0, record.heap_bytes());
                let number = page.state.records.insert(record);
                self.records.fetch_add(1, Ordering::Relaxed);
                self.update_byte_count(before, page.state.slab_bytes());
                Word::new(RECORD, slot.load().generation(), number as u64)
            }
        }
    }

    /// Returns the word of these counts, and writes the wide part if there is one. The slot is vacant or seized.
    fn write(&self, layout: &Layout, counts: Counts, slot: Slot<'_>, page: &mut LockedPage<'_>) -> Word {
        let (word, wide) = layout.write(counts, slot.load().generation());
        if let Some(wide) = wide {
            if !page.state.has_wide {
                page.state.has_wide = true;
                self.update_byte_count(0, WIDE_PAGE_BYTES);
                self.wide_bytes.fetch_add(WIDE_PAGE_BYTES, Ordering::Relaxed);
            }
            self.wide.store(slot, wide);
        }
        word
    }
}

pub(super) fn is_counting(decision: &Decision) -> bool {
    decision.quotas().iter().any(|report| report.used > 0)
}

/// Returns the decision for an absent key, and its states if it needs a slot now.
fn decide_absent(policy: &Policy, action: Action) -> (Decision, Option<Vec<State>>) {
    let mut states = Vec::new();
    let (decision, is_changed) = decide(&mut states, policy, action);
    let is_kept = is_changed && action.verb().adds_state();
    (decision, is_kept.then_some(states))
}
