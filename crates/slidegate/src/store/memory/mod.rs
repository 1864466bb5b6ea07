//! The store in this process's memory.

mod asked;
mod atomics;
mod barren;
mod bucket;
mod forgotten;
mod giving_up;
mod hash;
mod layout;
mod layouts;
mod lines;
mod locked;
#[cfg(slidegate_loom)]
mod model;
mod page;
mod record;
mod room;
mod settings;
mod slots;
mod table;
mod turns;
mod wide;
mod word;

use std::fmt;

use slidegate_core::{Check, Decision, Policy};

pub use settings::{SettingsError, WhenFull};

use self::settings::Settings;
use self::slots::KeyId;
pub(crate) use self::table::Binding;
use self::table::Table;
use super::{Operation, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// How many operations have their memory fetched together.
const FETCHED_TOGETHER: usize = 16;

/// Counts in memory: fast, bounded, and gone with the process.
///
/// **Bounded.** It holds at most `max_keys` keys (one million unless told otherwise) in a table of 24 bytes for each of
/// them, and `max_bytes` in all (256 bytes for each key, and at least 64 MiB, more than the table, unless told otherwise). The operating system
/// provides it as it is touched. As much address space again is reserved for counters that do not fit into the table, and
/// touched by these alone; where memory has to be promised in advance, that counts too. Nothing grows, moves or is rehashed,
/// so there is no pause. A new key in a full table takes another one's place as [`WhenFull`] says; keys that count nothing
/// any more are removed in passing, without a thread.
///
/// **Safe against hostile keys.** Keys are hashed with seeds drawn for each store; two keys are told apart by 63
/// bits of hash besides the place, so a new one meets another's counter with a probability of at most 2^-55. The keys themselves
/// are not kept, and a long one takes no more room than a short one.
///
/// **Atomic.** What changes with a request of a single sliding or fixed window is in one word and is decided by
/// compare-and-swap, without a lock and, if denied, without a write. Everything else is decided under the lock
/// of one of many pages.
///
/// ```
/// use slidegate::{Limiter, ManualClock, MemoryStore, Policy};
///
/// let store = MemoryStore::builder().max_keys(10_000).clock(ManualClock::at(0)).build()?;
/// let limiter = Limiter::new(store);
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
    /// A store of the default size on the system's clock.
    pub fn new() -> Self {
        Self { table: Table::new(Settings::default()), clock: SystemClock::default() }
    }

    /// A store to be sized.
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
    /// Executes one operation, at once.
    #[inline(always)]
    pub fn execute_now(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let Operation { verb, check } = operation;
        // The least to keep while the clock is asked is a hash.
        let hash = self.table.hash(&check);
        let now_ms = self.clock.now_ms();
        self.table.execute(check.policy, self.table.id(hash), verb, now_ms, check.cost, &self.clock)
    }

    pub(crate) fn bind(&self, policy: &Policy) -> Binding {
        self.table.bind(policy, self.clock.now_ms())
    }

    /// Checks `key` under the policy that was bound.
    #[inline(always)]
    pub(crate) fn check_bound(
        &self,
        policy: &Policy,
        binding: &Binding,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let hash = self.table.hash_bound(policy, binding, key);
        // The least to keep while the clock is asked is a hash.
        let now_ms = self.clock.now_ms();
        self.table.check_bound(policy, binding, self.table.id(hash), now_ms, cost, &self.clock)
    }

    /// Checks `keys` under the policy that was bound, and shows `each` what came of it.
    #[inline(always)]
    pub(crate) fn check_each_bound<'k, K: AsRef<[u8]>>(
        &self,
        policy: &Policy,
        binding: &Binding,
        keys: &'k [K],
        cost: u64,
        mut each: impl FnMut(&'k K, Result<Decision, StoreError>),
    ) {
        let mut ids = [KeyId::default(); FETCHED_TOGETHER];
        for group in keys.chunks(FETCHED_TOGETHER) {
            for (id, key) in ids.iter_mut().zip(group) {
                *id = self.table.id(self.table.hash_bound(policy, binding, key.as_ref()));
                self.table.touch(policy, *id);
            }
            let now_ms = self.clock.now_ms();
            for (id, key) in ids.iter().zip(group) {
                each(key, self.table.check_bound(policy, binding, *id, now_ms, cost, &self.clock));
            }
        }
    }

    /// Executes many, at once.
    pub fn execute_many_now(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let mut answers = Vec::with_capacity(operations.len());
        let mut ids = [KeyId::default(); FETCHED_TOGETHER];
        for group in operations.chunks(FETCHED_TOGETHER) {
            for (id, operation) in ids.iter_mut().zip(group) {
                *id = self.table.id(self.table.hash(&operation.check));
                self.table.touch(operation.check.policy, *id);
            }
            let now_ms = self.clock.now_ms();
            let decide = |(id, operation): (&KeyId, &Operation<'_>)| {
                let Operation { verb, check } = *operation;
                self.table.execute(check.policy, *id, verb, now_ms, check.cost, &self.clock)
            };
            answers.extend(ids.iter().zip(group).map(decide));
        }
        answers
    }

    /// Forgets what all keys have spent under the policy's name, at once. A check that begins afterwards finds an empty key.
    ///
    /// The places of these keys are vacated as soon as they would count nothing any more, or a new key needs one, and are
    /// counted by [`len`](Self::len) until then. An error if the keys of 4096 other policies were forgotten before.
    pub fn forget_now(&self, policy: &Policy) -> Result<(), StoreError> {
        self.table.forget(policy)
    }

    /// How many keys it holds, those included that count nothing any more and have not been removed yet.
    pub fn len(&self) -> usize {
        self.table.keys()
    }

    /// Whether it holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most keys that it will hold.
    pub fn max_keys(&self) -> usize {
        self.table.settings.max_keys
    }

    /// The memory that it may have touched: the whole table, and what is kept beside it.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The most memory that it will take, but for what threads add at the very same moment.
    pub fn max_bytes(&self) -> usize {
        self.table.settings.max_bytes()
    }

    /// How many keys have been evicted for others although they counted something. If this grows, `max_keys` is
    /// too small or somebody floods it.
    pub fn evicted(&self) -> u64 {
        self.table.evicted()
    }
}

/// Whoever has any store is about to tell somebody the numbers, and more than once: they are worked out.
impl<C: Clock> Store for MemoryStore<C> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        self.execute_now(operation).map(Decision::worked_out)
    }

    fn execute_at_once(&self, operation: Operation<'_>) -> Option<Result<Decision, StoreError>> {
        Some(self.execute_now(operation).map(Decision::worked_out))
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let answers = self.execute_many_now(operations);
        answers.into_iter().map(|answer| answer.map(Decision::worked_out)).collect()
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.forget_now(policy).map(|()| None)
    }

    #[inline]
    fn announce(&self, check: &Check<'_>) {
        let id = self.table.id(self.table.hash(check));
        self.table.touch(check.policy, id);
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("settings", &self.table.settings).finish_non_exhaustive()
    }
}

/// A [`MemoryStore`] to be.
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder<C = SystemClock> {
    settings: Settings,
    clock: C,
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// The most keys to hold: 1 to 2^31, one million unless told otherwise.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys;
        self
    }

    /// The most memory to take: the table and what is kept beside it. Unless told otherwise, 256 bytes for
    /// each key, and at least 64 MiB, more than the table.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.settings.set_max_bytes(max_bytes);
        self
    }

    /// What happens to a new key when there is room for no more.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.settings.when_full = when_full;
        self
    }

    /// The clock to decide by.
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder { settings: self.settings, clock }
    }

    /// Whether [`build`](Self::build) would make a store; else which setting is out of range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.settings.check()
    }

    /// Makes the store, or says which setting is out of range.
    pub fn build(self) -> Result<MemoryStore<C>, SettingsError> {
        self.settings.check()?;
        self.settings.try_memory()?;
        Ok(MemoryStore { table: Table::new(self.settings), clock: self.clock })
    }
}
