//! The store of the service, with its layers: modes of policies, retry jitter, denial cache and fallback.

use std::time::Duration;

use slidegate::resilience::{DeniedCache, Fallback, Jitter, Switch};
use slidegate::{Check, Clock, Decision, FeedVersion, Operation, Policy, Responses, Store, StoreError};

use crate::store::AnyStore;
use crate::store_status::count_store_error;
use slidegate_config::{DegradeConfig, DegradeOverride, MemoryConfig, StoreUrl};

/// A store, with a fallback if it is remote.
#[derive(Debug)]
pub enum ProtectedStore {
    /// A store in this process, which needs no fallback.
    Local(AnyStore),
    /// A remote store.
    Remote(Fallback<AnyStore>),
    /// A remote store, with a cache of denials.
    Cached(DeniedCache<Fallback<AnyStore>>),
}

/// The store with all layers, outermost first.
pub type StoreStack = Switch<Jitter<ProtectedStore>>;

impl ProtectedStore {
    /// Opens the store and adds the configured layers.
    pub async fn open(
        url: &StoreUrl,
        memory: MemoryConfig,
        degrade: &DegradeConfig,
    ) -> Result<StoreStack, String> {
        let default_rule = degrade.default_rule(url);
        let rules = || {
            degrade.overrides.iter().filter_map(|(name, rule)| Some((name, rule.failure_rule(default_rule)?)))
        };
        let max_budget = rules().map(|(_, rule)| rule.budget).fold(default_rule.budget, Duration::max);
        let store = AnyStore::open_or_retry(url, memory, max_budget).await?;
        let protected = match url {
            StoreUrl::Memory => Self::Local(store),
            StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
                let fallback = Fallback::builder(store)
                    .nodes(degrade.nodes.unwrap_or(1))
                    .on_failure(default_rule.on_failure)
                    .budget(default_rule.budget)
                    .local(memory.builder());
                let fallback = rules().fold(fallback, |fallback, (name, rule)| fallback.policy(name, rule));
                let fallback = fallback.build().map_err(|error| error.to_string())?;
                cached(fallback, degrade)?
            }
        };
        let own_jitters =
            degrade.overrides.iter().filter_map(|(name, rule)| Some((name, rule.retry_jitter?)));
        let jitter = Jitter::new(protected, degrade.retry_jitter);
        let stack = Switch::new(own_jitters.fold(jitter, |jitter, (name, max)| jitter.policy(name, max)));
        stack.replace(degrade.switches.clone());
        Ok(stack)
    }
}

/// Access to the store below all layers.
pub trait BaseStore {
    /// Returns the store below all layers.
    fn base(&self) -> &AnyStore;
}

impl BaseStore for StoreStack {
    fn base(&self) -> &AnyStore {
        match self.store().store() {
            ProtectedStore::Local(store) => store,
            ProtectedStore::Remote(fallback) => fallback.store(),
            ProtectedStore::Cached(cache) => cache.store().store(),
        }
    }
}

/// Counts a failure of a local store. The fallback counts those of a remote store.
#[inline]
fn count_failure(response: &Result<Decision, StoreError>) {
    if let Err(error) = response {
        count_store_error(error);
    }
}

/// Adds a cache of denials, unless it is disabled for all policies.
fn cached(fallback: Fallback<AnyStore>, degrade: &DegradeConfig) -> Result<ProtectedStore, String> {
    let is_enabled = |rule: &DegradeOverride| rule.cache_denials.unwrap_or(degrade.cache_denials);
    if !degrade.cache_denials && !degrade.overrides.values().any(is_enabled) {
        return Ok(ProtectedStore::Remote(fallback));
    }
    let cache = DeniedCache::builder(fallback).other_policies(degrade.cache_denials);
    let policies = degrade.overrides.iter().map(|(name, rule)| (name, is_enabled(rule)));
    let cache = policies.fold(cache, |cache, (name, is_enabled)| cache.policy(name, is_enabled));
    cache.build().map(ProtectedStore::Cached).map_err(|error| error.to_string())
}

impl Store for ProtectedStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        match self {
            Self::Local(store) => {
                let responses = store.execute(operations).await;
                responses.iter().for_each(count_failure);
                responses
            }
            Self::Remote(store) => store.execute(operations).await,
            Self::Cached(store) => store.execute(operations).await,
        }
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        match self {
            Self::Local(store) => store.forget(policy).await,
            Self::Remote(store) => store.forget(policy).await,
            Self::Cached(store) => store.forget(policy).await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        match self {
            Self::Local(store) => store.clock(),
            Self::Remote(store) => store.clock(),
            Self::Cached(store) => store.clock(),
        }
    }

    fn is_immediate(&self) -> bool {
        match self {
            Self::Local(store) => store.is_immediate(),
            Self::Remote(store) => store.is_immediate(),
            Self::Cached(store) => store.is_immediate(),
        }
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        match self {
            Self::Local(store) => store.feed_version(check),
            Self::Remote(store) => store.feed_version(check),
            Self::Cached(store) => store.feed_version(check),
        }
    }
}
