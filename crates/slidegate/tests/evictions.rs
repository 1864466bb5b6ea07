//! Who goes for a new key in a full table: nobody who is denied while another can go, wherever that one is.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use slidegate::{Check, Limiter, ManualClock, MemoryStore, Policy, Quota};

const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;
/// In sixty pages.
const MAX_KEYS: usize = 60 * 175;

struct Rig {
    limiter: Limiter<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl Rig {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::at(NOW);
        let builder = MemoryStore::builder().max_keys(max_keys).clock(clock.clone());
        Self { limiter: Limiter::new(builder.build().unwrap()), clock }
    }

    /// With room for some 300 records of two quotas.
    fn of_few_bytes() -> Self {
        let clock = ManualClock::at(NOW);
        let builder = MemoryStore::builder().max_keys(MAX_KEYS).max_bytes(60 * 4400 + (64 << 10));
        Self { limiter: Limiter::new(builder.clock(clock.clone()).build().unwrap()), clock }
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

    /// Keys that spend all they may, until there is no room for one more.
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
fn a_denied_key_goes_only_if_all_keys_are_denied() {
    for quotas in FORMS {
        let (rig, policy) = (Rig::new(MAX_KEYS), policy(quotas));
        let limit = policy.quotas()[0].capacity();
        let idle: Vec<String> = (0..20).map(|number| format!("idle {number}")).collect();
        for key in &idle {
            rig.spend(policy.key(key).cost(limit - 1));
        }
        let denied = rig.fill_with_denied(&policy);
        let left = |keys: &[String]| keys.iter().filter(|key| rig.used(policy.key(key)) > 0).count();
        for number in 0..idle.len() {
            rig.spend(policy.key(&format!("new {number}")).cost(limit));
            assert_eq!(left(&idle), idle.len() - number - 1, "{quotas:?}");
        }
        assert_eq!(left(&denied), denied.len(), "{quotas:?}");
        // Now there is nobody else.
        rig.spend(policy.key("one more").cost(limit));
        assert_eq!((rig.evicted(), rig.limiter.store().len()), (1 + idle.len() as u64, MAX_KEYS));
        assert_eq!(left(&denied) + left(&["one more".into()]), denied.len(), "{quotas:?}");
    }
}

/// Where the bytes are used up, of those that take some.
#[test]
fn a_denied_record_goes_only_if_all_records_are_denied() {
    for quotas in [&["5/1h", "9/1d"][..], &["5/1h strict-window"], &["5/1h sliding-log"]] {
        let (rig, policy) = (Rig::of_few_bytes(), policy(quotas));
        let packed = Policy::parse("packed", ["5/1h"]).unwrap();
        let idle: Vec<String> = (0..20).map(|number| format!("idle {number}")).collect();
        for key in &idle {
            rig.spend(policy.key(key).cost(4));
        }
        // They take no bytes, and need not go, idle as they are.
        (0..500).for_each(|number| rig.spend(packed.key(&format!("{number}"))));
        let left = |name, range: std::ops::Range<usize>| {
            range.filter(|number| rig.used(policy.key(&format!("{name} {number}"))) > 0).count()
        };
        let (mut denied, mut gone) = (0, 0);
        while gone < idle.len() {
            rig.spend(policy.key(&format!("denied {denied}")).cost(5));
            denied += 1;
            gone = idle.len() - left("idle", 0..idle.len());
            // Several may have to go for one, and the last of these with another.
            assert!(gone == idle.len() || left("denied", 0..denied) == denied, "{quotas:?}");
        }
        assert!(denied > 50, "{quotas:?}: {denied} are few");
        for number in denied..denied + 50 {
            rig.spend(policy.key(&format!("denied {number}")).cost(5));
        }
        assert!(left("denied", 0..denied) < denied, "{quotas:?}: nobody else is left");
        let again = (0..denied).find(|number| left("denied", *number..number + 1) > 0).unwrap();
        let _ = rig.limiter.refund_now(policy.key(&format!("denied {again}"))).unwrap();
        rig.spend(policy.key("one more").cost(5));
        assert_eq!(left("denied", again..again + 1), 0, "{quotas:?}: it has something back, so it can go");
        assert!((0..500).all(|number| rig.used(packed.key(&format!("{number}"))) > 0));
    }
}

/// It is known of each page until when nobody can go; then somebody can again.
#[test]
fn whose_denial_is_over_goes_before_those_who_are_denied() {
    let (rig, policy) = (Rig::new(MAX_KEYS), policy(&["5/1h token-bucket"]));
    rig.spend(policy.key("first").cost(5));
    rig.spend(policy.key("second").cost(5));
    rig.clock.advance(MINUTE);
    let denied = rig.fill_with_denied(&policy);
    let is_denied = |key: &str| rig.remaining(policy.key(key)) == 0;
    // These two get one back after twelve minutes, all others a minute later.
    rig.clock.advance(11 * MINUTE);
    rig.spend(policy.key("second"));
    rig.spend(policy.key("new").cost(5));
    assert!(rig.used(policy.key("first")) == 0 && is_denied("second") && is_denied("new"));
    assert!(denied.iter().all(|key| is_denied(key)));
    rig.clock.advance(MINUTE);
    for number in 0..100 {
        rig.spend(policy.key(&format!("late {number}")).cost(5));
    }
    assert!(is_denied("second") && is_denied("new"));
    assert_eq!(denied.iter().filter(|key| rig.used(policy.key(key)) > 0).count(), denied.len() - 100);
}

/// Nor is anybody who counts something.
#[test]
fn who_counts_nothing_goes_before_those_who_are_denied() {
    for quotas in FORMS {
        let (rig, policy) = (Rig::new(MAX_KEYS), policy(quotas));
        let short = Policy::parse("short", ["1/1s"]).unwrap();
        (0..20).for_each(|number| rig.spend(short.key(&format!("{number}"))));
        rig.fill_with_denied(&policy);
        rig.clock.advance(2000);
        for number in 0..20 {
            rig.spend(policy.key(&format!("new {number}")).cost(policy.quotas()[0].capacity()));
        }
        assert_eq!((rig.evicted(), rig.limiter.store().len()), (0, MAX_KEYS), "{quotas:?}");
        rig.spend(policy.key("one more").cost(policy.quotas()[0].capacity()));
        assert_eq!(rig.evicted(), 1, "{quotas:?}");
    }
}

/// Whatever makes a key idle again, it is known.
#[test]
fn who_is_let_in_again_goes_before_those_who_are_denied() {
    let refund = |rig: &Rig, check: Check<'_>| drop(rig.limiter.refund_now(check).unwrap());
    // Under another version of the policy, by which it is not denied.
    let raise = |rig: &Rig, check: Check<'_>| {
        let texts = check.policy.quotas().iter().map(ToString::to_string);
        let raised: Vec<String> = texts.map(|text| format!("9{text}")).collect();
        let raised = policy(&raised.iter().map(String::as_str).collect::<Vec<_>>());
        rig.spend(Check { policy: &raised, ..check });
    };
    for quotas in FORMS {
        for again in [refund as fn(&Rig, Check<'_>), raise] {
            let (rig, policy) = (Rig::new(20 * 175), policy(quotas));
            let denied = rig.fill_with_denied(&policy);
            let limit = policy.quotas()[0].capacity();
            // Known to be denied by now, all of them.
            rig.spend(policy.key("new").cost(limit));
            let left = |key: &String| rig.used(policy.key(key)) > 0;
            let idle: Vec<&String> = denied.iter().filter(|key| left(key)).step_by(700).collect();
            assert_eq!(idle.len(), 5);
            for (number, key) in idle.iter().enumerate() {
                again(&rig, policy.key(key));
                rig.spend(policy.key(&format!("new {number}")).cost(limit));
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

/// What is to be seen of all keys that have ever asked. Those that count nothing are removed by the look.
struct Seen {
    denied: Vec<usize>,
    /// How many count something and are not denied.
    idle: usize,
}

/// Some keys for each of several policies.
struct Crowd {
    rig: Rig,
    keys: Vec<(Policy, String)>,
}

impl Crowd {
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
        Self { rig: Rig::new(2 * 175), keys: keys.collect() }
    }

    fn key(&self, number: usize) -> Check<'_> {
        let (policy, key) = &self.keys[number];
        policy.key(key)
    }

    /// Whether anything is counted, and whether it is denied.
    fn look_at(&self, number: usize) -> (bool, bool) {
        let peeked = self.rig.limiter.peek_now(self.key(number)).unwrap();
        (peeked.quotas().iter().any(|report| report.used > 0), peeked.remaining() == 0)
    }

    fn look(&self) -> Seen {
        let mut seen = Seen { denied: Vec::new(), idle: 0 };
        for number in 0..self.keys.len() {
            let (is_counted, is_denied) = self.look_at(number);
            if is_denied {
                seen.denied.push(number);
            } else {
                seen.idle += usize::from(is_counted);
            }
        }
        seen
    }

    fn take_a_step(&self, number: usize, random: &mut Random) {
        let (limiter, check) = (&self.rig.limiter, self.key(number));
        let all = check.policy.quotas().iter().map(Quota::capacity).min().unwrap();
        match random.below(100) {
            0 => drop(limiter.refund_now(check).unwrap()),
            1 => drop(limiter.reset_now(check).unwrap()),
            2 => self.rig.clock.advance(random.below(MINUTE)),
            3..10 => drop(limiter.check_now(check).unwrap()),
            _ => drop(limiter.check_now(check.cost(all)).unwrap()),
        }
    }
}

/// Nearly all are denied, by one limit or another, while all happens that makes keys idle and denied again.
#[test]
fn at_no_time_is_anybody_evicted_who_is_denied_while_another_can_go() {
    let (mut evictions, mut of_denied) = (0, 0);
    for seed in 1..=4_u64 {
        let (crowd, mut random) = (Crowd::new(), Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed)));
        for step in 0..1800 {
            let number = usize::try_from(random.below(crowd.keys.len() as u64)).unwrap();
            // Until the table is full nobody goes.
            let (before, evicted) = ((step > 800).then(|| crowd.look()), crowd.rig.evicted());
            crowd.take_a_step(number, &mut random);
            let Some(before) = before.filter(|_| crowd.rig.evicted() > evicted) else { continue };
            evictions += 1;
            let is_gone = |other: &&usize| **other != number && !crowd.look_at(**other).0;
            let gone = before.denied.iter().filter(is_gone).count();
            if gone > 0 {
                of_denied += 1;
                assert_eq!((gone, before.idle), (1, 0), "seed {seed}, step {step}");
            }
        }
    }
    assert!(evictions > 500 && of_denied > 100, "{evictions} evictions, {of_denied} of denied ones");
}
