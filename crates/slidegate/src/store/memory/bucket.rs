//! Token buckets. All of their state is in the wide part and changes only under the page's lock.

use slidegate_core::{Decision, NarrowBucket, Policy, Verb, decide_one};

use super::locked::is_counting;
use super::page::LockedPage;
use super::request::TableRequest;
use super::slots::{KeyId, Slot};
use super::table::Table;
use super::wide::WidePart;
use crate::error::StoreError;

impl Table {
    /// Prefetches the lock and the wide part that a token bucket needs besides its slot.
    #[inline(always)]
    pub(super) fn prefetch_bucket(&self, id: KeyId) {
        self.pages[id.page()].prefetch();
        self.wide.prefetch(id);
    }

    /// Decides for a policy that is a single token bucket. Not inlined, so that other algorithms need not save registers.
    #[inline(never)]
    pub(super) fn execute_bucket(
        &self,
        policy: &Policy,
        id: KeyId,
        request: TableRequest<'_>,
    ) -> Result<Decision, StoreError> {
        // Fetched in parallel. Otherwise the lock would wait for the slot, and the wide part for the lock.
        self.prefetch_bucket(id);
        let mut page = self.lock_page(id);
        // A charge may owe more than 64 bits hold, and a block needs a record.
        let fits_bucket = matches!(request.verb(), Verb::Check | Verb::Peek | Verb::Refund);
        let slot = fits_bucket.then(|| self.slots.find_home_first(id)).flatten();
        let decided = slot.and_then(|slot| self.execute_on_bucket(policy, slot, &mut page, request));
        let Some(decision) = decided else { return self.execute_in_locked_page(page, policy, id, request) };
        if !is_counting(&decision) {
            self.sweep(&mut page, request.now_ms());
        }
        Ok(decision)
    }

    /// Decides on the wide part of a slot, under the page's lock. Returns `None` if the slot's word is not that of a token
    /// bucket of this policy.
    ///
    /// The word is neither changed nor seized: no thread decides by a token bucket's word without the lock. A thread that
    /// has read the wide part for a former owner finds the former word gone, because removing the owner seized it.
    #[inline(always)]
    fn execute_on_bucket(
        &self,
        policy: &Policy,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
        request: TableRequest<'_>,
    ) -> Option<Decision> {
        let layout = self.layouts.get(slot.load().layout())?;
        if !layout.is_bucket_for(policy.shared_quotas()) {
            return None;
        }
        let WidePart { start_ms, prev } = self.wide.load(slot)?;
        let mut bucket = NarrowBucket { debt: prev, at_ms: start_ms };
        let action = request.action_after(start_ms);
        let (decision, is_changed) = decide_one(&mut bucket, layout.quota(), action);
        if is_changed {
            let NarrowBucket { debt, at_ms } = bucket;
            self.wide.store(slot, WidePart { start_ms: at_ms, prev: debt });
            self.note_counter_change(slot, page, action.now_ms());
        }
        Some(decision)
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::super::word::RECORD;
    use super::*;
    use crate::clock::ManualClock;
    use slidegate_core::{Action, State, decide};

    const NOW: u64 = 1_800_000_000_000;

    fn policy(quota: &str) -> Policy {
        Policy::parse("api", [quota]).unwrap()
    }

    /// A table with one key, and the states that the core computes for it.
    struct Subject {
        table: Table,
        states: Vec<State>,
    }

    impl Subject {
        fn new() -> Self {
            let mut settings = Settings::default();
            settings.max_keys = 100;
            Self { table: Table::new(settings), states: Vec::new() }
        }

        fn id(&self, policy: &Policy) -> KeyId {
            self.table.id(self.table.hash(&policy.key("k")))
        }

        /// Takes a decision from both, and compares them.
        fn execute(&mut self, policy: &Policy, verb: Verb, now_ms: u64, cost: u64) -> Decision {
            let expected = decide(&mut self.states, policy, Action::new(verb, now_ms, cost)).0;
            let clock = ManualClock::at(now_ms);
            let decision = self.table.execute(policy, self.id(policy), verb, now_ms, cost, &clock).unwrap();
            assert_eq!(decision, expected, "{verb:?} {cost} of {:?} at {now_ms}", policy.quotas());
            decision
        }

        fn check(&mut self, quota: &str, now_ms: u64, cost: u64) -> Decision {
            self.execute(&policy(quota), Verb::Check, now_ms, cost)
        }

        /// Returns whether the key has a record; `None` if the key is absent.
        fn has_record(&self) -> Option<bool> {
            let slot = self.table.slots.find(self.id(&policy("1/1s")))?;
            let is_record = slot.load().layout() == RECORD;
            let page = self.table.lock_page(self.id(&policy("1/1s")));
            assert_eq!(page.state.records.len(), usize::from(is_record));
            Some(is_record)
        }
    }

    #[test]
    fn a_bucket_is_kept_in_the_wide_part_and_its_word_is_constant() {
        let mut subject = Subject::new();
        let _ = subject.check("3/1m token-bucket", NOW, 1);
        let slot = subject.table.slots.find(subject.id(&policy("1/1s"))).unwrap();
        let word = slot.load().0;
        for step in 0..200 {
            let _ = subject.check("3/1m token-bucket", NOW + 7001 * step, 1 + step % 2);
            assert_eq!(subject.has_record(), Some(false));
        }
        let slot = subject.table.slots.find(subject.id(&policy("1/1s"))).unwrap();
        assert_eq!(slot.load().0, word, "other caches keep the line");
    }

    #[test]
    fn the_largest_debt_that_fits_is_kept_and_a_larger_one_has_a_record() {
        // 2^48 * 2^16 is one more than 64 bits hold.
        for (quota, cost, has_record) in [
            ("281474976710655/65536ms token-bucket", 281_474_976_710_655, false),
            ("281474976710656/65536ms token-bucket", 281_474_976_710_656, true),
            ("1/65536ms token-bucket burst=281474976710655", 281_474_976_710_655, false),
            ("1/65536ms token-bucket burst=281474976710656", 1, true),
        ] {
            let mut subject = Subject::new();
            assert!(subject.check(quota, NOW, cost).is_allowed());
            assert_eq!(subject.has_record(), Some(has_record), "{quota}");
            for step in 1..100 {
                let _ = subject.check(quota, NOW + 9001 * step, 1 + (cost >> step.min(48)));
            }
            let _ = subject.execute(&policy(quota), Verb::Refund, NOW + 900_000, cost);
        }
    }

    /// The same tokens are a larger debt in a longer window.
    #[test]
    fn a_debt_of_more_than_64_bits_moves_to_a_record() {
        let mut subject = Subject::new();
        let (short, long) =
            ("1000/1h token-bucket burst=5000000000000", "1000/366d token-bucket burst=100000000");
        assert!(subject.check(short, NOW, 5_000_000_000_000).is_allowed());
        assert_eq!(subject.has_record(), Some(false));
        assert!(!subject.check(long, NOW, 1).is_allowed());
        assert_eq!(subject.has_record(), Some(true), "debts within the capacity fit, but not this one");
        assert!(!subject.check(long, NOW + 1, 1).is_allowed());
        let _ = subject.execute(&policy(long), Verb::Refund, NOW + 2, 4_999_999_999_999);
        assert!(subject.check(long, NOW + 3, 1).is_allowed());
    }

    #[test]
    fn buckets_change_into_other_counters_and_back() {
        let mut subject = Subject::new();
        let quotas = [
            "9/1m token-bucket",
            "9/1m",
            "900000000000/1m",
            "7/1m token-bucket",
            "7/1m fixed-window",
            "7/1m token-bucket burst=20",
            "7/2m token-bucket burst=20",
        ];
        // Each window ends before the next algorithm begins.
        let now_ms = |step: u64| NOW + 600_000 * (step / 3);
        for step in 0..700 {
            let quota = quotas[step as usize / 3 % quotas.len()];
            let _ = subject.check(quota, now_ms(step), 1);
            assert_eq!(subject.has_record(), Some(false), "{quota}");
        }
        let _ = subject.check("9/1m", now_ms(700), 1);
        let _ = subject.check(quotas[0], now_ms(700), 1);
        assert_eq!(subject.has_record(), Some(true), "both counters are above zero");
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }

        fn bucket(&mut self) -> Policy {
            let size = |random: &mut Self, bits| {
                let bits = 1 + random.below(bits);
                1 + random.below(1 << bits)
            };
            let (limit, burst) = (size(self, 40), size(self, 40));
            let window_ms = size(self, 31);
            policy(&format!("{limit}/{window_ms}ms token-bucket burst={burst}"))
        }
    }

    /// Random operations: all verbs, changing quotas of all sizes, and a clock that advances by fractions of windows and
    /// sometimes steps back.
    #[test]
    fn random_buckets_decide_like_the_core() {
        let (mut wide, mut recorded) = (0, 0);
        for seed in 1..=1000_u64 {
            let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            let mut subject = Subject::new();
            let mut policy = random.bucket();
            let mut now_ms = NOW;
            for _ in 0..100 {
                // An idle key may be removed, and with it its time and former limit: neither changes while it is idle.
                let is_live = subject.execute(&policy, Verb::Peek, now_ms, 1).quotas()[0].used > 0;
                let is_changing = is_live && random.below(20) == 0;
                if is_changing {
                    policy = random.bucket();
                }
                let quota = policy.quotas()[0];
                let verb = match random.below(16) {
                    // Only a check stores the expiry under the new limit.
                    _ if is_changing => Verb::Check,
                    0..=1 => Verb::Refund,
                    2 => Verb::Reset,
                    _ => Verb::Check,
                };
                now_ms = match random.below(20) {
                    _ if is_changing => now_ms,
                    0 if is_live => now_ms - quota.window_ms() / 3,
                    1 if is_live => now_ms - quota.window_ms() - 1 - random.below(1000),
                    2..=8 => now_ms,
                    _ => now_ms + random.below(quota.window_ms()) / (1 << random.below(8)),
                };
                let cost = match random.below(8) {
                    0 => quota.capacity(),
                    1 => random.below(u64::MAX),
                    2..=3 => 1,
                    _ => random.below(quota.capacity()) >> random.below(4),
                };
                let _ = subject.execute(&policy, verb, now_ms, cost);
                match subject.has_record() {
                    Some(false) => wide += 1,
                    Some(true) => recorded += 1,
                    None => (),
                }
            }
        }
        assert!(wide > 20_000 && recorded > 500, "{wide} in the one form, {recorded} in the other");
    }
}
