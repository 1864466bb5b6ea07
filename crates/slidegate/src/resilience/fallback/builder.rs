//! Setting it up.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Fallback;
use super::group::Group;
use super::latest::Latest;
use crate::clock::{Clock, PreciseClock};
use crate::resilience::breaker::{Breaker, BreakerSettings};
use crate::resilience::rules::{FailureRule, OnFailure};
use crate::resilience::shares::Shares;
use crate::store::Store;
use crate::store::memory::{MemoryStore, MemoryStoreBuilder, SettingsError};

/// A [`Fallback`] to be.
#[derive(Debug)]
pub struct FallbackBuilder<S, C = PreciseClock> {
    store: S,
    nodes: NonZeroU32,
    usual: FailureRule,
    by_policy: Vec<(Box<str>, FailureRule)>,
    breaker: BreakerSettings,
    local: Option<MemoryStoreBuilder>,
    clock: C,
    seed: u64,
}

impl<S: Store> Fallback<S> {
    /// Over `store`, to be set up.
    pub fn builder(store: S) -> FallbackBuilder<S> {
        FallbackBuilder {
            store,
            nodes: NonZeroU32::MIN,
            usual: FailureRule::default(),
            by_policy: Vec::new(),
            breaker: BreakerSettings::default(),
            local: None,
            clock: PreciseClock::default(),
            seed: fastrand::u64(..),
        }
    }
}

impl<S: Store, C: Clock + Clone> FallbackBuilder<S, C> {
    /// How many nodes share the store, 1 unless told otherwise: the part of a limit that each may give away by itself is
    /// the limit divided by this, at least 1. None is taken for one.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = NonZeroU32::new(nodes).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// What becomes of requests that the store does not decide, for policies without a rule of their own.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.usual.on_failure = on_failure;
        self
    }

    /// How long the store may take, for policies without a rule of their own.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.usual.budget = budget;
        self
    }

    /// The rule of the policy of this name, which gets a breaker of its own.
    pub fn policy(mut self, name: &str, rule: FailureRule) -> Self {
        self.by_policy.push((name.into(), rule));
        self
    }

    /// How large the counts here may become, as large as a [`MemoryStore`] unless told otherwise.
    pub fn local(mut self, local: MemoryStoreBuilder) -> Self {
        self.local = Some(local);
        self
    }

    /// When the store is left alone.
    pub fn breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = settings;
        self
    }

    /// The clock by which the breaker rests and shares are counted.
    pub fn clock<D: Clock + Clone>(self, clock: D) -> FallbackBuilder<S, D> {
        let Self { store, nodes, usual, by_policy, breaker, local, seed, .. } = self;
        FallbackBuilder { store, nodes, usual, by_policy, breaker, local, clock, seed }
    }

    /// What chance begins with, so that the same course of events leads to the same answers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The store that falls back, or which setting of its local counts is out of range.
    pub fn build(self) -> Result<Fallback<S, C>, SettingsError> {
        let local = self.local.unwrap_or_else(MemoryStore::builder).clock(self.clock.clone()).build()?;
        let breaker = |place: u64, policy: &str| {
            // One after the other, so that they do not come back together either.
            let seed = self.seed.wrapping_add(place);
            Breaker::seeded(self.breaker, self.clock.clone(), seed).for_policy(policy)
        };
        let usual = Group::new(self.usual, breaker(0, "(others)"));
        let group = |(place, (name, rule)): (usize, (Box<str>, FailureRule))| {
            let breaker = breaker(place as u64 + 1, &name);
            (name, Group::new(rule, breaker))
        };
        let by_policy = self.by_policy.into_iter().enumerate().map(group).collect();
        let shares = Shares::new(self.nodes);
        let latest = Latest::default();
        Ok(Fallback { store: self.store, clock: self.clock.clone(), local, shares, latest, usual, by_policy })
    }
}
