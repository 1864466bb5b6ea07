//! Cache of denials: until a denial expires, requests of its key need no round trip to the store.

mod denial;
mod invalidation;
mod metrics;
mod settings;
mod table;

use std::collections::HashSet;
use std::fmt;

use slidegate_core::{Decision, Policy, Verb};

pub use settings::DeniedCacheBuilder;

use self::denial::{Denial, MaxAges, RoundTrip};
use self::invalidation::{KeyInvalidation, PolicyInvalidation, invalidation_reason};
use self::metrics::DropReason;
use self::settings::CachedPolicies;
use self::table::{Epoch, Found, KeyHash, Table};
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::StoreLayer;
use crate::store::invalidation::FeedVersion;
use crate::store::responses::{Responses, missing_response};
use crate::store::{Operation, Store};

/// A store that caches denials, so that a client which keeps exceeding its limit puts no load on the store below.
///
/// **Exact.** The cache denies only what the store would deny, provided that the store's clock is accurate to the
/// millisecond, as those of Redis and PostgreSQL are. Over a coarse clock (a [`MemoryStore`](crate::store::MemoryStore) on the
/// [`SystemClock`](crate::SystemClock)) a denial may expire one tick late. A decision from the cache has
/// [`Source::Cache`](crate::Source::Cache). Its used and remaining counts are those at the time of the denial; its
/// retry times keep counting down. A request that costs more than the cached one gets the same retry time, which may be
/// too short for it.
///
/// **Up to date.** A refund, a reset, a policy reset or changed quotas take effect at once if they pass through
/// this cache, and within one second if they come from another node: Redis publishes them to all subscribers, and
/// PostgreSQL is polled five times a second. Over such a store a denial is cached for up to ten seconds. Over other
/// stores, on a Redis cluster, and while the invalidation feed is interrupted, it is cached for at most `max_age`. A
/// refund whose response is lost or abandoned may take effect later; it is then treated like one of another node.
///
/// **Bounded.** The cache holds at most `capacity` denials. It stores hashes of keys, never the keys.
///
/// Counters of the `metrics` facade: `slidegate_denied_cache_hits_total`, `slidegate_denied_cache_stored_total` and
/// `slidegate_denied_cache_dropped_total` with the `reason` `refund`, `reset`, `forget`, `limits` or `spent` (a smaller
/// cost was allowed).
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::DeniedCache;
/// use slidegate::{ManualClock, Policy, Source};
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::at(0);
/// let store = MemoryStore::builder().clock(clock.clone()).build()?;
/// let cache = DeniedCache::builder(store).capacity(10_000).max_age(Duration::from_millis(500)).clock(clock.clone());
/// let limiter = StoreLimiter::new(cache.build()?);
/// let policy = Policy::parse("login", ["1/1s fixed-window"])?;
///
/// assert!(limiter.check(policy.key("10.0.0.1")).await?.is_allowed());
/// assert_eq!(limiter.check(policy.key("10.0.0.1")).await?.source(), Source::Store);
/// clock.advance(400);
/// let denied = limiter.check(policy.key("10.0.0.1")).await?;
/// assert_eq!((denied.source(), denied.retry_after_ms()), (Source::Cache, Some(600)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeniedCache<S, C = PreciseClock> {
    store: S,
    clock: C,
    table: Table,
    max_ages: MaxAges,
    policies: CachedPolicies,
}

impl<S> DeniedCache<S> {
    /// Wraps `store` with a cache of default settings.
    pub fn new(store: S) -> Self {
        Self::builder(store).build_valid()
    }

    /// Returns a builder of a cache over `store`.
    pub fn builder(store: S) -> DeniedCacheBuilder<S, PreciseClock> {
        DeniedCacheBuilder::new(store, PreciseClock::default())
    }
}

impl<S, C> DeniedCache<S, C> {
    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the number of denials held, including expired ones that have not been replaced.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the cache holds no denial.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of denials.
    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }
}

/// Context of a request that goes to the store.
#[derive(Debug)]
struct CacheMiss {
    key_hash: KeyHash,
    epoch: Epoch,
    version: Option<FeedVersion>,
    sent_at_ms: u64,
}

/// Outcome of a cache lookup.
#[derive(Debug)]
enum Lookup {
    Hit(Decision),
    Miss(CacheMiss),
}

impl<S: Store, C: Clock> DeniedCache<S, C> {
    /// Looks an operation up. With `is_bypassed` the result is always a miss.
    fn look_up(&self, operation: &Operation<'_>, key_hash: KeyHash, is_bypassed: bool) -> Lookup {
        let check = &operation.check;
        // The store counts a charge even if it denies it.
        let is_bypassed = is_bypassed || !operation.verb.is_check_or_peek();
        let sent_at_ms = self.clock.now_ms();
        let Found { denial, epoch } = self.table.find(key_hash, check, sent_at_ms);
        match denial {
            Some(decision) if !is_bypassed => {
                metrics::count_hit();
                Lookup::Hit(decision)
            }
            _ if self.policies.includes(check.policy) => Lookup::Miss(CacheMiss {
                key_hash,
                epoch,
                version: self.store.feed_version(check),
                sent_at_ms,
            }),
            _ => Lookup::Miss(CacheMiss { key_hash, epoch, version: None, sent_at_ms }),
        }
    }

    /// Updates the table with the store's response.
    fn update(&self, miss: &CacheMiss, operation: &Operation<'_>, response: &Result<Decision, StoreError>) {
        let Ok(decision) = response else { return };
        let check = &operation.check;
        if !self.policies.includes(check.policy) {
            return;
        }
        let is_check = operation.verb == Verb::Check;
        // Peeks are not cached. After a change of the window, a store counts by the new window only from the next check
        // on; until then the retry time of each peek starts over.
        if is_check && !decision.is_allowed() {
            let trip = RoundTrip { sent_at_ms: miss.sent_at_ms, received_at_ms: self.clock.now_ms() };
            if let Some(denial) =
                Denial::from_decision(check, decision, trip, self.max_ages, miss.version.clone())
                && self.table.insert(miss.key_hash, miss.epoch, denial, trip.received_at_ms)
            {
                metrics::count_stored();
                return;
            }
        }
        let is_counted = operation.verb == Verb::Charge || (is_check && decision.is_allowed());
        let has_spent = is_counted && check.cost > 0;
        self.table.drop_if(miss.key_hash, |denial| {
            if denial.has_quotas_of(check.policy) {
                has_spent.then_some(DropReason::Spent)
            } else {
                Some(DropReason::Limits)
            }
        });
    }
}

impl<S: Store, C: Clock> DeniedCache<S, C> {
    async fn execute_one(&self, operation: &Operation<'_>) -> Responses {
        let key_hash = self.table.hash(&operation.check);
        if let Some(reason) = invalidation_reason(operation.verb) {
            let _invalidation = KeyInvalidation::begin(&self.table, key_hash, reason);
            return self.store.execute(std::slice::from_ref(operation)).await;
        }
        match self.look_up(operation, key_hash, false) {
            Lookup::Hit(decision) => Ok(decision).into(),
            Lookup::Miss(miss) => {
                let responses = self.store.execute(std::slice::from_ref(operation)).await;
                let response = responses.into_single();
                self.update(&miss, operation, &response);
                response.into()
            }
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Responses {
        let key_hashes: Vec<_> =
            operations.iter().map(|operation| self.table.hash(&operation.check)).collect();
        let begin = |(operation, key_hash): (&Operation<'_>, &KeyHash)| {
            Some(KeyInvalidation::begin(&self.table, *key_hash, invalidation_reason(operation.verb)?))
        };
        let invalidations: Vec<_> = operations.iter().zip(&key_hashes).filter_map(begin).collect();
        // An earlier operation of the batch may change the decision of a later one on the same key, which only the
        // store can decide then.
        let mut sent: HashSet<_> = invalidations.iter().map(KeyInvalidation::key_hash).collect();
        let mut misses = Vec::with_capacity(operations.len());
        let mut lookups = Vec::with_capacity(operations.len());
        for (operation, key_hash) in operations.iter().zip(key_hashes) {
            let lookup = self.look_up(operation, key_hash, sent.contains(&key_hash));
            if matches!(lookup, Lookup::Miss(_)) {
                sent.insert(key_hash);
                misses.push(*operation);
            }
            lookups.push(lookup);
        }
        let responses =
            if misses.is_empty() { Responses::default() } else { self.store.execute(&misses).await };
        let mut responses = responses.into_iter();
        let response = |(lookup, operation): (Lookup, &Operation<'_>)| match lookup {
            Lookup::Hit(decision) => Ok(decision),
            Lookup::Miss(miss) => {
                let response = responses.next().unwrap_or_else(|| Err(missing_response()));
                self.update(&miss, operation, &response);
                response
            }
        };
        lookups.into_iter().zip(operations).map(response).collect()
    }
}

impl<S: Store, C: Clock> StoreLayer for DeniedCache<S, C> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        match operations {
            [operation] => self.execute_one(operation).await,
            many => self.execute_many(many).await,
        }
    }

    async fn apply_forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        let _invalidation = PolicyInvalidation::begin(&self.table, policy);
        self.store.forget(policy).await
    }
}

impl<S: fmt::Debug, C> fmt::Debug for DeniedCache<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedCache")
            .field("store", &self.store)
            .field("capacity", &self.capacity())
            .field("max_ages", &self.max_ages)
            .finish_non_exhaustive()
    }
}
