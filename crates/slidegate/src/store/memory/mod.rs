//! Store in the memory of this process.

mod atomics;
mod bucket;
mod cache_lines;
mod eviction;
mod eviction_rank;
mod hash;
mod layout;
mod layout_registry;
mod locked;
#[cfg(slidegate_loom)]
mod model;
mod page;
mod policy_salts;
mod request;
mod settings;
mod slots;
mod spin_backoff;
mod table;
mod wide;
mod word;

use std::fmt;

use slidegate_core::{Decision, Policy};

pub use settings::WhenFull;

use self::settings::Settings;
use self::slots::KeyId;
use self::table::Table;
pub(crate) use self::table::{Binding, SlowPathResult};
use super::{Operation, Responses, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::{SettingsError, StoreError};

/// Operations whose memory is prefetched together.
const PREFETCH_GROUP: usize = 16;

/// Store in memory: fast, bounded, and lost when the process ends.
///
/// **Bounded.** The store holds at most `max_keys` keys, by default one million, in a table of 24 bytes per key. It
/// uses at most `max_bytes`, by default 256 bytes per key (at least 64 MiB) in addition to the table. The operating
/// system provides memory as it is first used. Address space of the table's size is reserved for counters that do not
/// fit into the table; a system without memory overcommit counts it as used. The table never grows, moves or rehashes,
/// so it never pauses. A new key in a full table is handled as [`WhenFull`] defines. Each access to a page removes
/// expired keys from it, so there is no background thread.
///
/// **Safe against hostile keys.** Each store draws its own seeds to hash keys. A key is identified by 63 bits of hash
/// in addition to its position, so a new key shares another's counter with a probability of at most 2^-55. The store
/// does not keep the keys themselves, so long keys need no more memory than short ones.
///
/// **Atomic.** A request for a single sliding or fixed window changes one word, by compare-and-swap and without a lock;
/// a denial writes nothing. Everything else is decided under a lock of one of many pages.
///
/// ```
/// use slidegate::{ManualClock, Policy};
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// let store = MemoryStore::builder().max_keys(10_000).clock(ManualClock::at(0)).build()?;
/// let limiter = StoreLimiter::new(store);
/// let policy = Policy::parse("login", ["5/15m"])?;
/// assert!(limiter.check_now(policy.key("10.0.0.1"))?.is_allowed());
/// assert_eq!(limiter.store().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryStore<C = SystemClock> {
    table: Table,
    clock: C,
}

impl MemoryStore {
    /// Creates a store of the default size that uses the system clock.
    pub fn new() -> Self {
        Self { table: Table::new(Settings::default()), clock: SystemClock::default() }
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { settings: Settings::default(), clock: SystemClock::default() }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Executes one operation synchronously.
    #[inline(always)]
    pub fn execute_now(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let Operation { verb, check } = operation;
        // The hash comes first: of all intermediate values it is the smallest to keep across the clock call.
        let hash = self.table.hash(&check);
        let now_ms = self.clock.now_ms();
        self.table.execute(check.policy, self.table.id(hash), verb, now_ms, check.cost, &self.clock)
    }

    pub(crate) fn bind(&self, policy: &Policy) -> Binding {
        self.table.bind(policy, self.clock.now_ms())
    }

    /// Checks `key` under the bound policy.
    #[inline(always)]
    pub(crate) fn check_bound(
        &self,
        policy: &Policy,
        binding: &Binding,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let hash = self.table.hash_bound(policy, binding, key);
        // The hash comes first: of all intermediate values it is the smallest to keep across the clock call.
        let now_ms = self.clock.now_ms();
        self.table.check_bound(policy, binding, self.table.id(hash), now_ms, cost, &self.clock)
    }

    /// Checks `keys` under the bound policy and passes each result to `each`.
    #[inline(always)]
    pub(crate) fn check_each_bound<'k, K: AsRef<[u8]>>(
        &self,
        policy: &Policy,
        binding: &Binding,
        keys: &'k [K],
        cost: u64,
        mut each: impl FnMut(&'k K, Result<Decision, StoreError>),
    ) {
        let mut ids = [KeyId::default(); PREFETCH_GROUP];
        for group in keys.chunks(PREFETCH_GROUP) {
            for (id, key) in ids.iter_mut().zip(group) {
                *id = self.table.id(self.table.hash_bound(policy, binding, key.as_ref()));
                self.table.prefetch(policy, *id);
            }
            let now_ms = self.clock.now_ms();
            for (id, key) in ids.iter().zip(group) {
                each(key, self.table.check_bound(policy, binding, *id, now_ms, cost, &self.clock));
            }
        }
    }

    /// Executes many operations synchronously.
    pub fn execute_many_now(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut results = Vec::with_capacity(operations.len());
        let mut ids = [KeyId::default(); PREFETCH_GROUP];
        for group in operations.chunks(PREFETCH_GROUP) {
            for (id, operation) in ids.iter_mut().zip(group) {
                *id = self.table.id(self.table.hash(&operation.check));
                self.table.prefetch(operation.check.policy, *id);
            }
            let now_ms = self.clock.now_ms();
            let decide = |(id, operation): (&KeyId, &Operation<'_>)| {
                let Operation { verb, check } = *operation;
                self.table.execute(check.policy, *id, verb, now_ms, check.cost, &self.clock)
            };
            results.extend(ids.iter().zip(group).map(decide));
        }
        results
    }

    /// Resets all keys of the policy's name. A check that begins after the call finds an empty key.
    ///
    /// The slots of these keys are freed when their counts expire or a new key needs them; until then
    /// [`len`](Self::len) includes them. Returns an error if the keys of 4096 other policies were reset before.
    pub fn forget_now(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.table.forget(policy).map(|()| None)
    }

    /// Returns the number of keys, including expired ones that have not been removed yet.
    pub fn len(&self) -> usize {
        self.table.keys()
    }

    /// Returns whether the store holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the largest number of keys.
    pub fn max_keys(&self) -> usize {
        self.table.settings.max_keys
    }

    /// Returns the bytes in use: the whole table, and the memory outside it.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Returns the limit of bytes. Allocations by several threads at the same moment may exceed it.
    pub fn max_bytes(&self) -> usize {
        self.table.settings.max_bytes()
    }

    /// Returns the number of keys evicted although their counts had not expired. If it grows, `max_keys` is too small
    /// or a client floods the store with keys.
    pub fn evicted(&self) -> u64 {
        self.table.evicted()
    }
}

/// Computes the reports of each decision at once: callers of the trait read them, and more than once.
impl<C: Clock> Store for MemoryStore<C> {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        match operations {
            [operation] => self.execute_now(*operation).map(Decision::with_reports).into(),
            many => {
                let results = self.execute_many_now(many).into_iter();
                results.map(|result| result.map(Decision::with_reports)).collect()
            }
        }
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.forget_now(policy)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("settings", &self.table.settings).finish_non_exhaustive()
    }
}

/// Builder of a [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder<C = SystemClock> {
    settings: Settings,
    clock: C,
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// Sets the largest number of keys: 1 to 2^31, by default one million.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys;
        self
    }

    /// Sets the limit of bytes, for the table and the memory outside it. By default 256 bytes per key, at least 64 MiB,
    /// in addition to the table.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.settings.set_max_bytes(max_bytes);
        self
    }

    /// Sets the behaviour when a new key comes and the store is full.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.settings.when_full = when_full;
        self
    }

    /// Sets the clock.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder { settings: self.settings, clock }
    }

    /// Checks the settings without building a store. Returns the first that is out of range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.settings.check()
    }

    /// Builds the store. Returns the first setting that is out of range.
    pub fn build(self) -> Result<MemoryStore<C>, SettingsError> {
        self.settings.check()?;
        self.settings.try_memory()?;
        Ok(MemoryStore { table: Table::new(self.settings), clock: self.clock })
    }
}
