//! Builder of the fallback layer.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Fallback;
use super::last_outcome::LastOutcome;
use super::rule_group::RuleGroup;
use crate::clock::{Clock, PreciseClock};
use crate::error::SettingsError;
use crate::resilience::breaker::{Breaker, BreakerSettings};
use crate::resilience::rules::{FailureRule, OnFailure};
use crate::resilience::shares::Shares;
use crate::store::Store;
use crate::store::memory::{MemoryStore, MemoryStoreBuilder};

/// Builder of a [`Fallback`].
#[derive(Debug)]
pub struct FallbackBuilder<S, C = PreciseClock> {
    store: S,
    nodes: NonZeroU32,
    default_rule: FailureRule,
    by_policy: Vec<(Box<str>, FailureRule)>,
    breaker: BreakerSettings,
    local: Option<MemoryStoreBuilder>,
    clock: C,
    seed: u64,
}

impl<S: Store> Fallback<S> {
    /// Returns a builder of a fallback layer over `store`.
    pub fn builder(store: S) -> FallbackBuilder<S> {
        FallbackBuilder {
            store,
            nodes: NonZeroU32::MIN,
            default_rule: FailureRule::default(),
            by_policy: Vec::new(),
            breaker: BreakerSettings::default(),
            local: None,
            clock: PreciseClock::default(),
            seed: fastrand::u64(..),
        }
    }
}

impl<S: Store, C: Clock + Clone> FallbackBuilder<S, C> {
    /// Sets the number of nodes that share the store, 1 by default. The share of a limit that each node may spend
    /// without the store is the limit divided by this number, at least 1. Zero counts as 1.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = NonZeroU32::new(nodes).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// Sets the handling of requests that the store does not decide, for policies without a rule of their own.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.default_rule.on_failure = on_failure;
        self
    }

    /// Sets the time budget of the store, for policies without a rule of their own.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.default_rule.budget = budget;
        self
    }

    /// Sets the rule of the policy called `name`. The policy gets a breaker of its own.
    pub fn policy(mut self, name: &str, rule: FailureRule) -> Self {
        self.by_policy.push((name.into(), rule));
        self
    }

    /// Sets up the local store that holds the shares, by default a [`MemoryStore`] with its own default settings.
    pub fn local(mut self, local: MemoryStoreBuilder) -> Self {
        self.local = Some(local);
        self
    }

    /// Sets the thresholds and durations of the breakers.
    pub fn breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = settings;
        self
    }

    /// Sets the clock of the breakers and of the local store.
    pub fn clock<D: Clock + Clone>(self, clock: D) -> FallbackBuilder<S, D> {
        let Self { store, nodes, default_rule, by_policy, breaker, local, seed, .. } = self;
        FallbackBuilder { store, nodes, default_rule, by_policy, breaker, local, clock, seed }
    }

    /// Seeds the random numbers of the breakers, so that the same sequence of events leads to the same decisions.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the layer, or returns the setting of the local store that is out of range.
    pub fn build(self) -> Result<Fallback<S, C>, SettingsError> {
        let local = self.local.unwrap_or_else(MemoryStore::builder).clock(self.clock.clone()).build()?;
        let breaker = |index: u64, policy: &str| {
            // Different seeds, so that the breakers of a node do not recover at the same time.
            let seed = self.seed.wrapping_add(index);
            Breaker::seeded(self.breaker, self.clock.clone(), seed).for_policy(policy)
        };
        let default_group = RuleGroup::new(self.default_rule, breaker(0, "(others)"));
        let group = |(index, (name, rule)): (usize, (Box<str>, FailureRule))| {
            let breaker = breaker(index as u64 + 1, &name);
            (name, RuleGroup::new(rule, breaker))
        };
        let by_policy = self.by_policy.into_iter().enumerate().map(group).collect();
        let shares = Shares::new(self.nodes);
        Ok(Fallback {
            store: self.store,
            clock: self.clock.clone(),
            local,
            shares,
            last_outcome: LastOutcome::default(),
            default_group,
            by_policy,
        })
    }
}
