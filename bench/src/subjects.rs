//! Limiters under test behind one small trait, each with its own clock, as in production.
#![expect(clippy::ptr_arg, reason = "governor looks keys up by reference to the type that it keeps")]

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use foldhash::quality::RandomState;
use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota, RateLimiter};
use slidegate::{Clock, Limiter, SystemClock};
use std::hash::BuildHasher;
use throttlecrab::{PeriodicStore, RateLimiter as Crab};

/// Limit of the policy under test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// More than any run can spend.
    Ample,
    /// 1,000 per hour for each key.
    Usual,
    /// One per hour, so that nearly every check is denied.
    One,
}

pub(crate) trait Subject: Sync {
    const NAME: &'static str;
    fn new(limit: Limit, keys: usize) -> Self;
    fn check(&self, key: &String) -> bool;
    /// Checks 16 keys. Only some limiters do that faster than one by one.
    fn check_16(&self, keys: &[&String; 16]) -> usize {
        keys.iter().filter(|key| self.check(key)).count()
    }
}

/// Limiter of one policy, like governor's limiter to its quota.
pub(crate) struct Slidegate(Limiter);

impl Subject for Slidegate {
    const NAME: &'static str = "slidegate";

    fn new(limit: Limit, keys: usize) -> Self {
        let quota = match limit {
            Limit::Ample => "1000000000000/1h",
            Limit::Usual => "1000/1h",
            Limit::One => "1/1h",
        };
        let builder = Limiter::builder("api").quotas([quota]).max_keys(keys).max_bytes(1 << 32);
        Self(builder.in_memory().expect("a valid size and a valid quota"))
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check_now(key).is_ok_and(|decision| decision.is_allowed())
    }

    fn check_16(&self, keys: &[&String; 16]) -> usize {
        let mut allowed = 0;
        self.0.check_each_now(keys, |_, decision| {
            allowed += usize::from(decision.is_ok_and(|decision| decision.is_allowed()));
        });
        allowed
    }
}

/// [`Slidegate`] with all numbers of the decision computed for the caller.
pub(crate) struct AllNumbers(Slidegate);

impl Subject for AllNumbers {
    const NAME: &'static str = "slidegate, with all numbers";

    fn new(limit: Limit, keys: usize) -> Self {
        Self(Slidegate::new(limit, keys))
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let Ok(decision) = self.0.0.check_now(key) else { return false };
        std::hint::black_box(decision.tightest());
        decision.is_allowed()
    }
}

pub(crate) struct Governor(DefaultKeyedRateLimiter<String>);

impl Subject for Governor {
    const NAME: &'static str = "governor";

    fn new(limit: Limit, _keys: usize) -> Self {
        let number = |n| NonZeroU32::new(n).expect("not zero");
        let quota = match limit {
            Limit::Ample => GovernorQuota::per_second(number(1_000_000_000)),
            Limit::Usual => GovernorQuota::per_hour(number(1000)),
            Limit::One => GovernorQuota::with_period(Duration::from_hours(1)).expect("not zero"),
        };
        Self(RateLimiter::keyed(quota))
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

pub(crate) struct Throttlecrab {
    limiter: Mutex<Crab<PeriodicStore>>,
    burst: i64,
    count: i64,
    period_s: i64,
}

impl Subject for Throttlecrab {
    const NAME: &'static str = "throttlecrab";

    fn new(limit: Limit, keys: usize) -> Self {
        let (burst, count, period_s) = match limit {
            Limit::Ample => (1_000_000_000, 1_000_000_000, 1),
            Limit::Usual => (1000, 1000, 3600),
            Limit::One => (1, 1, 3600),
        };
        let limiter = Mutex::new(Crab::new(PeriodicStore::with_capacity(keys)));
        Self { limiter, burst, count, period_s }
    }

    #[inline(always)]
    #[expect(clippy::disallowed_methods, reason = "its users pass the time in")]
    fn check(&self, key: &String) -> bool {
        let mut limiter = self.limiter.lock().expect("not poisoned");
        let outcome = limiter.rate_limit(key, self.burst, self.count, self.period_s, 1, SystemTime::now());
        outcome.is_ok_and(|(is_allowed, _)| is_allowed)
    }
}

/// Lower bound: hash, probe, one update. No clock, no decision, no growth.
pub(crate) struct Bare {
    slots: Box<[[AtomicU64; 2]]>,
    hasher: RandomState,
}

impl Subject for Bare {
    const NAME: &'static str = "bare";

    fn new(_limit: Limit, keys: usize) -> Self {
        let slots = (keys * 3 / 2).next_power_of_two().max(16);
        Self { slots: (0..slots).map(|_| Default::default()).collect(), hasher: RandomState::default() }
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let hash = self.hasher.hash_one(key) | 1;
        let mask = self.slots.len() - 1;
        let mut at = (hash >> 20) as usize & mask;
        loop {
            let [tag, count] = &self.slots[at];
            let found = match tag.load(Ordering::Relaxed) {
                0 => match tag.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => hash,
                    Err(other) => other,
                },
                other => other,
            };
            if found == hash {
                return count.fetch_add(1, Ordering::Relaxed) < u64::MAX;
            }
            at = (at + 1) & mask;
        }
    }
}

/// [`Bare`] plus a reading of the coarse clock. The difference to Slidegate is the decision and the eviction of keys.
pub(crate) struct Clocked(Bare, SystemClock);

impl Subject for Clocked {
    const NAME: &'static str = "bare with a clock";

    fn new(limit: Limit, keys: usize) -> Self {
        Self(Bare::new(limit, keys), SystemClock::default())
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.1.now_ms() > 0 && self.0.check(key)
    }
}
