//! The table: decisions on words without a lock, everything else under the lock of a page.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slab::Slab;
use slidegate_core::{Action, Algorithm, Check, Decision, Policy, Quota, State, Verb, decide, decide_one};

use super::hash::{KeyHasher, KeyId};
use super::layout::{Counts, Form, Layouts, RECORD, Word, counts_of};
use super::record::{Outlook, Record, outlook};
use super::settings::{Settings, WhenFull};
use super::slots::{SLOT_BYTES, SLOTS_PER_PAGE, Slot, Slots, WIDE_PAGE_BYTES, WidePage};
use crate::error::StoreError;

/// What lies beside a page of slots.
#[derive(Default)]
struct Page {
    wide: WidePage,
    inner: Mutex<Inner>,
}

/// What only the holder of a page's lock may touch.
#[derive(Default)]
struct Inner {
    records: Slab<Record>,
    /// The line to look at next for keys that are over.
    hand: usize,
}

/// A page whose lock is held.
struct Locked<'a> {
    number: usize,
    wide: &'a WidePage,
    inner: MutexGuard<'a, Inner>,
}

pub(super) struct Table {
    pub(super) settings: Settings,
    max_bytes: usize,
    slots: Slots,
    pages: Box<[Page]>,
    hasher: KeyHasher,
    layouts: Layouts,
    keys: AtomicUsize,
    /// Of records and wide pages.
    beside_bytes: AtomicUsize,
    evicted: AtomicU64,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        let pages = settings.pages();
        Self {
            settings,
            max_bytes: settings.max_bytes(),
            slots: Slots::new(pages),
            pages: (0..pages).map(|_| Page::default()).collect(),
            hasher: KeyHasher::random(),
            layouts: Layouts::new(),
            keys: AtomicUsize::new(0),
            beside_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * (SLOTS_PER_PAGE * SLOT_BYTES + size_of::<Page>())
            + self.beside_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn id(&self, check: &Check<'_>) -> KeyId {
        self.hasher.id(check.policy.digest(), check.key)
    }

    #[inline(always)]
    pub(super) fn touch(&self, id: KeyId) {
        self.slots.touch(id);
    }

    /// Decides for the key `id`.
    #[inline(always)]
    pub(super) fn execute(&self, policy: &Policy, id: KeyId, action: Action) -> Result<Decision, StoreError> {
        match self.execute_at_home(policy, id, action) {
            Some(decision) => Ok(decision),
            // Piece by piece, so that nothing has to be put together unless it comes to this.
            None => self.execute_elsewhere(
                policy,
                id.tag,
                id.place,
                action.verb(),
                action.now_ms(),
                action.cost(),
            ),
        }
    }

    /// By far the most: a sliding window that is in its own line, in the same window as before. The same as
    /// [`execute_on_word`](Self::execute_on_word), which stands in for all the rest.
    #[inline(always)]
    fn execute_at_home(&self, policy: &Policy, id: KeyId, action: Action) -> Option<Decision> {
        let slot = self.slots.find_at_home(id)?;
        let word = slot.load();
        let layout = self.layouts.get(word.layout())?;
        if !layout.is_sliding_for(policy.shared_quotas()) || !slot.is_owned_by(id.tag) {
            return None;
        }
        let before = layout.read(
            word,
            #[inline(always)]
            || self.pages[slot.page].wide.load(slot.number),
        );
        let (quota, now_ms) = (layout.quota(), action.now_ms());
        let is_in_window = now_ms >= before.start_ms && now_ms - before.start_ms < quota.window_ms();
        if !is_in_window || before.cur == 0 || !matches!(action.verb(), Verb::Check | Verb::Peek) {
            return None;
        }
        let mut counter = before.sliding(quota.window_ms());
        let (decision, is_changed) = decide_one(&mut counter, quota, action);
        let is_done = if is_changed {
            slot.replace(word, layout.add(word, counter.cur - before.cur, counter.cur)?)
        } else {
            !layout.is_wide() || slot.is_still(word)
        };
        is_done.then_some(decision)
    }

    #[inline(never)]
    fn execute_elsewhere(
        &self,
        policy: &Policy,
        tag: u64,
        place: u64,
        verb: Verb,
        now_ms: u64,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let (id, action) = (KeyId { tag, place }, Action::new(verb, now_ms, cost));
        match self.execute_on_word(policy, id, action) {
            Some(decision) => Ok(decision),
            None => self.execute_locked(policy, id, action),
        }
    }

    /// The key is there, it has one quota, and its counter fits into the word: no lock is needed.
    fn execute_on_word(&self, policy: &Policy, id: KeyId, action: Action) -> Option<Decision> {
        let quotas = policy.shared_quotas();
        if quotas.len() != 1 || action.verb() == Verb::Reset {
            return None;
        }
        let slot = self.slots.find(id)?;
        loop {
            let word = slot.load();
            let layout = self.layouts.get(word.layout())?;
            if !layout.is_for(quotas) || !slot.is_owned_by(id.tag) {
                return None;
            }
            let before = layout.read(
                word,
                #[inline(always)]
                || self.pages[slot.page].wide.load(slot.number),
            );
            let (decision, after) = decide_on(before, layout.quota(), action);
            match after {
                None if !layout.is_wide() || slot.is_still(word) => return Some(decision),
                Some(after) if slot.replace(word, layout.next(word, before, after)?) => {
                    return Some(decision);
                }
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// New keys, records, changed quotas, resets, and the next window of wide counters.
    fn execute_locked(&self, policy: &Policy, id: KeyId, action: Action) -> Result<Decision, StoreError> {
        let mut page = self.lock(self.slots.page(id));
        self.sweep(&mut page, action.now_ms());
        match self.slots.find(id) {
            Some(slot) if action.verb() == Verb::Reset => {
                self.remove(slot, &mut page);
                Ok(fresh(policy, action).0)
            }
            Some(slot) => self.execute_found(policy, slot, &mut page, action),
            None => self.execute_absent(policy, id, &mut page, action),
        }
    }

    fn execute_found(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut Locked<'_>,
        action: Action,
    ) -> Result<Decision, StoreError> {
        loop {
            let word = slot.load();
            if word.layout() == RECORD {
                return self.execute_on_record(policy, slot, word, page, action);
            }
            let mut states: Vec<State> = self.state(slot, word, page).into_iter().collect();
            let (decision, is_changed) = decide(&mut states, policy, action);
            if !is_changed {
                return Ok(decision);
            }
            if slot.seize(word) {
                let generation = word.generation() + 1;
                let written = self.write(policy, states, slot, page, action.now_ms());
                // What does not fit is not begun: the key is as it was before.
                slot.put(
                    written
                        .as_ref()
                        .map_or_else(|_| Word::new(word.layout(), generation, word.payload()), |w| *w),
                );
                return written.map(|_| decision);
            }
        }
    }

    fn execute_on_record(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        word: Word,
        page: &mut Locked<'_>,
        action: Action,
    ) -> Result<Decision, StoreError> {
        let Some(record) = page.inner.records.get_mut(record_number(word)) else {
            debug_assert!(false, "a word of a record that is gone");
            self.remove(slot, page);
            return Ok(fresh(policy, action).0);
        };
        let bytes_before = record.bytes();
        if action.verb() == Verb::Check {
            // A log may grow by a quarter, and a policy by a few quotas.
            self.require_bytes(bytes_before / 2 + 64 * policy.quotas().len())?;
        }
        let (decision, _) = record.decide(policy, action);
        let bytes_after = record.bytes();
        if bytes_after != bytes_before {
            self.beside_bytes.fetch_add(bytes_after, Ordering::Relaxed);
            self.beside_bytes.fetch_sub(bytes_before, Ordering::Relaxed);
        }
        Ok(decision)
    }

    fn execute_absent(
        &self,
        policy: &Policy,
        id: KeyId,
        page: &mut Locked<'_>,
        action: Action,
    ) -> Result<Decision, StoreError> {
        let (decision, states) = fresh(policy, action);
        // Only what is spent has to be kept: an absent key is one that has spent nothing.
        let Some(states) = states else { return Ok(decision) };
        let slot = self.place(id, page, action.now_ms())?;
        match self.write(policy, states, slot, page, action.now_ms()) {
            Ok(word) => {
                slot.occupy(id.tag, word);
                Ok(decision)
            }
            Err(error) => {
                self.keys.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// The word for `states` in a slot that is vacant or seized: packed if they fit, else wide, else the number of
    /// a record that is made for them.
    fn write(
        &self,
        policy: &Policy,
        mut states: Vec<State>,
        slot: Slot<'_>,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<Word, StoreError> {
        let generation = slot.load().generation();
        let quotas = policy.shared_quotas();
        if let ([state], [quota]) = (states.as_slice(), quotas.as_ref())
            && let Some(counts) = counts_of(state, quota)
        {
            for form in [Form::Packed, Form::Wide] {
                let layout = self.layouts.for_quotas(quotas, form, now_ms);
                let Some((word, wide)) = layout.and_then(|layout| layout.write(counts, generation)) else {
                    continue;
                };
                if let Some(wide) = wide {
                    if !page.wide.exists() {
                        self.require_bytes(WIDE_PAGE_BYTES)?;
                        self.beside_bytes.fetch_add(WIDE_PAGE_BYTES, Ordering::Relaxed);
                    }
                    page.wide.store(slot.number, wide);
                }
                return Ok(word);
            }
        }
        states.shrink_to_fit();
        let record = Record::new(policy, states);
        self.require_bytes(record.bytes())?;
        self.beside_bytes.fetch_add(record.bytes(), Ordering::Relaxed);
        Ok(Word::new(RECORD, generation, page.inner.records.insert(record) as u64))
    }

    /// Refuses what would not fit before it is begun.
    fn require_bytes(&self, more: usize) -> Result<(), StoreError> {
        if self.bytes() + more > self.max_bytes {
            return Err(StoreError::full("max_bytes is reached"));
        }
        Ok(())
    }

    /// A vacant slot for a new key, counted as its own. Another key of the page is given up for it if there is none, or
    /// if there are as many keys as may be.
    fn place(&self, id: KeyId, page: &mut Locked<'_>, now_ms: u64) -> Result<Slot<'_>, StoreError> {
        let vacant = self.slots.nearest_first(id).find(|slot| !slot.is_owned());
        let more = |keys| (keys < self.settings.max_keys).then_some(keys + 1);
        if let Some(slot) = vacant
            && self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            return Ok(slot);
        }
        let given_up = match self.victim(id, page, now_ms) {
            Some((Outlook::Over, slot)) => slot,
            Some((_, slot)) if self.settings.when_full == WhenFull::Evict => {
                self.evicted.fetch_add(1, Ordering::Relaxed);
                slot
            }
            _ => return Err(StoreError::full("max_keys is reached")),
        };
        self.remove(given_up, page);
        self.keys.fetch_add(1, Ordering::Relaxed);
        Ok(vacant.unwrap_or(given_up))
    }

    /// The key to give up for a new one: the one with the least to lose among the nearest, or, if all of these are
    /// denied, in the whole page. A key that is over is taken as soon as it is met.
    fn victim(&self, id: KeyId, page: &Locked<'_>, now_ms: u64) -> Option<(Outlook, Slot<'_>)> {
        const NEAREST: usize = 64;
        let mut least: Option<(Outlook, Slot<'_>)> = None;
        for (seen, slot) in self.slots.nearest_first(id).filter(Slot::is_owned).enumerate() {
            let is_enough = match least {
                Some((Outlook::Over, _)) => true,
                Some((Outlook::Live { .. }, _)) => seen >= NEAREST,
                Some((Outlook::Denied { .. }, _)) | None => false,
            };
            if is_enough {
                break;
            }
            let outlook = self.outlook(slot, page, now_ms);
            if least.is_none_or(|(least, _)| outlook < least) {
                least = Some((outlook, slot));
            }
        }
        least
    }

    /// What would be lost with this slot.
    fn outlook(&self, slot: Slot<'_>, page: &Locked<'_>, now_ms: u64) -> Outlook {
        let word = slot.load();
        if word.layout() == RECORD {
            let record = page.inner.records.get(record_number(word));
            return record.map_or(Outlook::Over, |record| record.outlook(now_ms));
        }
        let layout = self.layouts.get(word.layout());
        layout.map_or(Outlook::Over, |layout| {
            let state = layout.state(layout.read(word, || page.wide.load(slot.number)));
            outlook(&state, layout.quota(), now_ms)
        })
    }

    /// The counter in a slot without a record.
    fn state(&self, slot: Slot<'_>, word: Word, page: &Locked<'_>) -> Option<State> {
        let layout = self.layouts.get(word.layout())?;
        Some(layout.state(layout.read(word, || page.wide.load(slot.number))))
    }

    /// Removes keys that are over from one line, so that a busy page cleans itself and none needs a thread.
    fn sweep(&self, page: &mut Locked<'_>, now_ms: u64) {
        let line = page.inner.hand;
        page.inner.hand = line.wrapping_add(1);
        for slot in self.slots.line(page.number, line) {
            if slot.is_owned() && self.outlook(slot, page, now_ms) == Outlook::Over {
                self.remove(slot, page);
            }
        }
    }

    fn remove(&self, slot: Slot<'_>, page: &mut Locked<'_>) {
        let word = slot.vacate();
        if word.layout() == RECORD
            && let Some(record) = page.inner.records.try_remove(record_number(word))
        {
            self.beside_bytes.fetch_sub(record.bytes(), Ordering::Relaxed);
        }
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }

    fn lock(&self, number: usize) -> Locked<'_> {
        let page = &self.pages[number];
        Locked { number, wide: &page.wide, inner: page.inner.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// Decides for a counter that is a word's; the new counts if they have changed.
fn decide_on(before: Counts, quota: &Quota, action: Action) -> (Decision, Option<Counts>) {
    let window_ms = quota.window_ms();
    if quota.algorithm() == Algorithm::FixedWindow {
        let mut counter = before.fixed(window_ms);
        let (decision, is_changed) = decide_one(&mut counter, quota, action);
        (decision, is_changed.then(|| Counts::of_fixed(&counter)))
    } else {
        let mut counter = before.sliding(window_ms);
        let (decision, is_changed) = decide_one(&mut counter, quota, action);
        (decision, is_changed.then(|| Counts::of_sliding(&counter)))
    }
}

/// The decision for a key that has spent nothing, and its states if it has now.
fn fresh(policy: &Policy, action: Action) -> (Decision, Option<Vec<State>>) {
    let mut states = Vec::new();
    let (decision, is_changed) = decide(&mut states, policy, action);
    let is_kept = is_changed && action.verb() == Verb::Check;
    (decision, is_kept.then_some(states))
}

fn record_number(word: Word) -> usize {
    debug_assert_eq!(word.layout(), RECORD);
    usize::try_from(word.payload()).unwrap_or(usize::MAX)
}
