//! The protective stack: every layer between a limiter and its store.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::SettingsError;
use crate::resilience::{
    DeniedCache, ErrorCounter, FailureRule, Fallback, Jitter, OnFailure, PolicySwitch, Switch,
};
use crate::store::{AnyStore, MemoryStoreBuilder, Optional, Store};

/// All layers over the store, in the order in which an operation passes them.
pub(super) type Layers<S = AnyStore> = Optional<Switch<Optional<Jitter<Cached<S>>>>>;
type Cached<S> = Optional<DeniedCache<Fallible<S>>>;
type Fallible<S> = Optional<Fallback<Counted<S>>>;
type Counted<S> = Optional<ErrorCounter<S>>;

/// Settings of the layers. A layer without settings is absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Protection {
    pub(super) nodes: Option<u32>,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) budget: Option<Duration>,
    pub(super) rules: HashMap<String, FailureRule>,
    pub(super) caches_denials: Option<bool>,
    pub(super) caches_denials_of: HashMap<String, bool>,
    pub(super) retry_jitter: Option<Duration>,
    pub(super) retry_jitter_of: HashMap<String, Duration>,
    pub(super) switches: Option<Vec<(String, PolicySwitch)>>,
}

impl Protection {
    /// Pushes the layers onto `store`, from the bottom to the top. `url_budget` is the budget in the URL of a remote store.
    pub(super) fn push_onto<S: Store>(
        self,
        store: S,
        url_budget: Option<Duration>,
        local: MemoryStoreBuilder,
    ) -> Result<Layers<S>, SettingsError> {
        // A memory store needs no fallback and no denial cache.
        let is_remote = !store.is_immediate();
        let has_fallback = is_remote && self.has_fallback();
        let has_cache = is_remote && self.has_cache();
        let (has_jitter, has_switch) = (self.has_jitter(), self.switches.is_some());
        let has_counter = !has_fallback && (has_cache || has_jitter || has_switch);

        let store = Optional::new(has_counter, store, ErrorCounter::new);
        let store = Optional::try_new(has_fallback, store, |store| self.fallback(store, url_budget, local))?;
        let store = Optional::try_new(has_cache, store, |store| self.cache(store))?;
        let store = Optional::new(has_jitter, store, |store| self.jitter(store));
        Ok(Optional::new(has_switch, store, |store| self.switch(store)))
    }

    fn has_fallback(&self) -> bool {
        let is_set = self.nodes.is_some() || self.on_failure.is_some() || self.budget.is_some();
        is_set || !self.rules.is_empty()
    }

    fn fallback<S: Store>(
        &self,
        store: Counted<S>,
        url_budget: Option<Duration>,
        local: MemoryStoreBuilder,
    ) -> Result<Fallback<Counted<S>>, SettingsError> {
        let rule = self.default_rule(url_budget);
        let fallback = Fallback::builder(store).nodes(self.nodes.unwrap_or(1)).local(local);
        let fallback = fallback.on_failure(rule.on_failure).budget(rule.budget);
        self.rules.iter().fold(fallback, |fallback, (name, rule)| fallback.policy(name, *rule)).build()
    }

    fn default_rule(&self, url_budget: Option<Duration>) -> FailureRule {
        let rule = FailureRule::new(self.on_failure.unwrap_or_default());
        // The URL is specific to this store, hence its budget takes precedence.
        url_budget.or(self.budget).map_or(rule, |budget| rule.budget(budget))
    }

    /// Returns the longest time that a call of the store may take; `None` without a fallback, which sets the times.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(super) fn longest_budget(&self, url_budget: Option<Duration>) -> Option<Duration> {
        let default = self.has_fallback().then(|| self.default_rule(url_budget).budget);
        self.rules.values().map(|rule| rule.budget).chain(default).max()
    }

    fn has_cache(&self) -> bool {
        self.caches_denials == Some(true) || self.caches_denials_of.values().any(|is_cached| *is_cached)
    }

    fn cache<S: Store>(&self, store: Fallible<S>) -> Result<DeniedCache<Fallible<S>>, SettingsError> {
        let cache = DeniedCache::builder(store).other_policies(self.caches_denials.unwrap_or(false));
        let each = self.caches_denials_of.iter();
        each.fold(cache, |cache, (name, is_cached)| cache.policy(name, *is_cached)).build()
    }

    fn has_jitter(&self) -> bool {
        let max = self.retry_jitter_of.values().chain(&self.retry_jitter).max();
        max.is_some_and(|max| !max.is_zero())
    }

    fn jitter<S: Store>(&self, store: Cached<S>) -> Jitter<Cached<S>> {
        let jitter = Jitter::new(store, self.retry_jitter.unwrap_or_default());
        self.retry_jitter_of.iter().fold(jitter, |jitter, (name, max)| jitter.policy(name, *max))
    }

    fn switch<S: Store>(&self, store: Optional<Jitter<Cached<S>>>) -> Switch<Optional<Jitter<Cached<S>>>> {
        let switch = Switch::new(store);
        switch.replace(self.switches.clone().unwrap_or_default());
        switch
    }
}

impl<S: Store> Layers<S> {
    /// Returns the store below all layers.
    pub(super) fn base(&self) -> &S {
        self.inner().inner().inner().inner().inner()
    }

    pub(super) fn switch(&self) -> Option<&Switch<Optional<Jitter<Cached<S>>>>> {
        self.layer()
    }

    pub(super) fn cache(&self) -> Option<&DeniedCache<Fallible<S>>> {
        self.inner().inner().layer()
    }

    pub(super) fn fallback(&self) -> Option<&Fallback<Counted<S>>> {
        self.inner().inner().inner().layer()
    }

    /// Returns whether no layer is present.
    pub(super) fn is_bare(&self) -> bool {
        let [switch, jitter] = [self.layer().is_none(), self.inner().layer().is_none()];
        let counted = self.inner().inner().inner().inner();
        switch && jitter && self.cache().is_none() && self.fallback().is_none() && counted.layer().is_none()
    }
}

#[cfg(test)]
#[cfg(any(feature = "redis", feature = "postgres"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use slidegate_core::{Check, Policy, Verb};

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::error::StoreError;
    use crate::store::{FeedVersion, InvalidationFeed, MemoryStore, Operation, Responses};

    /// A store that records calls and has a feed.
    struct Recording {
        store: MemoryStore<ManualClock>,
        feed: Arc<InvalidationFeed>,
        is_immediate: bool,
        forgotten: AtomicUsize,
    }

    impl Store for Recording {
        async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
            self.store.execute(operations).await
        }

        async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            self.store.forget(policy).await
        }

        fn clock(&self) -> &dyn Clock {
            self.store.clock()
        }

        fn is_immediate(&self) -> bool {
            self.is_immediate
        }

        fn feed_version(&self, _: &Check<'_>) -> Option<FeedVersion> {
            Some(self.feed.version(0))
        }
    }

    fn every_layer() -> Protection {
        Protection {
            nodes: Some(1),
            on_failure: Some(OnFailure::Closed),
            budget: Some(Duration::from_mins(1)),
            rules: HashMap::from([("own".to_owned(), FailureRule::default())]),
            caches_denials: Some(true),
            retry_jitter: Some(Duration::from_millis(5)),
            switches: Some(Vec::new()),
            ..Protection::default()
        }
    }

    fn assert_forwards(protection: Protection, is_immediate: bool, expected: [bool; 5]) {
        let store = Recording {
            store: MemoryStore::builder().clock(ManualClock::at(77_000)).build().unwrap(),
            feed: Arc::new(InvalidationFeed::new(1)),
            is_immediate,
            forgotten: AtomicUsize::new(0),
        };
        let stack = protection.push_onto(store, None, MemoryStore::builder().max_keys(100)).unwrap();
        let [switch, jitter, cache, fallback, counter] = expected;
        let counted = stack.inner().inner().inner().inner();
        let present = (stack.switch().is_some(), stack.inner().layer().is_some(), stack.cache().is_some());
        assert_eq!(present, (switch, jitter, cache));
        assert_eq!((stack.fallback().is_some(), counted.layer().is_some()), (fallback, counter));
        assert_eq!(stack.is_bare(), expected == [false; 5]);

        let policy = Policy::parse("api", ["3/1m fixed-window"]).unwrap();
        assert_eq!(stack.clock().now_ms(), 77_000, "the clock is the store's");
        assert!(stack.feed_version(&policy.key("a")).is_some(), "the feed is the store's");
        assert_eq!(stack.is_immediate(), is_immediate, "a remote store waits, and the layers do not");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let used = |verb| {
            let operation = Operation::new(verb, policy.key("a"));
            runtime.block_on(stack.execute(&[operation])).into_single().unwrap().quotas()[0].used
        };
        assert_eq!([used(Verb::Check), used(Verb::Peek)], [1, 1]);
        runtime.block_on(stack.forget(&policy)).unwrap();
        assert_eq!((stack.base().forgotten.load(Ordering::Relaxed), used(Verb::Peek)), (1, 0));
    }

    #[test]
    fn a_stack_forwards_every_property_of_its_store() {
        assert_forwards(every_layer(), false, [true, true, true, true, false]);
        assert_forwards(every_layer(), true, [true, true, false, false, true]);
        for is_immediate in [false, true] {
            assert_forwards(Protection::default(), is_immediate, [false; 5]);
        }
    }

    #[test]
    fn an_option_adds_its_layer_and_no_other() {
        let jitter = Protection { retry_jitter: Some(Duration::from_millis(1)), ..Protection::default() };
        assert_forwards(jitter, false, [false, true, false, false, true]);
        let cache = Protection { caches_denials: Some(true), ..Protection::default() };
        assert_forwards(cache, false, [false, false, true, false, true]);
        let budget = Protection { budget: Some(Duration::from_mins(1)), ..Protection::default() };
        assert_forwards(budget, false, [false, false, false, true, false]);
        let none = Protection {
            retry_jitter: Some(Duration::ZERO),
            caches_denials: Some(false),
            ..Protection::default()
        };
        assert_forwards(none, false, [false; 5]);
    }

    #[test]
    fn the_budget_of_the_url_takes_precedence_and_the_longest_limits_the_store() {
        let [url, own, rule] = [30, 40, 50].map(Duration::from_millis);
        let mut protection = Protection::default();
        assert_eq!(protection.longest_budget(Some(url)), None, "the store's own budget applies");
        protection.budget = Some(own);
        assert_eq!(protection.longest_budget(None), Some(own));
        assert_eq!(protection.longest_budget(Some(url)), Some(url));
        protection.rules.insert("slow".to_owned(), FailureRule::default().budget(rule));
        assert_eq!(protection.longest_budget(Some(url)), Some(rule));
    }
}
