//! What is decided under the lock of a page: whatever is not a change of one word.

use std::sync::atomic::Ordering;

use slidegate_core::{Action, Decision, Policy, State, Verb, decide};

use super::asked::Asked;
use super::atomics::yield_now;
use super::layout::{Counts, Form, Layout, counts_of};
use super::page::Locked;
use super::record::Record;
use super::room::NoRoom;
use super::slots::{KeyId, Slot};
use super::table::Table;
use super::wide::WIDE_PAGE_BYTES;
use super::word::{RECORD, Word};
use crate::error::StoreError;

/// How states will be kept: in a word, packed or wide, or in a record.
enum Plan<'a> {
    Word(&'a Layout, Counts),
    Record,
}

impl Table {
    /// New keys, records, changed quotas, resets, and the next window of wide counters.
    pub(super) fn execute_locked(
        &self,
        policy: &Policy,
        id: KeyId,
        asked: Asked<'_>,
    ) -> Result<Decision, StoreError> {
        self.execute_from(self.lock_page(id), policy, id, asked)
    }

    /// The same in a page whose lock is held.
    pub(super) fn execute_from<'a>(
        &'a self,
        mut page: Locked<'a>,
        policy: &Policy,
        id: KeyId,
        asked: Asked<'_>,
    ) -> Result<Decision, StoreError> {
        loop {
            let no_room = match self.execute_in(&mut page, policy, id, asked) {
                Ok(decision) => return Ok(decision),
                Err(no_room) => no_room,
            };
            let busy = no_room.error()?;
            drop(page);
            drop(self.pages[busy].lock(busy));
            yield_now();
            page = self.lock_page(id);
        }
    }

    fn counts_something(&self, slot: Slot<'_>, page: &Locked<'_>, now_ms: u64) -> bool {
        let word = slot.load();
        if word.layout() == RECORD {
            let record = page.inner.records.get(word.record_number());
            return record.is_some_and(|record| record.counts_something(now_ms));
        }
        self.counted(slot, word).is_some_and(|(state, _)| state.left_until_ms(now_ms).is_some())
    }

    pub(super) fn lock_page(&self, id: KeyId) -> Locked<'_> {
        let number = id.page();
        self.pages[number].lock(number)
    }

    #[inline(never)]
    fn execute_in(
        &self,
        page: &mut Locked<'_>,
        policy: &Policy,
        id: KeyId,
        asked: Asked<'_>,
    ) -> Result<Decision, NoRoom> {
        let decided = match self.slots.find(id) {
            Some(slot) if asked.verb() == Verb::Reset => {
                let action = asked.now();
                let is_found = self.counts_something(slot, page, action.now_ms());
                self.remove(slot, page);
                Ok(fresh(policy, action).0.found(is_found))
            }
            Some(slot) => {
                let decided = self.execute_found(policy, slot, page, asked);
                // Only new keys leave old ones behind. Whoever finds its own counter alive need not look at those of
                // others, which are elsewhere in memory.
                if decided.as_ref().is_ok_and(counts_something) {
                    return decided;
                }
                decided
            }
            None => self.execute_absent(policy, id, page, asked),
        };
        self.sweep(page, asked.now_ms());
        decided
    }

    fn execute_found(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut Locked<'_>,
        asked: Asked<'_>,
    ) -> Result<Decision, NoRoom> {
        loop {
            let word = slot.load();
            if word.layout() == RECORD {
                return self.execute_on_record(policy, slot, word, page, asked);
            }
            let before = self.counted(slot, word).map(|(state, _)| state);
            let action = asked.after(before.as_ref().map_or(0, State::latest_ms));
            let mut states: Vec<State> = before.into_iter().collect();
            let (decision, is_changed) = decide(&mut states, policy, action);
            if !is_changed {
                return Ok(decision);
            }
            // What would not fit is not begun, and the key is as it was before.
            let plan = self.plan(policy, &mut states, slot.number, page, asked)?;
            if slot.seize(word) {
                slot.put(self.carry_out(&plan, policy, states, slot, page));
                self.note_change(slot, page, action.now_ms());
                return Ok(decision);
            }
        }
    }

    fn execute_on_record(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        word: Word,
        page: &mut Locked<'_>,
        asked: Asked<'_>,
    ) -> Result<Decision, NoRoom> {
        let number = word.record_number();
        let action = asked.after(page.inner.records.get(number).map_or(0, Record::latest_ms));
        if matches!(action.verb(), Verb::Check | Verb::Charge | Verb::Block) {
            self.let_record_grow(policy, slot, page, action, asked)?;
        }
        let Some(record) = page.inner.records.get_mut(number) else {
            debug_assert!(false, "a word of a record that is gone");
            self.remove(slot, page);
            return Ok(fresh(policy, action).0);
        };
        let before = record.heap_bytes();
        let was_one = record.only_state().is_some();
        let (decision, is_changed) = record.decide(policy, action);
        self.count_bytes(before, record.heap_bytes());
        if is_changed {
            self.note_change(slot, page, action.now_ms());
        }
        if !was_one {
            self.return_to_word(policy, slot, word, page, action.now_ms());
        }
        Ok(decision)
    }

    /// What another version of the policy had counted is over: a word may do again.
    fn return_to_word(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        word: Word,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Option<()> {
        let state = page.inner.records.get(word.record_number())?.only_state()?.clone();
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
        page: &mut Locked<'_>,
        asked: Asked<'_>,
    ) -> Result<Decision, NoRoom> {
        let action = asked.now();
        let (decision, states) = fresh(policy, action);
        // Only what is spent has to be kept: an absent key is one that has spent nothing.
        let Some(mut states) = states else { return Ok(decision) };
        let plan = self.plan(policy, &mut states, usize::MAX, page, asked)?;
        let slot = self.place(id, page, action.now_ms())?;
        slot.occupy(id.tag, self.carry_out(&plan, policy, states, slot, page));
        page.inner.keys += 1;
        self.note_change(slot, page, action.now_ms());
        Ok(decision)
    }

    /// How to keep `states`: packed if they fit, else wide, else in a record, for which there is room then. `keep` is
    /// the number of the slot that is not to be given up for it.
    fn plan(
        &self,
        policy: &Policy,
        states: &mut Vec<State>,
        keep: usize,
        page: &mut Locked<'_>,
        asked: Asked<'_>,
    ) -> Result<Plan<'_>, NoRoom> {
        if let [state] = states.as_slice()
            && let Some((layout, counts)) = self.layout_for(policy, state, page, asked.as_asked().now_ms())
        {
            return Ok(Plan::Word(layout, counts));
        }
        states.shrink_to_fit();
        let heap = Record::heap_bytes_of(policy, states);
        self.make_bytes(|page| heap + page.inner.growth_for_one_more(), (keep, 0), page, asked)?;
        Ok(Plan::Record)
    }

    /// How to keep the only state of a policy in a word, packed if it fits, else wide.
    fn layout_for(
        &self,
        policy: &Policy,
        state: &State,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Option<(&Layout, Counts)> {
        let [quota] = policy.quotas() else { return None };
        let counts = counts_of(state, quota)?;
        Form::of(quota).iter().find_map(|form| {
            let layout =
                self.layouts.for_policy(policy, *form, now_ms).filter(|layout| layout.fits(counts))?;
            let has_room = *form == Form::Packed || page.inner.has_wide || self.has_bytes(WIDE_PAGE_BYTES);
            has_room.then_some((layout, counts))
        })
    }

    /// Keeps `states` as planned; the word to put into the slot, which is vacant or seized.
    fn carry_out(
        &self,
        plan: &Plan<'_>,
        policy: &Policy,
        states: Vec<State>,
        slot: Slot<'_>,
        page: &mut Locked<'_>,
    ) -> Word {
        match plan {
            Plan::Word(layout, counts) => self.write(layout, *counts, slot, page),
            Plan::Record => {
                let record = Record::new(policy, states);
                let before = page.inner.slab_bytes();
                self.count_bytes(0, record.heap_bytes());
                let number = page.inner.records.insert(record);
                self.records.fetch_add(1, Ordering::Relaxed);
                self.count_bytes(before, page.inner.slab_bytes());
                Word::new(RECORD, slot.load().generation(), number as u64)
            }
        }
    }

    /// The word of these counts; what does not fit into it is written beside the slot, which is vacant or seized.
    fn write(&self, layout: &Layout, counts: Counts, slot: Slot<'_>, page: &mut Locked<'_>) -> Word {
        let (word, wide) = layout.write(counts, slot.load().generation());
        if let Some(wide) = wide {
            if !page.inner.has_wide {
                page.inner.has_wide = true;
                self.count_bytes(0, WIDE_PAGE_BYTES);
                self.wide_bytes.fetch_add(WIDE_PAGE_BYTES, Ordering::Relaxed);
            }
            self.wide.store(slot, wide);
        }
        word
    }
}

pub(super) fn counts_something(decision: &Decision) -> bool {
    decision.quotas().iter().any(|report| report.used > 0)
}

/// The decision for a key that has spent nothing, and its states if it has now.
fn fresh(policy: &Policy, action: Action) -> (Decision, Option<Vec<State>>) {
    let mut states = Vec::new();
    let (decision, is_changed) = decide(&mut states, policy, action);
    let is_kept = is_changed && matches!(action.verb(), Verb::Check | Verb::Charge | Verb::Block);
    (decision, is_kept.then_some(states))
}
