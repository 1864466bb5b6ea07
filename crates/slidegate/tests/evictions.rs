//! Eviction from a full table: no denied key is evicted while the table holds another one, on any page.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{Check, ManualClock, Policy, Quota};

const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;
/// 60 pages.
const MAX_KEYS: usize = 60 * 175;

struct TestStore {
    limiter: StoreLimiter<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl TestStore {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::at(NOW);
        let builder = MemoryStore::builder().max_keys(max_keys).clock(clock.clone());
        Self { limiter: StoreLimiter::new(builder.build().unwrap()), clock }
    }

    /// Builds a store whose bytes suffice for about 300 records of two quotas.
    fn with_few_bytes() -> Self {
        let clock = ManualClock::at(NOW);
        let builder = MemoryStore::builder().max_keys(MAX_KEYS).max_bytes(60 * 4400 + (64 << 10));
        Self { limiter: StoreLimiter::new(builder.clock(clock.clone()).build().unwrap()), clock }
    }

    fn spend(&self, check: Check<'_>) {
        assert!(self.limiter.check_now(check).unwrap().is_allowed(), "{check:?}");
    }

    fn used(&self, check: Check<'_>) -> u64 {
        self.limiter.peek_now(check).unwrap().quotas()[0].used
    }

    fn remaining(&self, check: Check<'_>) -> u64 {
        self.limiter.peek_now(check).unwrap().remaining()
    }

    fn evicted(&self) -> u64 {
        self.limiter.store().evicted()
    }

    /// Fills the table with keys that spend their whole limit.
    fn fill_with_denied(&self, policy: &Policy) -> Vec<String> {
        let mut keys = Vec::new();
        while self.limiter.store().len() < self.limiter.store().max_keys() {
            let key = format!("denied {}", keys.len());
            self.spend(policy.key(&key).cost(policy.quotas()[0].capacity()));
            keys.push(key);
        }
        assert_eq!(self.evicted(), 0);
        keys
    }
}

fn policy(quotas: &[&str]) -> Policy {
    Policy::parse("api", quotas.iter().copied()).unwrap()
}

const FORMS: [&[&str]; 5] =
    [&["5/1h"], &["5000000000/1h"], &["5/1h token-bucket"], &["5/1h", "9/1d"], &["5/1h sliding-log"]];

#[test]
fn a_denied_key_is_evicted_only_if_all_keys_are_denied() {
    for quotas in FORMS {
        let (store, policy) = (TestStore::new(MAX_KEYS), policy(quotas));
        let limit = policy.quotas()[0].capacity();
        let idle: Vec<String> = (0..20).map(|number| format!("idle {number}")).collect();
        for key in &idle {
            store.spend(policy.key(key).cost(limit - 1));
        }
        let denied = store.fill_with_denied(&policy);
        let left = |keys: &[String]| keys.iter().filter(|key| store.used(policy.key(key)) > 0).count();
        for number in 0..idle.len() {
            store.spend(policy.key(&format!("new {number}")).cost(limit));
            assert_eq!(left(&idle), idle.len() - number - 1, "{quotas:?}");
        }
        assert_eq!(left(&denied), denied.len(), "{quotas:?}");
        // Only denied keys are left.
        store.spend(policy.key("one more").cost(limit));
        assert_eq!((store.evicted(), store.limiter.store().len()), (1 + idle.len() as u64, MAX_KEYS));
        assert_eq!(left(&denied) + left(&["one more".into()]), denied.len(), "{quotas:?}");
    }
}

/// Evictions for bytes: only records take bytes and are evicted.
#[test]
fn a_denied_record_is_evicted_only_if_all_records_are_denied() {
    for quotas in [&["5/1h", "9/1d"][..], &["5/1h strict-window"], &["5/1h sliding-log"]] {
        let (store, policy) = (TestStore::with_few_bytes(), policy(quotas));
        let packed = Policy::parse("packed", ["5/1h"]).unwrap();
        let idle: Vec<String> = (0..20).map(|number| format!("idle {number}")).collect();
        for key in &idle {
            store.spend(policy.key(key).cost(4));
        }
        // Packed keys take no bytes and are not evicted, although they are idle.
        (0..500).for_each(|number| store.spend(packed.key(&format!("{number}"))));
        let left = |name, range: std::ops::Range<usize>| {
            range.filter(|number| store.used(policy.key(&format!("{name} {number}"))) > 0).count()
        };
        let (mut denied, mut evicted) = (0, 0);
        while evicted < idle.len() {
            store.spend(policy.key(&format!("denied {denied}")).cost(5));
            denied += 1;
            evicted = idle.len() - left("idle", 0..idle.len());
            // One record may evict several, and the last of these together with a denied one.
            assert!(evicted == idle.len() || left("denied", 0..denied) == denied, "{quotas:?}");
        }
        assert!(denied > 50, "{quotas:?}: only {denied} denied records");
        for number in denied..denied + 50 {
            store.spend(policy.key(&format!("denied {number}")).cost(5));
        }
        assert!(left("denied", 0..denied) < denied, "{quotas:?}: only denied records are left");
        let again = (0..denied).find(|number| left("denied", *number..number + 1) > 0).unwrap();
        let _ = store.limiter.refund_now(policy.key(&format!("denied {again}"))).unwrap();
        store.spend(policy.key("one more").cost(5));
        assert_eq!(left("denied", again..again + 1), 0, "{quotas:?}: a refunded record is evictable");
        assert!((0..500).all(|number| store.used(packed.key(&format!("{number}"))) > 0));
    }
}

/// A page caches until when all its keys are denied. After that time a key is evictable again.
#[test]
fn a_key_whose_denial_ended_is_evicted_before_denied_keys() {
    let (store, policy) = (TestStore::new(MAX_KEYS), policy(&["5/1h token-bucket"]));
    store.spend(policy.key("first").cost(5));
    store.spend(policy.key("second").cost(5));
    store.clock.advance(MINUTE);
    let denied = store.fill_with_denied(&policy);
    let is_denied = |key: &str| store.remaining(policy.key(key)) == 0;
    // The first two keys regain one unit after 12 minutes, all others a minute later.
    store.clock.advance(11 * MINUTE);
    store.spend(policy.key("second"));
    store.spend(policy.key("new").cost(5));
    assert!(store.used(policy.key("first")) == 0 && is_denied("second") && is_denied("new"));
    assert!(denied.iter().all(|key| is_denied(key)));
    store.clock.advance(MINUTE);
    for number in 0..100 {
        store.spend(policy.key(&format!("late {number}")).cost(5));
    }
    assert!(is_denied("second") && is_denied("new"));
    assert_eq!(denied.iter().filter(|key| store.used(policy.key(key)) > 0).count(), denied.len() - 100);
}

/// Expired keys are removed without an eviction.
#[test]
fn an_expired_key_is_removed_before_denied_keys() {
    for quotas in FORMS {
        let (store, policy) = (TestStore::new(MAX_KEYS), policy(quotas));
        let short = Policy::parse("short", ["1/1s"]).unwrap();
        (0..20).for_each(|number| store.spend(short.key(&format!("{number}"))));
        store.fill_with_denied(&policy);
        store.clock.advance(2000);
        for number in 0..20 {
            store.spend(policy.key(&format!("new {number}")).cost(policy.quotas()[0].capacity()));
        }
        assert_eq!((store.evicted(), store.limiter.store().len()), (0, MAX_KEYS), "{quotas:?}");
        store.spend(policy.key("one more").cost(policy.quotas()[0].capacity()));
        assert_eq!(store.evicted(), 1, "{quotas:?}");
    }
}

/// A refund and a raised limit both make a denied key evictable.
#[test]
fn a_key_that_is_allowed_again_is_evicted_before_denied_keys() {
    let refund = |store: &TestStore, check: Check<'_>| drop(store.limiter.refund_now(check).unwrap());
    // Spends under a version of the policy with a higher limit.
    let raise = |store: &TestStore, check: Check<'_>| {
        let texts = check.policy.quotas().iter().map(ToString::to_string);
        let raised: Vec<String> = texts.map(|text| format!("9{text}")).collect();
        let raised = policy(&raised.iter().map(String::as_str).collect::<Vec<_>>());
        store.spend(raised.key(check.key).cost(check.cost));
    };
    for quotas in FORMS {
        for again in [refund as fn(&TestStore, Check<'_>), raise] {
            let (store, policy) = (TestStore::new(20 * 175), policy(quotas));
            let denied = store.fill_with_denied(&policy);
            let limit = policy.quotas()[0].capacity();
            // The insertion marks all pages as denied.
            store.spend(policy.key("new").cost(limit));
            let left = |key: &String| store.used(policy.key(key)) > 0;
            let idle: Vec<&String> = denied.iter().filter(|key| left(key)).step_by(700).collect();
            assert_eq!(idle.len(), 5);
            for (number, key) in idle.iter().enumerate() {
                again(&store, policy.key(key));
                store.spend(policy.key(&format!("new {number}")).cost(limit));
                assert!(!left(key), "{quotas:?}");
            }
            assert_eq!(
                denied.iter().filter(|key| left(key)).count(),
                denied.len() - 1 - idle.len(),
                "{quotas:?}"
            );
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// State of all keys. Peeking at an expired key removes it.
struct KeyStates {
    denied: Vec<usize>,
    /// Number of keys that count something and are not denied.
    idle: usize,
}

/// Keys of several policies.
struct MixedKeys {
    store: TestStore,
    keys: Vec<(Policy, String)>,
}

impl MixedKeys {
    fn new() -> Self {
        let policies = [
            &["1/1h"][..],
            &["2/10m fixed-window"],
            &["3/20m token-bucket"],
            &["2/1h sliding-log"],
            &["900000/1h"],
            &["2/10m", "3/1h"],
        ];
        let keys = (0..600).map(|number| (policy(policies[number % policies.len()]), number.to_string()));
        Self { store: TestStore::new(2 * 175), keys: keys.collect() }
    }

    fn key(&self, number: usize) -> Check<'_> {
        let (policy, key) = &self.keys[number];
        policy.key(key)
    }

    /// Returns whether the key counts anything, and whether it is denied.
    fn state_of(&self, number: usize) -> (bool, bool) {
        let peeked = self.store.limiter.peek_now(self.key(number)).unwrap();
        (peeked.quotas().iter().any(|report| report.used > 0), peeked.remaining() == 0)
    }

    fn states(&self) -> KeyStates {
        let mut states = KeyStates { denied: Vec::new(), idle: 0 };
        for number in 0..self.keys.len() {
            let (is_counted, is_denied) = self.state_of(number);
            if is_denied {
                states.denied.push(number);
            } else {
                states.idle += usize::from(is_counted);
            }
        }
        states
    }

    fn run_random_operation(&self, number: usize, random: &mut Random) {
        let (limiter, check) = (&self.store.limiter, self.key(number));
        let all = check.policy.quotas().iter().map(Quota::capacity).min().unwrap();
        match random.below(100) {
            0 => drop(limiter.refund_now(check).unwrap()),
            1 => drop(limiter.reset_now(check).unwrap()),
            2 => self.store.clock.advance(random.below(MINUTE)),
            3..10 => drop(limiter.check_now(check).unwrap()),
            _ => drop(limiter.check_now(check.cost(all)).unwrap()),
        }
    }
}

/// Nearly all keys are denied, while random operations free and deny them again.
#[test]
fn no_denied_key_is_evicted_while_another_is_evictable() {
    let (mut evictions, mut of_denied_keys) = (0, 0);
    for seed in 1..=4_u64 {
        let (mixed_keys, mut random) =
            (MixedKeys::new(), Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed)));
        for step in 0..1800 {
            let number = usize::try_from(random.below(mixed_keys.keys.len() as u64)).unwrap();
            // No key is evicted before the table is full.
            let (before, evicted) = ((step > 800).then(|| mixed_keys.states()), mixed_keys.store.evicted());
            mixed_keys.run_random_operation(number, &mut random);
            let Some(before) = before.filter(|_| mixed_keys.store.evicted() > evicted) else { continue };
            evictions += 1;
            let is_evicted = |other: &&usize| **other != number && !mixed_keys.state_of(**other).0;
            let lost = before.denied.iter().filter(is_evicted).count();
            if lost > 0 {
                of_denied_keys += 1;
                assert_eq!((lost, before.idle), (1, 0), "seed {seed}, step {step}");
            }
        }
    }
    assert!(
        evictions > 500 && of_denied_keys > 100,
        "{evictions} evictions, {of_denied_keys} of denied keys"
    );
}
