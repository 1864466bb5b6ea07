//! The store behind the service: switched by policy, and kept from being the outage.

use std::time::Duration;

use slidegate::resilience::{DeniedCache, Fallback, Jitter, Switch};
use slidegate::{Check, Clock, Decision, FeedVersion, Operation, Policy, Responses, Store, StoreError};

use crate::metrics;
use crate::store::AnyStore;
use slidegate_config::{DegradeConfig, DegradeOverride, MemoryConfig, StoreUrl};

/// A store, and what stands in for it. One in this process cannot fail like one elsewhere.
#[derive(Debug)]
pub enum ProtectedStore {
    /// In this process.
    Here(AnyStore),
    /// Elsewhere.
    Elsewhere(Fallback<AnyStore>),
    /// Elsewhere, with denials remembered here.
    Cached(DeniedCache<Fallback<AnyStore>>),
}

/// The whole: what is asked last stands first.
pub type StoreStack = Switch<Jitter<ProtectedStore>>;

impl ProtectedStore {
    /// Opens the store and sets up what the configuration says about it.
    pub async fn open(
        url: &StoreUrl,
        memory: MemoryConfig,
        degrade: &DegradeConfig,
    ) -> Result<StoreStack, String> {
        let usual = degrade.default_rule(url);
        let rules =
            || degrade.overrides.iter().filter_map(|(name, rule)| Some((name, rule.failure_rule(usual)?)));
        let longest = rules().map(|(_, rule)| rule.budget).fold(usual.budget, Duration::max);
        let store = AnyStore::open_at_last(url, memory, longest).await?;
        let served = match url {
            StoreUrl::Memory => Self::Here(store),
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
                let fallback = Fallback::builder(store)
                    .nodes(degrade.nodes.unwrap_or(1))
                    .on_failure(usual.on_failure)
                    .budget(usual.budget)
                    .local(memory.builder());
                let fallback = rules().fold(fallback, |fallback, (name, rule)| fallback.policy(name, rule));
                let fallback = fallback.build().map_err(|error| error.to_string())?;
                cached(fallback, degrade)?
            }
        };
        let own_jitter = degrade.overrides.iter().filter_map(|(name, rule)| Some((name, rule.retry_jitter?)));
        let jitter = Jitter::new(served, degrade.retry_jitter);
        let switched = Switch::new(own_jitter.fold(jitter, |jitter, (name, max)| jitter.policy(name, max)));
        switched.replace(degrade.switches.clone());
        Ok(switched)
    }
}

/// What a stack of stores stands on.
pub(crate) trait BaseStore {
    fn base(&self) -> &AnyStore;
}

impl BaseStore for StoreStack {
    fn base(&self) -> &AnyStore {
        match self.store().store() {
            ProtectedStore::Here(store) => store,
            ProtectedStore::Elsewhere(fallback) => fallback.store(),
            ProtectedStore::Cached(cache) => cache.store().store(),
        }
    }
}

/// Counts a failure of a store in this process. Those of one elsewhere are counted by what stands in for it.
#[inline]
fn count_failure(answer: &Result<Decision, StoreError>) {
    if let Err(error) = answer {
        metrics::store_failed(error);
    }
}

/// With a memory of denials, unless nobody wants one.
fn cached(fallback: Fallback<AnyStore>, degrade: &DegradeConfig) -> Result<ProtectedStore, String> {
    let wants = |rule: &DegradeOverride| rule.cache_denials.unwrap_or(degrade.cache_denials);
    if !degrade.cache_denials && !degrade.overrides.values().any(wants) {
        return Ok(ProtectedStore::Elsewhere(fallback));
    }
    let cache = DeniedCache::builder(fallback).other_policies(degrade.cache_denials);
    let each = degrade.overrides.iter().map(|(name, rule)| (name, wants(rule)));
    let cache = each.fold(cache, |cache, (name, is_remembered)| cache.policy(name, is_remembered));
    cache.build().map(ProtectedStore::Cached).map_err(|error| error.to_string())
}

impl Store for ProtectedStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        match self {
            Self::Here(store) => {
                let responses = store.execute(operations).await;
                responses.iter().for_each(count_failure);
                responses
            }
            Self::Elsewhere(store) => store.execute(operations).await,
            Self::Cached(store) => store.execute(operations).await,
        }
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match self {
            Self::Here(store) => store.forget(policy).await,
            Self::Elsewhere(store) => store.forget(policy).await,
            Self::Cached(store) => store.forget(policy).await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        match self {
            Self::Here(store) => store.clock(),
            Self::Elsewhere(store) => store.clock(),
            Self::Cached(store) => store.clock(),
        }
    }

    fn is_immediate(&self) -> bool {
        match self {
            Self::Here(store) => store.is_immediate(),
            Self::Elsewhere(store) => store.is_immediate(),
            Self::Cached(store) => store.is_immediate(),
        }
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match self {
            Self::Here(store) => store.feed_version(check),
            Self::Elsewhere(store) => store.feed_version(check),
            Self::Cached(store) => store.feed_version(check),
        }
    }
}
