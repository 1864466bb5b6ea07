//! Settings of the denial cache: capacity, maximum ages and cached policies.

use std::collections::HashMap;
use std::time::Duration;

use slidegate_core::Policy;

use super::DeniedCache;
use super::denial::MaxAges;
use super::table::Table;
use crate::clock::Clock;
use crate::error::SettingsError;

const DEFAULT_CAPACITY: usize = 65_536;
const MAX_CAPACITY: usize = 1 << 24;
/// Invalidations of other nodes take effect within one second; the remaining 100 ms are for the transport.
const DEFAULT_MAX_AGE: Duration = Duration::from_millis(900);
/// Over longer times two clocks drift apart by more than a millisecond.
const MAX_AGE_LIMIT: Duration = Duration::from_secs(10);

/// Builder of a [`DeniedCache`].
#[derive(Clone, Debug)]
pub struct DeniedCacheBuilder<S, C> {
    store: S,
    clock: C,
    capacity: usize,
    max_age: Duration,
    max_confirmed_age: Duration,
    policies: CachedPolicies,
}

/// Policies whose denials are cached.
#[derive(Clone, Debug)]
pub(super) struct CachedPolicies {
    by_policy: HashMap<String, bool>,
    others: bool,
}

impl CachedPolicies {
    pub(super) fn includes(&self, policy: &Policy) -> bool {
        // An anonymous policy, made of quotas in a request, has no name to look up.
        if self.by_policy.is_empty() || policy.is_anonymous() {
            return self.others;
        }
        self.by_policy.get(policy.name()).copied().unwrap_or(self.others)
    }
}

impl<S, C> DeniedCacheBuilder<S, C> {
    pub(super) fn new(store: S, clock: C) -> Self {
        let policies = CachedPolicies { by_policy: HashMap::new(), others: true };
        Self {
            store,
            clock,
            capacity: DEFAULT_CAPACITY,
            max_age: DEFAULT_MAX_AGE,
            max_confirmed_age: MAX_AGE_LIMIT,
            policies,
        }
    }

    /// Sets the maximum number of cached denials: 1 to 2^24, 65,536 by default. Each takes 24 bytes from the start and
    /// up to 192 more while it is stored; a policy with the maximum number of quotas takes another 1.5 KB.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the maximum age of a denial while the store cannot confirm that other nodes invalidated nothing: 1 ms to 10
    /// s in whole milliseconds, 900 ms by default. Up to this time passes then until a refund, a reset or a raised
    /// limit of another node takes effect here.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Sets the maximum age of a denial while the store's invalidation feed confirms that other nodes invalidated
    /// nothing: 1 ms to 10 s in whole milliseconds, 10 s by default. Up to this time passes until an event that no feed
    /// reports takes effect: a store that is emptied by hand, evicts a key, or whose clock is set.
    pub fn max_confirmed_age(mut self, max_age: Duration) -> Self {
        self.max_confirmed_age = max_age;
        self
    }

    /// Sets whether denials of the policy called `name` are cached.
    pub fn policy(mut self, name: &str, is_cached: bool) -> Self {
        self.policies.by_policy.insert(name.to_owned(), is_cached);
        self
    }

    /// Sets whether denials of all other policies are cached, `true` by default.
    pub fn other_policies(mut self, are_cached: bool) -> Self {
        self.policies.others = are_cached;
        self
    }

    /// Sets the clock by which denials age. It must be accurate to the millisecond and monotonic.
    pub fn clock<D: Clock>(self, clock: D) -> DeniedCacheBuilder<S, D> {
        let Self { store, capacity, max_age, max_confirmed_age, policies, .. } = self;
        DeniedCacheBuilder { store, clock, capacity, max_age, max_confirmed_age, policies }
    }

    /// Builds the cache, or returns the setting that is out of range.
    pub fn build(self) -> Result<DeniedCache<S, C>, SettingsError> {
        let (capacity, max_age) = (self.capacity, self.max_age);
        if !(1..=MAX_CAPACITY).contains(&capacity) {
            let message = format!("{capacity} is not between 1 and 2^24 ({MAX_CAPACITY})");
            return Err(SettingsError::new("capacity", message));
        }
        for (field, age) in [("max_age", max_age), ("max_confirmed_age", self.max_confirmed_age)] {
            let is_whole = age.subsec_nanos().is_multiple_of(1_000_000);
            if age.is_zero() || age > MAX_AGE_LIMIT || !is_whole {
                let message = format!(
                    "{age:?} is not a whole number of milliseconds between 1 ms and {MAX_AGE_LIMIT:?}"
                );
                return Err(SettingsError::new(field, message));
            }
        }
        Ok(self.build_valid())
    }

    /// Builds the cache without a check of the settings.
    pub(super) fn build_valid(self) -> DeniedCache<S, C> {
        let Self { store, clock, capacity, max_age, max_confirmed_age, policies } = self;
        let [unconfirmed_ms, confirmed_ms] = [max_age, max_confirmed_age].map(|age| age.as_millis() as u64);
        let max_ages = MaxAges { unconfirmed_ms, confirmed_ms };
        DeniedCache { store, clock, table: Table::new(capacity), max_ages, policies }
    }
}
