//! The table: decisions on words, without a lock.

use std::hint::cold_path;
use std::sync::atomic::Ordering;

use slidegate_core::{
    Action, Algorithm, Check, Decision, Outcome, Policy, Quota, State, Verb, check_within, decide_one,
};

use super::asked::Asked;
use super::atomics::{AtomicU64, AtomicUsize};
use super::barren::Barren;
use super::forgotten::Forgotten;
use super::hash::{KeyHash, KeyHasher};
use super::layout::{Counts, Form, Layout};
use super::layouts::Layouts;
use super::page::Page;
use super::settings::Settings;
use super::slots::{KeyId, SLOT_BYTES, SLOTS_PER_PAGE, Slot, Slots};
use super::turns::Turns;
use super::wide::WideCounters;
use super::word::Word;
use crate::clock::Clock;
use crate::error::StoreError;

pub(super) struct Table {
    pub(super) settings: Settings,
    pub(super) max_bytes: usize,
    pub(super) slots: Slots,
    pub(super) wide: WideCounters,
    pub(super) pages: Box<[Page]>,
    hasher: KeyHasher,
    forgotten: Forgotten,
    pub(super) layouts: Layouts,
    pub(super) keys: AtomicUsize,
    /// Of records and wide pages.
    pub(super) beside_bytes: AtomicUsize,
    /// Of the wide pages alone, which never go.
    pub(super) wide_bytes: AtomicUsize,
    pub(super) evicted: AtomicU64,
    /// How many records there are.
    pub(super) records: AtomicUsize,
    /// Where nobody can go.
    pub(super) barren: Barren,
    /// Where nobody can go who takes bytes.
    pub(super) barren_of_records: Barren,
}

/// What checks under one policy have in common.
pub(crate) struct Binding {
    hasher: KeyHasher,
    /// How many times anything was forgotten before the hasher was made.
    forgotten: u64,
    /// That in which most counters of the policy are written, if it counts in a sliding window.
    layout: Layout,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        let pages = settings.pages();
        let slots = Slots::new(pages);
        Self {
            settings,
            max_bytes: settings.max_bytes(),
            wide: slots.wide_counters(),
            slots,
            pages: (0..pages).map(|_| Page::default()).collect(),
            hasher: KeyHasher::random(),
            forgotten: Forgotten::default(),
            layouts: Layouts::new(),
            keys: AtomicUsize::new(0),
            beside_bytes: AtomicUsize::new(0),
            wide_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            records: AtomicUsize::new(0),
            barren: Barren::new(pages),
            barren_of_records: Barren::new(pages),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// All the memory that it takes, or may have touched.
    pub(super) fn bytes(&self) -> usize {
        self.table_bytes() + self.beside_bytes.load(Ordering::Relaxed)
    }

    fn table_bytes(&self) -> usize {
        let beside = size_of::<Page>() + 2 * Barren::BYTES_PER_PAGE;
        self.pages.len() * (SLOTS_PER_PAGE * SLOT_BYTES + beside)
    }

    /// What nobody could give up.
    pub(super) fn lasting_bytes(&self) -> usize {
        self.table_bytes() + self.wide_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn hash(&self, check: &Check<'_>) -> KeyHash {
        if self.forgotten.times() > 0 {
            return self.hash_salted(check.policy, check.key);
        }
        self.hasher.hash(check.policy.digest(), check.key)
    }

    /// The same under the policy that was bound.
    #[inline(always)]
    pub(super) fn hash_bound(&self, policy: &Policy, binding: &Binding, key: &[u8]) -> KeyHash {
        if self.forgotten.times() != binding.forgotten {
            return self.hash_salted(policy, key);
        }
        binding.hasher.hash([0, 0], key)
    }

    /// The same where keys of some policy were forgotten.
    #[cold]
    #[inline(never)]
    fn hash_salted(&self, policy: &Policy, key: &[u8]) -> KeyHash {
        self.hasher.hash(self.forgotten.salted(policy.digest()), key)
    }

    /// Forgets what all keys have spent under the policy's name.
    pub(super) fn forget(&self, policy: &Policy) -> Result<(), StoreError> {
        self.forgotten.forget(policy.digest())
    }

    #[inline(always)]
    pub(super) fn id(&self, hash: KeyHash) -> KeyId {
        self.slots.id(hash)
    }

    /// Begins to bring into the cache what a check of the key `id` will need.
    #[inline(always)]
    pub(super) fn touch(&self, policy: &Policy, id: KeyId) {
        self.slots.touch(id);
        if is_bucket(policy) {
            self.touch_bucket(id);
        } else if !is_one_window(policy) {
            self.pages[id.page()].touch();
        }
    }

    /// Decides for the key `id`.
    #[inline(always)]
    pub(super) fn execute(
        &self,
        policy: &Policy,
        id: KeyId,
        verb: Verb,
        now_ms: u64,
        cost: u64,
        clock: &dyn Clock,
    ) -> Result<Decision, StoreError> {
        let at_home = match verb {
            Verb::Check => self.check_at_home(
                id,
                now_ms,
                cost,
                #[inline(always)]
                |word| self.sliding_layout(word, policy),
            ),
            Verb::Peek | Verb::Charge | Verb::Refund | Verb::Reset | Verb::Block => None,
        };
        match at_home {
            Some(decision) => Ok(decision),
            // Piece by piece, so that nothing has to be put together unless it comes to this.
            None => {
                cold_path();
                self.execute_elsewhere(policy, id, verb, now_ms, cost, clock).0
            }
        }
    }

    /// What a check under `policy` needs that is the same for each of them.
    pub(super) fn bind(&self, policy: &Policy, now_ms: u64) -> Binding {
        let forgotten = self.forgotten.times_before_salts();
        let of_form = |form| self.layouts.for_policy(policy, form, now_ms);
        let layout = of_form(Form::Packed).or_else(|| of_form(Form::Wide));
        let layout = layout.filter(|layout| layout.is_sliding()).cloned();
        Binding {
            hasher: self.hasher.bind(self.forgotten.salted(policy.digest())),
            forgotten,
            layout: layout.unwrap_or_else(|| Layout::of_no_word(policy.quotas()[0])),
        }
    }

    /// [`execute`](Self::execute) for a check of the key `id` under the policy that was bound.
    #[inline(always)]
    pub(super) fn check_bound(
        &self,
        policy: &Policy,
        binding: &Binding,
        id: KeyId,
        now_ms: u64,
        cost: u64,
        clock: &dyn Clock,
    ) -> Result<Decision, StoreError> {
        let layout = &binding.layout;
        let at_home = self.check_at_home(
            id,
            now_ms,
            cost,
            #[inline(always)]
            |word| layout.is_of(word).then_some(layout),
        );
        match at_home {
            Some(decision) => Ok(decision),
            None => {
                cold_path();
                self.execute_elsewhere(policy, id, Verb::Check, now_ms, cost, clock).0
            }
        }
    }

    /// By far the most: a check of a sliding window that is in its own line, in the same window as before, and is
    /// denied or leaves something of the limit.
    #[inline(always)]
    fn check_at_home<'a>(
        &self,
        id: KeyId,
        now_ms: u64,
        cost: u64,
        layout_of: impl FnOnce(Word) -> Option<&'a Layout>,
    ) -> Option<Decision> {
        self.check_in(self.slots.likely_at_home(id)?, id.tag, now_ms, cost, layout_of)
    }

    /// The same as [`execute_on_word`](Self::execute_on_word), which stands in for all the rest, if the slot is the key's.
    #[inline(always)]
    fn check_in<'a>(
        &self,
        slot: Slot<'_>,
        tag: u64,
        now_ms: u64,
        cost: u64,
        layout_of: impl FnOnce(Word) -> Option<&'a Layout>,
    ) -> Option<Decision> {
        let word = slot.load();
        let layout = layout_of(word)?;
        if !slot.is_owned_by(tag) {
            return None;
        }
        // Twice the same, so that each is in one piece and has but its own numbers to keep.
        match layout.packing() {
            Some(packing) => {
                let before = packing.unpack(word.payload());
                check_on(before, slot, word, layout.quota(), now_ms, cost).decision()
            }
            None => {
                let before = self.wide.load(slot)?.with(word.payload());
                check_on(before, slot, word, layout.quota(), now_ms, cost).decision()
            }
        }
    }

    /// The layout in which `word` was written, if it was for a sliding window of `policy`.
    #[inline(always)]
    fn sliding_layout(&self, word: Word, policy: &Policy) -> Option<&Layout> {
        let layout = self.layouts.get(word.layout())?;
        layout.is_sliding_for(policy.shared_quotas()).then_some(layout)
    }

    #[inline(never)]
    fn execute_elsewhere(
        &self,
        policy: &Policy,
        id: KeyId,
        verb: Verb,
        now_ms: u64,
        cost: u64,
        clock: &dyn Clock,
    ) -> Elsewhere {
        let asked = Asked::new(policy, verb, now_ms, cost, clock);
        if is_bucket(policy) {
            return self.noted(id, asked, self.execute_bucket(policy, id, asked));
        }
        let slot = self.slots.find(id);
        // Most who come here had no room in their own line, or have been slower than another thread.
        if verb == Verb::Check
            && let Some(slot) = slot
            && let Some(decision) = self.check_by_turns(policy, id, slot, now_ms, cost)
        {
            return Elsewhere(Ok(decision));
        }
        let decided = match slot.and_then(|slot| self.execute_on_word(policy, id.tag, slot, asked)) {
            Some(decision) => Ok(decision),
            None => self.execute_locked(policy, id, asked),
        };
        self.noted(id, asked, decided)
    }

    /// What was decided, after a note is taken if that was the last of a limit.
    #[inline(always)]
    fn noted(&self, id: KeyId, asked: Asked<'_>, decided: Result<Decision, StoreError>) -> Elsewhere {
        let action = asked.as_asked();
        if matches!(action.verb(), Verb::Check | Verb::Charge | Verb::Block)
            && action.cost() > 0
            && let Ok(decision) = &decided
            && (decision.is_allowed() || action.verb() == Verb::Charge)
            && decision.remaining() == 0
        {
            self.note_denied(id.page(), action.now_ms());
        }
        Elsewhere(decided)
    }

    /// A check of a sliding window that is `slot`'s, as often as somebody else is faster; `None` if another window has begun,
    /// if it spends the last of the limit, or if it is none of that.
    fn check_by_turns(
        &self,
        policy: &Policy,
        id: KeyId,
        slot: Slot<'_>,
        now_ms: u64,
        cost: u64,
    ) -> Option<Decision> {
        let mut turns = Turns::new();
        // In its own line it has been tried already, and if it could be allowed, somebody else was faster.
        let mut may_have_lost = self.slots.is_at_home(slot, id);
        loop {
            let word = slot.load();
            let layout = self.sliding_layout(word, policy)?;
            if !slot.is_owned_by(id.tag) {
                return None;
            }
            let before = layout.read(word, || self.wide.load(slot))?;
            // Whoever is bound to a policy tries none but the first choice.
            if std::mem::take(&mut may_have_lost)
                && layout.is_first_choice
                && could_be_allowed(before, layout.quota(), now_ms, cost)
            {
                turns.wait();
                continue;
            }
            match check_on(before, slot, word, layout.quota(), now_ms, cost) {
                Checked::Decided(decision) => return Some(decision),
                Checked::NotHere => return None,
                Checked::TooLate => turns.wait(),
            }
        }
    }

    /// The key is there, it has one quota, and its counter fits into the word: no lock is needed.
    fn execute_on_word(
        &self,
        policy: &Policy,
        tag: u64,
        slot: Slot<'_>,
        asked: Asked<'_>,
    ) -> Option<Decision> {
        let quotas = policy.shared_quotas();
        // What makes room needs the lock, see `Barren`.
        if quotas.len() != 1 || matches!(asked.verb(), Verb::Refund | Verb::Reset | Verb::Block) {
            return None;
        }
        debug_assert!(!is_bucket(policy), "what stands beside its word may change while the word does not");
        let mut turns = Turns::new();
        loop {
            let word = slot.load();
            let layout = self.layouts.get(word.layout())?;
            if !layout.is_for(quotas) || !slot.is_owned_by(tag) {
                return None;
            }
            let before = layout.read(word, || self.wide.load(slot))?;
            let (decision, after) = decide_on(before, layout.quota(), asked.after(before.start_ms));
            // The clock has stepped back far: it may be over sooner than it was, which needs the lock too.
            if after.is_some_and(|after| after.start_ms < before.start_ms) {
                return None;
            }
            match after {
                None if slot.is_still(word) => return Some(decision),
                Some(after) if slot.replace(word, layout.next(word, before, after)?) => {
                    return Some(decision);
                }
                _ => turns.wait(),
            }
        }
    }

    /// The counter in a slot without a record, and the quota under which it was written.
    pub(super) fn counted(&self, slot: Slot<'_>, word: Word) -> Option<(State, &Quota)> {
        let layout = self.layouts.get(word.layout())?;
        Some((layout.state(layout.read(word, || self.wide.load(slot))?), layout.quota()))
    }
}

/// What was decided off the shortest way. A type of its own, so that the two are put together from their parts: if it were
/// returned as it is, whoever comes by the shortest way would have to write all of a decision to where this one is.
struct Elsewhere(Result<Decision, StoreError>);

/// Whether all that it counts is one sliding or fixed window, for which most checks need no lock.
#[inline(always)]
fn is_one_window(policy: &Policy) -> bool {
    let is_window =
        |quota: &Quota| matches!(quota.algorithm(), Algorithm::SlidingWindow | Algorithm::FixedWindow);
    matches!(policy.quotas(), [quota] if is_window(quota))
}

/// Whether all that it counts is one token bucket.
#[inline(always)]
fn is_bucket(policy: &Policy) -> bool {
    matches!(policy.quotas(), [quota] if quota.algorithm() == Algorithm::TokenBucket)
}

/// What came of a check.
enum Checked {
    Decided(Decision),
    /// Nothing: it is not a sliding window of this slot, another window has begun, or it spends the last of the limit.
    NotHere,
    /// Somebody else was faster.
    TooLate,
}

impl Checked {
    #[inline(always)]
    fn decision(self) -> Option<Decision> {
        if let Self::Decided(decision) = self { Some(decision) } else { None }
    }
}

/// A check of a sliding window that is `slot`'s. A denial looks twice: the word may have been a former owner's, to whom the
/// slot belonged until its tag was looked at.
#[inline(always)]
fn check_on(before: Counts, slot: Slot<'_>, word: Word, quota: &Quota, now_ms: u64, cost: u64) -> Checked {
    let counter = before.sliding(quota.window_ms());
    match check_within(&counter, quota, now_ms, cost) {
        None => Checked::NotHere,
        Some(Outcome::Allowed(decision)) if slot.replace(word, word.plus(cost)) => Checked::Decided(decision),
        Some(Outcome::Denied(decision)) if slot.is_still(word) => Checked::Decided(decision),
        Some(_) => Checked::TooLate,
    }
}

/// Whether [`check_on`] would allow it.
fn could_be_allowed(before: Counts, quota: &Quota, now_ms: u64, cost: u64) -> bool {
    let counter = before.sliding(quota.window_ms());
    matches!(check_within(&counter, quota, now_ms, cost), Some(Outcome::Allowed(_)))
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::clock::ManualClock;

    const NOW: u64 = 1_800_000_000_000;

    /// Keys that all want the same line, so that in a table for one key they take the same slots from each other.
    fn rivals(table: &Table, policy: &Policy, count: usize) -> Vec<String> {
        let mut by_line: HashMap<u32, Vec<String>> = HashMap::new();
        (0..10_000)
            .map(|number| format!("key {number}"))
            .find_map(|key| {
                let line = by_line.entry(table.id(table.hash(&policy.key(&key))).home).or_default();
                line.push(key);
                (line.len() == count).then(|| line.clone())
            })
            .unwrap()
    }

    /// Each key spends a cost of its own, and nothing but multiples of it may ever be counted for it: anything else
    /// was spent by a former owner of its slot.
    #[test]
    fn nobody_writes_to_a_slot_that_was_taken_away() {
        for quota in ["100000/1h fixed-window", "1000/1h", "1000000000/1h", "1000/1h token-bucket"] {
            let mut settings = Settings::default();
            settings.max_keys = 1;
            let table = Table::new(settings);
            let policy = Policy::parse("api", [quota]).unwrap();
            let rivals = rivals(&table, &policy, 4);
            let costs = [7, 11, 13, 17];
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (table, policy, rivals) = (&table, &policy, &rivals);
                    scope.spawn(move || {
                        for step in 0..100_000 {
                            let which = (thread + step / 3) % 4;
                            let id = table.id(table.hash(&policy.key(&rivals[which])));
                            let decision = table
                                .execute(policy, id, Verb::Check, NOW, costs[which], &ManualClock::at(NOW))
                                .unwrap();
                            let used = decision.quotas()[0].used;
                            assert_eq!(used % costs[which], 0, "{quota}: {used} of {}", costs[which]);
                        }
                    });
                }
            });
            assert_eq!(table.keys(), 1);
        }
    }
}
