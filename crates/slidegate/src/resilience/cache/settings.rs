//! How large a cache of denials is, and how old they become.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use slidegate_core::Policy;

use super::DeniedCache;
use super::denial::Ages;
use super::table::Table;
use crate::clock::Clock;

const DEFAULT_CAPACITY: usize = 65_536;
const MAX_CAPACITY: usize = 1 << 24;
/// A tenth of a second less than a second, for the way: what another node has given back counts here within one.
const DEFAULT_MAX_AGE: Duration = Duration::from_millis(900);
/// In longer times two clocks drift apart by more than a millisecond.
const LONGEST_MAX_AGE: Duration = Duration::from_secs(10);

/// A [`DeniedCache`] to be.
#[derive(Clone, Debug)]
pub struct DeniedCacheBuilder<S, C> {
    store: S,
    clock: C,
    capacity: usize,
    max_age: Duration,
    max_age_if_told: Duration,
    remembered: Remembered,
}

/// Whose denials are remembered.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    by_policy: HashMap<String, bool>,
    others: bool,
}

impl Remembered {
    pub(super) fn includes(&self, policy: &Policy) -> bool {
        // One that was made of quotas in a request has no name by which it could be meant.
        if self.by_policy.is_empty() || policy.is_anonymous() {
            return self.others;
        }
        self.by_policy.get(policy.name()).copied().unwrap_or(self.others)
    }
}

impl<S, C> DeniedCacheBuilder<S, C> {
    pub(super) fn new(store: S, clock: C) -> Self {
        let remembered = Remembered { by_policy: HashMap::new(), others: true };
        Self {
            store,
            clock,
            capacity: DEFAULT_CAPACITY,
            max_age: DEFAULT_MAX_AGE,
            max_age_if_told: LONGEST_MAX_AGE,
            remembered,
        }
    }

    /// How many denials are remembered at the most: 1 to 2^24, 65,536 unless told otherwise. Each takes 24 bytes from
    /// the start and up to 192 more while it is there; if its policy has as many quotas as there may be, 1.5 KB more.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// How long a denial is remembered while the store does not know for sure what other nodes give back, in whole
    /// milliseconds: 1 ms to 10 s, 900 ms unless told otherwise. So long may it take then until a refund, a reset or a
    /// raised limit on another node is noticed by this one.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// How long a denial is remembered while the store tells what other nodes give back: 1 ms to 10 s, 10 s unless told
    /// otherwise. So long may it take until it is noticed what nobody tells: a store that is emptied by hand, or evicts a
    /// key, or whose clock is set.
    pub fn max_age_if_told(mut self, max_age: Duration) -> Self {
        self.max_age_if_told = max_age;
        self
    }

    /// Whether denials under the policy called `name` are remembered.
    pub fn policy(mut self, name: &str, is_remembered: bool) -> Self {
        self.remembered.by_policy.insert(name.to_owned(), is_remembered);
        self
    }

    /// Whether denials under all other policies are remembered. They are unless told otherwise.
    pub fn other_policies(mut self, are_remembered: bool) -> Self {
        self.remembered.others = are_remembered;
        self
    }

    /// The clock by which denials age: one that is true to the millisecond and does not step.
    pub fn clock<D: Clock>(self, clock: D) -> DeniedCacheBuilder<S, D> {
        let Self { store, capacity, max_age, max_age_if_told, remembered, .. } = self;
        DeniedCacheBuilder { store, clock, capacity, max_age, max_age_if_told, remembered }
    }

    /// Makes the cache, or says which setting is out of range.
    pub fn build(self) -> Result<DeniedCache<S, C>, CacheSettingsError> {
        let (capacity, max_age) = (self.capacity, self.max_age);
        if !(1..=MAX_CAPACITY).contains(&capacity) {
            let message = format!("{capacity} is not between 1 and 2^24 ({MAX_CAPACITY})");
            return Err(CacheSettingsError { field: "capacity", message });
        }
        for (field, age) in [("max_age", max_age), ("max_age_if_told", self.max_age_if_told)] {
            let is_whole = age.subsec_nanos().is_multiple_of(1_000_000);
            if age.is_zero() || age > LONGEST_MAX_AGE || !is_whole {
                let message = format!(
                    "{age:?} is not a whole number of milliseconds between 1 ms and {LONGEST_MAX_AGE:?}"
                );
                return Err(CacheSettingsError { field, message });
            }
        }
        Ok(self.build_valid())
    }

    /// Makes the cache of settings that are known to be in range.
    pub(super) fn build_valid(self) -> DeniedCache<S, C> {
        let Self { store, clock, capacity, max_age, max_age_if_told, remembered } = self;
        let [blind_ms, most_ms] = [max_age, max_age_if_told].map(|age| age.as_millis() as u64);
        let ages = Ages { blind_ms, most_ms };
        DeniedCache { store, clock, table: Table::new(capacity), ages, remembered }
    }
}

/// Why a cache was not made: the setting, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettingsError {
    field: &'static str,
    message: String,
}

impl CacheSettingsError {
    /// The setting that was refused.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What was wrong with it and what is allowed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for CacheSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for CacheSettingsError {}
