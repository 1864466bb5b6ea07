//! Decisions without the store: time budget, breaker and fallback.

mod builder;
mod last_outcome;
mod rule_group;

use std::collections::HashMap;
use std::fmt;

use futures_util::future::join_all;
use slidegate_core::{Decision, FallbackReason, Policy, Quota, QuotaReport, Retry, Source, Verb};

pub use self::builder::FallbackBuilder;

pub use self::last_outcome::Failure;

use self::last_outcome::LastOutcome;
use self::rule_group::RuleGroup;
use super::breaker::BreakerState;
use super::rules::{OnFailure, fallback_reason};
use super::shares::Shares;
use super::telemetry;
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::StoreLayer;
use crate::store::memory::MemoryStore;
use crate::store::responses::{Responses, missing_response};
use crate::store::{Operation, Store};

/// A store that responds in time and applies the policy's failure rule when the store below does not decide.
///
/// - **Time budget.** The store below must respond within the budget, 20 ms by default.
/// - **Failure rule.** [`OnFailure`] for each policy. A decision without the store has the source [`Source::Fallback`]
///   with the reason.
/// - **Circuit breaker.** A failing store gets no requests for a while and then a growing share
///   ([`Breaker`](super::Breaker)). Each policy with a rule of its own has a breaker of its own. Errors of a store that
///   is full or rejects requests permanently do not open a breaker.
/// - **Continuous local counting.** Under [`OnFailure::Local`], units that the store admits are also counted in memory,
///   against this node's share. A store that fails and recovers many times therefore admits what the algorithm
///   guarantees for the limit plus, once, what it guarantees for all shares, instead of that per failure.
///
/// Only checks and peeks fall back. A charge, refund, reset or block that the store did not confirm is an error. Such a
/// charge still counts against this node's share, because its cost has been incurred; the other verbs change nothing
/// here.
///
/// ```
/// use slidegate::resilience::{Fallback, FailureRule, OnFailure};
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// let login = FailureRule::new(OnFailure::Closed);
/// let store = Fallback::builder(MemoryStore::new()).nodes(4).policy("login", login).build()?;
/// let limiter = StoreLimiter::new(store);
/// # let _ = limiter;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fallback<S, C: Clock = PreciseClock> {
    store: S,
    clock: C,
    local: MemoryStore<C>,
    shares: Shares,
    last_outcome: LastOutcome,
    default_group: RuleGroup<C>,
    by_policy: HashMap<Box<str>, RuleGroup<C>>,
}

/// Largest batch whose timeout counts as a failure of the store. A larger one may simply need more time.
const MAX_CONCLUSIVE_BATCH: usize = 64;

impl<S, C: Clock> Fallback<S, C> {
    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the state of the breaker for policies without a rule of their own.
    pub fn breaker_state(&self) -> BreakerState {
        self.default_group.breaker.state()
    }

    /// Returns the state of the breaker for the policy called `name`.
    pub fn breaker_state_of(&self, name: &str) -> BreakerState {
        self.by_policy.get(name).unwrap_or(&self.default_group).breaker.state()
    }

    /// Returns the failure of the most recent request to the store, of any policy and key, or `None` if it succeeded. A
    /// closed breaker does not imply `None`, because permanent errors do not open it.
    pub fn failure(&self) -> Option<Failure> {
        self.last_outcome.failure()
    }

    /// Returns the rule group of a policy. An anonymous policy, made of quotas in a request, has no name to look up.
    fn group(&self, policy: &Policy) -> &RuleGroup<C> {
        let by_name = if policy.is_anonymous() { None } else { self.by_policy.get(policy.name()) };
        by_name.unwrap_or(&self.default_group)
    }

    /// Applies to the local share the change that the store has made.
    fn mirror(&self, operation: &Operation<'_>, decision: &Decision) {
        match operation.verb {
            Verb::Check if !decision.is_allowed() => {}
            Verb::Peek => {}
            Verb::Check | Verb::Charge => self.spend_share(operation),
            _ => {
                let share = self.shares.of(operation.check.policy);
                // A full local table does not invalidate the store's decision.
                let _ = self.local_now(&share, operation, operation.check.cost);
            }
        }
    }

    /// Spends the operation's cost from this node's share, at most what remains of it. A debt in the share would deny
    /// long after the store's own count has expired.
    fn spend_share(&self, operation: &Operation<'_>) {
        if operation.check.cost == 0 {
            return;
        }
        let share = self.shares.of(operation.check.policy);
        let spend = Operation { verb: Verb::Check, ..*operation };
        if let Ok(denial) = self.local_now(&share, &spend, operation.check.cost)
            && !denial.is_allowed()
        {
            let _ = self.local_now(&share, &spend, denial.remaining());
        }
    }

    fn local_now(
        &self,
        share: &Policy,
        operation: &Operation<'_>,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let check = share.key(operation.check.key).cost(cost);
        self.local.execute_now(Operation { check, ..*operation })
    }

    /// Applies the failure rule of the policy.
    fn fall_back(
        &self,
        operation: &Operation<'_>,
        group: &RuleGroup<C>,
        reason: FallbackReason,
        error: impl FnOnce() -> StoreError,
    ) -> Result<Decision, StoreError> {
        if !operation.verb.is_check_or_peek() {
            // The store has not confirmed the charge, but the cost has been incurred.
            if operation.verb == Verb::Charge && group.rule.on_failure == OnFailure::Local {
                self.spend_share(operation);
            }
            return Err(error());
        }
        let policy = operation.check.policy;
        group.report_fallback(policy, reason, self.clock.now_ms());
        let source = Source::Fallback(reason);
        match group.rule.on_failure {
            OnFailure::Open => Ok(Decision::allowed_by(policy, source)),
            OnFailure::Closed => Err(error()),
            OnFailure::Local => {
                let share = self.shares.of(policy);
                let decision = self.local_now(&share, operation, operation.check.cost)?;
                Ok(with_temporary_retry(decision, policy, operation.check.cost).with_source(source))
            }
        }
    }

    /// Turns the store's response into the response of this layer.
    fn settle(
        &self,
        operation: &Operation<'_>,
        group: &RuleGroup<C>,
        response: Result<Decision, StoreError>,
    ) -> Result<Decision, StoreError> {
        match response {
            Ok(decision) => {
                self.last_outcome.set_success();
                group.report_decision(operation.check.policy, self.clock.now_ms());
                if group.rule.on_failure == OnFailure::Local {
                    self.mirror(operation, &decision);
                }
                Ok(decision)
            }
            // The request is wrong. That does not depend on the state of the store.
            Err(error) if error.is_usage() => Err(error),
            Err(error) => {
                telemetry::count_store_error(&error);
                group.set_last_error(&error);
                let reason = fallback_reason(&error);
                self.last_outcome.set_failure(reason, &error);
                self.fall_back(operation, group, reason, || error.clone())
            }
        }
    }
}

impl<S: Store, C: Clock> Fallback<S, C> {
    /// Executes operations of one rule group in one call of the store.
    async fn execute_group(&self, group: &RuleGroup<C>, operations: &[Operation<'_>]) -> Responses {
        let Some(permit) = group.breaker.admit() else {
            let error = group.breaker_error();
            let fall_back =
                |operation| self.fall_back(operation, group, FallbackReason::Resting, || error.clone());
            return operations.iter().map(fall_back).collect();
        };
        let responses = self.store.execute_within(operations, group.rule.budget).await;
        let is_conclusive =
            |error: &&StoreError| !error.is_late() || operations.len() <= MAX_CONCLUSIVE_BATCH;
        let mut failures = responses.iter().filter_map(breaker_failure).peekable();
        let has_failures = failures.peek().is_some();
        // Without a conclusive failure, the dropped permit counts neither as a success nor as a failure.
        match failures.find(is_conclusive) {
            None if has_failures => drop(permit),
            failure => group.settle(permit, failure),
        }
        let missing = std::iter::repeat_with(|| Err(missing_response()));
        let each = operations.iter().zip(responses.into_iter().chain(missing));
        each.map(|(operation, response)| self.settle(operation, group, response)).collect()
    }
}

impl<S: Store, C: Clock> Fallback<S, C> {
    async fn execute_many(&self, operations: &[Operation<'_>]) -> Responses {
        let groups: Vec<&RuleGroup<C>> =
            operations.iter().map(|operation| self.group(operation.check.policy)).collect();
        let Some(first) = groups.first() else { return Responses::default() };
        if groups.iter().all(|group| std::ptr::eq(*group, *first)) {
            return self.execute_group(first, operations).await;
        }
        // One concurrent call per rule group, because the budgets differ.
        let mut parts: Vec<(&RuleGroup<C>, Vec<usize>)> = Vec::new();
        for (index, group) in groups.into_iter().enumerate() {
            match parts.iter_mut().find(|(known, _)| std::ptr::eq(*known, group)) {
                Some((_, indices)) => indices.push(index),
                None => parts.push((group, vec![index])),
            }
        }
        let mut calls = Vec::new();
        for (group, indices) in parts {
            let part: Vec<Operation<'_>> = indices.iter().map(|index| operations[*index]).collect();
            calls.push(async move { (indices, self.execute_group(group, &part).await) });
        }
        let parts = join_all(calls).await;
        let mut responses: Vec<_> = operations.iter().map(|_| Err(missing_response())).collect();
        for (indices, part) in parts {
            for (index, response) in indices.into_iter().zip(part) {
                responses[index] = response;
            }
        }
        responses.into_iter().collect()
    }
}

impl<S: Store, C: Clock> StoreLayer for Fallback<S, C> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        match operations {
            [operation] => {
                self.execute_group(self.group(operation.check.policy), std::slice::from_ref(operation)).await
            }
            many => self.execute_many(many).await,
        }
    }

    /// Resets the policy in the store, regardless of budget and breaker, and then in the local share.
    async fn apply_forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        let forgotten = self.store.forget(policy).await?;
        self.local.forget_now(policy)?;
        Ok(forgotten)
    }

    /// The time budget needs a timer.
    fn is_immediate(&self) -> bool {
        false
    }
}

impl<S: fmt::Debug, C: Clock> fmt::Debug for Fallback<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Fallback");
        debug.field("store", &self.store).field("default_rule", &self.default_group.rule);
        debug.finish_non_exhaustive()
    }
}

/// Returns the error if it counts as a failure for the breaker. Errors of a full store and permanent errors do not:
/// they may concern single keys only.
fn breaker_failure(response: &Result<Decision, StoreError>) -> Option<&StoreError> {
    response.as_ref().err().filter(|error| error.is_transient() && !error.is_full())
}

/// Replaces a permanent denial by a retry after one second if the cost exceeds this node's share but not the limit. The
/// store will allow it once it is available again.
fn with_temporary_retry(decision: Decision, policy: &Policy, cost: u64) -> Decision {
    const RETRY: Retry = Retry::AfterMs(1000);
    if !decision.is_never() || policy.quotas().iter().any(|quota: &Quota| cost > quota.capacity()) {
        return decision;
    }
    let report = |report: &QuotaReport| match report.retry {
        Some(Retry::Never) => report.with_retry(Some(RETRY)),
        _ => *report,
    };
    Decision::new(false, decision.source(), decision.quotas().iter().map(report).collect())
}
