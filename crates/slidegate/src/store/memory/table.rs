//! The table: decisions on single words, without a lock.

use std::hint::cold_path;
use std::sync::atomic::Ordering;

use slidegate_core::{
    Action, Algorithm, Check, Decision, FastCheck, Policy, Quota, State, Verb, decide_one, fast_check,
};

use super::atomics::{AtomicU64, AtomicUsize};
use super::hash::{KeyHash, KeyHasher};
use super::layout::{Counts, Form, Layout};
use super::layout_registry::LayoutRegistry;
use super::page::{DeniedPages, Page};
use super::policy_salts::PolicySalts;
use super::request::TableRequest;
use super::settings::Settings;
use super::slots::{KeyId, SLOT_BYTES, SLOTS_PER_PAGE, Slot, Slots};
use super::spin_backoff::SpinBackoff;
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
    salts: PolicySalts,
    pub(super) layouts: LayoutRegistry,
    pub(super) keys: AtomicUsize,
    /// Bytes of records and of wide pages.
    pub(super) out_of_line_bytes: AtomicUsize,
    /// Bytes of wide pages, which are never freed.
    pub(super) wide_bytes: AtomicUsize,
    pub(super) evicted: AtomicU64,
    /// Number of records.
    pub(super) records: AtomicUsize,
    /// Pages in which all keys are denied.
    pub(super) denied_pages: DeniedPages,
    /// Pages in which all keys with a record are denied.
    pub(super) denied_record_pages: DeniedPages,
}

/// State that all checks under one policy share.
pub(crate) struct Binding {
    hasher: KeyHasher,
    /// Version of the salts that the hasher was made with.
    salts_version: u64,
    /// Layout of most counters of the policy; matches no word unless the policy is a single sliding window.
    layout: Layout,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        let pages = settings.pages();
        let slots = Slots::new(pages);
        Self {
            settings,
            max_bytes: settings.max_bytes(),
            wide: WideCounters::new(&slots),
            slots,
            pages: (0..pages).map(|_| Page::default()).collect(),
            hasher: KeyHasher::random(),
            salts: PolicySalts::default(),
            layouts: LayoutRegistry::new(),
            keys: AtomicUsize::new(0),
            out_of_line_bytes: AtomicUsize::new(0),
            wide_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            records: AtomicUsize::new(0),
            denied_pages: DeniedPages::new(pages),
            denied_record_pages: DeniedPages::new(pages),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the table uses, or may have touched.
    pub(super) fn bytes(&self) -> usize {
        self.table_bytes() + self.out_of_line_bytes.load(Ordering::Relaxed)
    }

    fn table_bytes(&self) -> usize {
        let per_page = size_of::<Page>() + 2 * DeniedPages::BYTES_PER_PAGE;
        self.pages.len() * (SLOTS_PER_PAGE * SLOT_BYTES + per_page)
    }

    /// Returns the bytes that no eviction can free.
    pub(super) fn permanent_bytes(&self) -> usize {
        self.table_bytes() + self.wide_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn hash(&self, check: &Check<'_>) -> KeyHash {
        if self.salts.version() > 0 {
            return self.hash_with_salts(check.policy, check.key);
        }
        self.hasher.hash(check.policy.digest(), check.key)
    }

    /// Returns the hash of a key under the bound policy.
    #[inline(always)]
    pub(super) fn hash_bound(&self, policy: &Policy, binding: &Binding, key: &[u8]) -> KeyHash {
        if self.salts.version() != binding.salts_version {
            return self.hash_with_salts(policy, key);
        }
        binding.hasher.hash([0, 0], key)
    }

    /// Returns the hash of a key when some policy has a salt.
    #[cold]
    #[inline(never)]
    fn hash_with_salts(&self, policy: &Policy, key: &[u8]) -> KeyHash {
        self.hasher.hash(self.salts.salted(policy.digest()), key)
    }

    /// Invalidates all keys of the policy's name.
    pub(super) fn forget(&self, policy: &Policy) -> Result<(), StoreError> {
        self.salts.forget(policy.digest())
    }

    #[inline(always)]
    pub(super) fn id(&self, hash: KeyHash) -> KeyId {
        self.slots.id(hash)
    }

    /// Prefetches the memory that a check of the key `id` needs.
    #[inline(always)]
    pub(super) fn prefetch(&self, policy: &Policy, id: KeyId) {
        self.slots.prefetch(id);
        if is_bucket(policy) {
            self.prefetch_bucket(id);
        } else if !is_one_window(policy) {
            self.pages[id.page()].prefetch();
        }
    }

    /// Executes one operation on the key `id`.
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
        let in_home_line = match verb {
            Verb::Check => self.check_in_home_line(
                id,
                now_ms,
                cost,
                #[inline(always)]
                |word| self.sliding_layout(word, policy),
            ),
            _ => None,
        };
        match in_home_line {
            Some(decision) => Ok(decision),
            // Separate arguments, so that the fast path does not build a request.
            None => {
                cold_path();
                self.execute_slow_path(policy, id, verb, now_ms, cost, clock).0
            }
        }
    }

    /// Computes the state that checks under `policy` share.
    pub(super) fn bind(&self, policy: &Policy, now_ms: u64) -> Binding {
        let salts_version = self.salts.version_before_salts();
        let of_form = |form| self.layouts.for_policy(policy, form, now_ms);
        let layout = of_form(Form::Packed).or_else(|| of_form(Form::Wide));
        let layout = layout.filter(|layout| layout.is_sliding()).cloned();
        Binding {
            hasher: self.hasher.bind(self.salts.salted(policy.digest())),
            salts_version,
            layout: layout.unwrap_or_else(|| Layout::unused(policy.quotas()[0])),
        }
    }

    /// Checks the key `id` under the bound policy, like [`execute`](Self::execute).
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
        let in_home_line = self.check_in_home_line(
            id,
            now_ms,
            cost,
            #[inline(always)]
            |word| layout.is_of(word).then_some(layout),
        );
        match in_home_line {
            Some(decision) => Ok(decision),
            None => {
                cold_path();
                self.execute_slow_path(policy, id, Verb::Check, now_ms, cost, clock).0
            }
        }
    }

    /// Fast path: decides a check of a sliding window if its slot is in the home line, its window is that of the last
    /// check, and the check is denied or leaves a rest of the limit. Returns `None` in all other cases.
    #[inline(always)]
    fn check_in_home_line<'a>(
        &self,
        id: KeyId,
        now_ms: u64,
        cost: u64,
        layout_of: impl FnOnce(Word) -> Option<&'a Layout>,
    ) -> Option<Decision> {
        self.check_slot(self.slots.likely_slot(id)?, id.tag, now_ms, cost, layout_of)
    }

    /// Checks one slot. Returns `None` if it is not the key's or the fast path does not apply.
    #[inline(always)]
    fn check_slot<'a>(
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
        // Duplicated, so that each branch is straight-line code with few live registers.
        match layout.packing() {
            Some(packing) => {
                let before = packing.unpack(word.payload());
                attempt_check(before, slot, word, layout.quota(), now_ms, cost).decision()
            }
            None => {
                let before = self.wide.load(slot)?.with(word.payload());
                attempt_check(before, slot, word, layout.quota(), now_ms, cost).decision()
            }
        }
    }

    /// Returns the layout of `word` if it belongs to a sliding window of this very `policy`.
    #[inline(always)]
    fn sliding_layout(&self, word: Word, policy: &Policy) -> Option<&Layout> {
        let layout = self.layouts.get(word.layout())?;
        layout.is_sliding_for(policy.shared_quotas()).then_some(layout)
    }

    #[inline(never)]
    fn execute_slow_path(
        &self,
        policy: &Policy,
        id: KeyId,
        verb: Verb,
        now_ms: u64,
        cost: u64,
        clock: &dyn Clock,
    ) -> SlowPathResult {
        let request = TableRequest::new(policy, verb, now_ms, cost, clock);
        if is_bucket(policy) {
            return self.with_denial_noted(id, request, self.execute_bucket(policy, id, request));
        }
        let slot = self.slots.find(id);
        // Most requests come here because their slot is outside the home line, or because they lost a race.
        if verb == Verb::Check
            && let Some(slot) = slot
            && let Some(decision) = self.check_with_backoff(policy, id, slot, now_ms, cost)
        {
            return SlowPathResult(Ok(decision));
        }
        let decided = match slot.and_then(|slot| self.execute_lock_free(policy, id.tag, slot, request)) {
            Some(decision) => Ok(decision),
            None => self.execute_locked(policy, id, request),
        };
        self.with_denial_noted(id, request, decided)
    }

    /// Wraps a decision, and updates the index of denied pages if it has used up a limit.
    #[inline(always)]
    fn with_denial_noted(
        &self,
        id: KeyId,
        request: TableRequest<'_>,
        decided: Result<Decision, StoreError>,
    ) -> SlowPathResult {
        let action = request.action();
        if action.verb().adds_state()
            && action.cost() > 0
            && let Ok(decision) = &decided
            && (decision.is_allowed() || action.verb() == Verb::Charge)
            && decision.remaining() == 0
        {
            self.note_exhausted_key(id.page(), action.now_ms());
        }
        SlowPathResult(decided)
    }

    /// Checks a sliding window and retries with backoff while other threads win the race. Returns `None` if the slot
    /// does not hold one, if its window has ended, or if the check uses up the limit.
    fn check_with_backoff(
        &self,
        policy: &Policy,
        id: KeyId,
        slot: Slot<'_>,
        now_ms: u64,
        cost: u64,
    ) -> Option<Decision> {
        let mut backoff = SpinBackoff::new();
        // The fast path has tried the home line already: if the check could have been allowed, it lost a race.
        let mut may_have_lost = self.slots.is_in_home_line(slot, id);
        loop {
            let word = slot.load();
            let layout = self.sliding_layout(word, policy)?;
            if !slot.is_owned_by(id.tag) {
                return None;
            }
            let before = layout.read(word, || self.wide.load(slot))?;
            // A bound policy tries only the first-choice layout on the fast path.
            if std::mem::take(&mut may_have_lost)
                && layout.is_first_choice
                && could_be_allowed(before, layout.quota(), now_ms, cost)
            {
                backoff.wait();
                continue;
            }
            match attempt_check(before, slot, word, layout.quota(), now_ms, cost) {
                CheckAttempt::Decided(decision) => return Some(decision),
                CheckAttempt::NotApplicable => return None,
                CheckAttempt::Contended => backoff.wait(),
            }
        }
    }

    /// Decides without a lock, for a key that exists, has one quota, and whose count fits into its word. Returns `None`
    /// in all other cases.
    fn execute_lock_free(
        &self,
        policy: &Policy,
        tag: u64,
        slot: Slot<'_>,
        request: TableRequest<'_>,
    ) -> Option<Decision> {
        let quotas = policy.shared_quotas();
        // All other verbs can make a key evictable sooner, or need a record, and take the lock; see `DeniedPages`.
        if quotas.len() != 1 || !matches!(request.verb(), Verb::Check | Verb::Peek | Verb::Charge) {
            return None;
        }
        debug_assert!(!is_bucket(policy), "the wide part of a bucket changes while its word does not");
        let mut backoff = SpinBackoff::new();
        loop {
            let word = slot.load();
            let layout = self.layouts.get(word.layout())?;
            if !layout.is_for(quotas) || !slot.is_owned_by(tag) {
                return None;
            }
            let before = layout.read(word, || self.wide.load(slot))?;
            let (decision, after) =
                decide_counts(before, layout.quota(), request.action_after(before.start_ms));
            // A repair after the clock stepped back can make the key evictable sooner, which needs the lock too.
            if after.is_some_and(|after| after.start_ms < before.start_ms) {
                return None;
            }
            match after {
                None if slot.is_unchanged(word) => return Some(decision),
                Some(after) if slot.replace(word, layout.next(word, before, after)?) => {
                    return Some(decision);
                }
                _ => backoff.wait(),
            }
        }
    }

    /// Returns the counter of a slot without a record, and the quota that it was written under.
    pub(super) fn read_state(&self, slot: Slot<'_>, word: Word) -> Option<(State, &Quota)> {
        let layout = self.layouts.get(word.layout())?;
        Some((layout.state(layout.read(word, || self.wide.load(slot))?), layout.quota()))
    }
}

/// Result of the slow path. A separate type makes the compiler assemble both results from their parts. If the slow path
/// returned a plain `Result`, the fast path would have to write its whole decision to the same memory.
pub(crate) struct SlowPathResult(pub(crate) Result<Decision, StoreError>);

/// Returns whether the policy is a single sliding or fixed window, for which most checks need no lock.
#[inline(always)]
fn is_one_window(policy: &Policy) -> bool {
    let is_window =
        |quota: &Quota| matches!(quota.algorithm(), Algorithm::SlidingWindow | Algorithm::FixedWindow);
    matches!(policy.quotas(), [quota] if is_window(quota))
}

/// Returns whether the policy is a single token bucket.
#[inline(always)]
fn is_bucket(policy: &Policy) -> bool {
    matches!(policy.quotas(), [quota] if quota.algorithm() == Algorithm::TokenBucket)
}

/// Result of one attempt to check without a lock.
enum CheckAttempt {
    Decided(Decision),
    /// The slot holds no sliding window of this policy, its window has ended, or the check uses up the limit.
    NotApplicable,
    /// Another thread has changed the word.
    Contended,
}

impl CheckAttempt {
    #[inline(always)]
    fn decision(self) -> Option<Decision> {
        if let Self::Decided(decision) = self { Some(decision) } else { None }
    }
}

/// Attempts a check of the sliding window in a slot. A denial is validated by a second read of the word: the first is a
/// former owner's if the slot was given to this key between the reads of word and tag.
#[inline(always)]
fn attempt_check(
    before: Counts,
    slot: Slot<'_>,
    word: Word,
    quota: &Quota,
    now_ms: u64,
    cost: u64,
) -> CheckAttempt {
    let counter = before.sliding(quota.window_ms());
    match fast_check(&counter, quota, now_ms, cost) {
        None => CheckAttempt::NotApplicable,
        Some(FastCheck::Allowed(decision)) if slot.replace(word, word.plus(cost)) => {
            CheckAttempt::Decided(decision)
        }
        Some(FastCheck::Denied(decision)) if slot.is_unchanged(word) => CheckAttempt::Decided(decision),
        Some(_) => CheckAttempt::Contended,
    }
}

/// Returns whether [`attempt_check`] would allow the request.
fn could_be_allowed(before: Counts, quota: &Quota, now_ms: u64, cost: u64) -> bool {
    let counter = before.sliding(quota.window_ms());
    matches!(fast_check(&counter, quota, now_ms, cost), Some(FastCheck::Allowed(_)))
}

/// Decides on the counts of a word. Returns the new counts if they have changed.
fn decide_counts(before: Counts, quota: &Quota, action: Action) -> (Decision, Option<Counts>) {
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

    /// Returns keys of one home line, which compete for the same slots in a table for one key.
    fn competitors(table: &Table, policy: &Policy, count: usize) -> Vec<String> {
        let mut by_line: HashMap<u32, Vec<String>> = HashMap::new();
        (0..10_000)
            .map(|number| format!("key {number}"))
            .find_map(|key| {
                let line = by_line.entry(table.id(table.hash(&policy.key(&key))).home_line).or_default();
                line.push(key);
                (line.len() == count).then(|| line.clone())
            })
            .unwrap()
    }

    /// Each key has its own cost. A count that is not a multiple of it was spent by a former owner of the slot.
    #[test]
    fn no_thread_writes_to_a_slot_that_was_taken_away() {
        for quota in ["100000/1h fixed-window", "1000/1h", "1000000000/1h", "1000/1h token-bucket"] {
            let mut settings = Settings::default();
            settings.max_keys = 1;
            let table = Table::new(settings);
            let policy = Policy::parse("api", [quota]).unwrap();
            let competitors = competitors(&table, &policy, 4);
            let costs = [7, 11, 13, 17];
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (table, policy, competitors) = (&table, &policy, &competitors);
                    scope.spawn(move || {
                        for step in 0..100_000 {
                            let index = (thread + step / 3) % 4;
                            let id = table.id(table.hash(&policy.key(&competitors[index])));
                            let decision = table
                                .execute(policy, id, Verb::Check, NOW, costs[index], &ManualClock::at(NOW))
                                .unwrap();
                            let used = decision.quotas()[0].used;
                            assert_eq!(used % costs[index], 0, "{quota}: {used} of {}", costs[index]);
                        }
                    });
                }
            });
            assert_eq!(table.keys(), 1);
        }
    }
}
