//! A decision even if the store does not make one, within a time, and marked as what it is.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slidegate_core::{Decision, Policy, QuotaReport, Reason, Retry, Source, Verb};

use super::breaker::{Breaker, BreakerSettings, BreakerState, Permit};
use super::budget::{too_late, within};
use super::rules::{FailureRule, OnFailure, Rules};
use super::shares::Shares;
use super::signals;
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::memory::MemoryStore;
use crate::store::{Operation, Store};

/// A store that answers in time, and falls back to what the policy asks for when the one below does not decide.
///
/// - **Time budget.** A decision is answered within it, 20 ms unless told otherwise, whatever the store does.
/// - **Failure policy.** [`OnFailure`] for each policy. What is decided without the store says so: its source is
///   [`Source::Fallback`] with the reason.
/// - **Circuit breaker.** A store that fails is left alone and taken up again little by little ([`Breaker`]). Errors
///   that come at once and will not pass do not count: they hold nobody up.
/// - **It counts all the time.** What the store admits here is counted in memory too, against this node's share. When
///   the store fails, a key has left what it has not spent yet; and a store that comes and goes yields the limit
///   by itself and the limit by all shares in a window, not once more each time.
///
/// Only checks and peeks fall back. A refund or a reset that the store did not confirm is an error.
///
/// ```
/// use slidegate::degrade::{Fallback, FailureRule, OnFailure};
/// use slidegate::{Limiter, MemoryStore};
///
/// let login = FailureRule { on_failure: OnFailure::Closed, ..FailureRule::default() };
/// let store = Fallback::builder(MemoryStore::new()).nodes(4).policy("login", login).build();
/// let limiter = Limiter::new(store);
/// # let _ = limiter;
/// ```
pub struct Fallback<S, C: Clock = PreciseClock> {
    store: S,
    breaker: Breaker<C>,
    local: MemoryStore<C>,
    shares: Shares,
    rules: Rules,
    /// Why the store is left alone, if it is.
    last_failure: Mutex<Option<StoreError>>,
}

impl<S: Store> Fallback<S> {
    /// Over `store`, to be set up.
    pub fn builder(store: S) -> FallbackBuilder<S> {
        FallbackBuilder {
            store,
            nodes: NonZeroU32::MIN,
            rules: Rules::default(),
            breaker: BreakerSettings::default(),
            clock: PreciseClock::default(),
            seed: fastrand::u64(..),
        }
    }
}

impl<S, C: Clock> Fallback<S, C> {
    /// The store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What is done with the store at present.
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.state()
    }

    /// Counts here what the store has done.
    fn keep_up(&self, operation: &Operation<'_>, decision: &Decision) {
        if operation.verb == Verb::Check && !decision.is_allowed() {
            return;
        }
        let share = self.shares.of(operation.check.policy);
        // A full table here is no reason to doubt the store.
        let counted = self.local_now(&share, operation, operation.check.cost);
        if let (Verb::Check, Ok(denial)) = (operation.verb, counted)
            && !denial.is_allowed()
        {
            // More than this node's share: then all of it is spent.
            let _ = self.local_now(&share, operation, denial.remaining());
        }
    }

    fn local_now(
        &self,
        share: &Policy,
        operation: &Operation<'_>,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let check = share.key(operation.check.key).cost(cost);
        self.local.execute_now(Operation { verb: operation.verb, check })
    }

    /// What the policy asks for instead of the store's answer.
    fn fall_back(
        &self,
        operation: &Operation<'_>,
        rule: FailureRule,
        reason: Reason,
        error: impl FnOnce() -> StoreError,
    ) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        signals::fell_back(policy, rule.on_failure, reason);
        let source = Source::Fallback(reason);
        match operation.verb {
            Verb::Check | Verb::Peek => {}
            Verb::Refund | Verb::Reset => {
                // What was admitted here can be given back here, but the store has not agreed.
                let _ = self.local_now(&self.shares.of(policy), operation, operation.check.cost);
                return Err(error());
            }
        }
        match rule.on_failure {
            OnFailure::Open => Ok(Decision::unspent(policy, source)),
            OnFailure::Closed => Err(error()),
            OnFailure::Local => {
                let share = self.shares.of(policy);
                let decision = self.local_now(&share, operation, operation.check.cost)?;
                Ok(not_for_good(decision, policy, &share, operation.check.cost).by(source))
            }
        }
    }

    /// What to tell those whom the breaker does not let through.
    fn resting(&self) -> StoreError {
        let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let why = last.as_ref().map_or_else(|| "the store has failed".to_owned(), ToString::to_string);
        StoreError::transient(format!("{why}; it is left alone for a while"))
    }

    /// Tells the breaker, and whoever it does not let through.
    fn conclude(&self, permit: Permit<'_, C>, failure: Option<&StoreError>) {
        if let Some(error) = failure {
            *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        permit.settled(failure.is_some());
    }

    fn settle(
        &self,
        operation: &Operation<'_>,
        rule: FailureRule,
        answer: Result<Decision, StoreError>,
    ) -> Result<Decision, StoreError> {
        match answer {
            Ok(decision) => {
                self.keep_up(operation, &decision);
                Ok(decision)
            }
            Err(error) => {
                let reason = reason(&error);
                self.fall_back(operation, rule, reason, || error)
            }
        }
    }
}

impl<S: Store, C: Clock> Store for Fallback<S, C> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let rule = self.rules.of(operation.check.policy);
        let Some(permit) = self.breaker.admit() else {
            return self.fall_back(&operation, rule, Reason::Resting, || self.resting());
        };
        match within(rule.budget, self.store.execute(operation)).await {
            Some(answer) => {
                self.conclude(permit, hold_up(&answer));
                self.settle(&operation, rule, answer)
            }
            None => {
                let error = too_late(rule.budget);
                self.conclude(permit, Some(&error));
                self.fall_back(&operation, rule, Reason::Timeout, || error)
            }
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let rule_of = |operation: &Operation<'_>| self.rules.of(operation.check.policy);
        let all_fall_back = |reason: Reason, error: &StoreError| {
            let one = |one| self.fall_back(one, rule_of(one), reason, || error.clone());
            operations.iter().map(one).collect()
        };
        let Some(budget) = operations.iter().map(|operation| rule_of(operation).budget).min() else {
            return Vec::new();
        };
        let Some(permit) = self.breaker.admit() else {
            return all_fall_back(Reason::Resting, &self.resting());
        };
        match within(budget, self.store.execute_many(operations)).await {
            Some(answers) => {
                self.conclude(permit, answers.iter().find_map(hold_up));
                let each = operations.iter().zip(answers);
                each.map(|(operation, answer)| self.settle(operation, rule_of(operation), answer)).collect()
            }
            None => {
                let error = too_late(budget);
                self.conclude(permit, Some(&error));
                all_fall_back(Reason::Timeout, &error)
            }
        }
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }
}

impl<S: fmt::Debug, C: Clock> fmt::Debug for Fallback<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Fallback");
        debug.field("store", &self.store).field("breaker", &self.breaker).field("rules", &self.rules);
        debug.finish_non_exhaustive()
    }
}

/// The failure for which a store is to be left alone. Who refuses at once and for good holds nobody up.
fn hold_up(answer: &Result<Decision, StoreError>) -> Option<&StoreError> {
    answer.as_ref().err().filter(|error| error.is_transient() && !error.is_full())
}

pub(super) fn reason(error: &StoreError) -> Reason {
    if error.is_full() {
        Reason::Full
    } else if error.is_transient() {
        Reason::Unavailable
    } else {
        Reason::Refused
    }
}

/// A cost that exceeds this node's share, but not the limit, will be allowed when the store is back. When that is, nobody
/// knows: it may come again after a window.
fn not_for_good(decision: Decision, policy: &Policy, share: &Policy, cost: u64) -> Decision {
    if !decision.is_never() || policy.quotas().iter().any(|quota| cost > quota.capacity()) {
        return decision;
    }
    let each = decision.quotas().iter().zip(share.quotas());
    let report = |(report, quota): (&QuotaReport, &slidegate_core::Quota)| match report.retry {
        Some(Retry::Never) => QuotaReport { retry: Some(Retry::AfterMs(quota.window_ms())), ..*report },
        _ => *report,
    };
    Decision::new(false, decision.source(), each.map(report).collect())
}

/// A [`Fallback`] to be.
#[derive(Debug)]
pub struct FallbackBuilder<S, C = PreciseClock> {
    store: S,
    nodes: NonZeroU32,
    rules: Rules,
    breaker: BreakerSettings,
    clock: C,
    seed: u64,
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
        self.rules.usual.on_failure = on_failure;
        self
    }

    /// How long the store may take, for policies without a rule of their own.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.rules.usual.budget = budget;
        self
    }

    /// The rule of the policy of this name.
    pub fn policy(mut self, name: &str, rule: FailureRule) -> Self {
        self.rules.by_policy.insert(name.into(), rule);
        self
    }

    /// When the store is left alone.
    pub fn breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = settings;
        self
    }

    /// The clock by which the breaker rests and shares are counted.
    pub fn clock<D: Clock + Clone>(self, clock: D) -> FallbackBuilder<S, D> {
        let Self { store, nodes, rules, breaker, seed, .. } = self;
        FallbackBuilder { store, nodes, rules, breaker, clock, seed }
    }

    /// What chance begins with, so that the same course of events leads to the same answers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The store that falls back.
    pub fn build(self) -> Fallback<S, C> {
        Fallback {
            breaker: Breaker::seeded(self.breaker, self.clock.clone(), self.seed),
            local: MemoryStore::on(self.clock),
            store: self.store,
            shares: Shares::new(self.nodes),
            rules: self.rules,
            last_failure: Mutex::default(),
        }
    }
}
