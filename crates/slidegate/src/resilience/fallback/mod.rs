//! A decision even if the store does not make one, within a time, and marked as what it is.

mod builder;
mod group;
mod latest;

use std::collections::HashMap;
use std::fmt;

use futures_util::future::join_all;
use slidegate_core::{Check, Decision, Policy, Quota, QuotaReport, Reason, Retry, Source, Verb};

pub use self::builder::FallbackBuilder;

pub use self::latest::Failure;

use self::group::Group;
use self::latest::Latest;
use super::breaker::BreakerState;
use super::budget::{too_late, within};
use super::rules::OnFailure;
use super::shares::Shares;
use super::signals;
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::invalidation::FeedVersion;
use crate::store::memory::MemoryStore;
use crate::store::{Operation, Store};

/// A store that answers in time, and falls back to what the policy asks for when the one below does not decide.
///
/// - **Time budget.** The store has so long to answer, 20 ms unless told otherwise, whatever it does.
/// - **Failure policy.** [`OnFailure`] for each policy. What is decided without the store says so: its source is
///   [`Source::Fallback`] with the reason.
/// - **Circuit breaker.** A store that fails is left alone and taken up again little by little
///   ([`Breaker`](super::Breaker)), for each policy that has a rule of its own by itself. A store that is full or
///   refuses for good is asked on.
/// - **It counts all the time.** What the store admits here is counted in memory too, against this node's share, if the
///   policy falls back to it. A store that comes and goes therefore yields what the algorithm promises for the limit, and
///   once more what it promises for all shares, not once more each time.
///
/// Only checks and peeks fall back. A charge, refund, reset or block that the store did not confirm is an error. A charge
/// counts against this node's share nevertheless, because its cost has arisen; the others change nothing here.
///
/// ```
/// use slidegate::resilience::{Fallback, FailureRule, OnFailure};
/// use slidegate::{Limiter, MemoryStore};
///
/// let login = FailureRule { on_failure: OnFailure::Closed, ..FailureRule::default() };
/// let store = Fallback::builder(MemoryStore::new()).nodes(4).policy("login", login).build()?;
/// let limiter = Limiter::new(store);
/// # let _ = limiter;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fallback<S, C: Clock = PreciseClock> {
    store: S,
    clock: C,
    local: MemoryStore<C>,
    shares: Shares,
    latest: Latest,
    usual: Group<C>,
    by_policy: HashMap<Box<str>, Group<C>>,
}

/// Above this many, a batch that is late says nothing about the store.
const MOST_TELLING: usize = 64;

impl<S, C: Clock> Fallback<S, C> {
    /// The store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// What is done at present with requests of policies without a rule of their own.
    pub fn breaker_state(&self) -> BreakerState {
        self.usual.breaker.state()
    }

    /// What is done at present with requests of the policy called `name`.
    pub fn breaker_state_of(&self, name: &str) -> BreakerState {
        self.by_policy.get(name).unwrap_or(&self.usual).breaker.state()
    }

    /// Why the store did not decide when it was last asked, for whatever policy and key; `None` if it did. A breaker that
    /// lets requests through says nothing about this: a store that refuses for good is asked on.
    pub fn failure(&self) -> Option<Failure> {
        self.latest.failure()
    }

    /// A policy that was made of quotas in a request has no name by which a rule could be meant.
    fn group(&self, policy: &Policy) -> &Group<C> {
        let by_name = if policy.is_anonymous() { None } else { self.by_policy.get(policy.name()) };
        by_name.unwrap_or(&self.usual)
    }

    /// Repeats in memory the change that the store has made.
    fn keep_up(&self, operation: &Operation<'_>, decision: &Decision) {
        match operation.verb {
            Verb::Check if decision.is_allowed() => self.spend_share(operation),
            Verb::Charge => self.spend_share(operation),
            Verb::Check | Verb::Peek => {}
            Verb::Refund | Verb::Reset | Verb::Block => {
                let share = self.shares.of(operation.check.policy);
                // A full table here is no reason to doubt the store.
                let _ = self.local_now(&share, operation, operation.check.cost);
            }
        }
    }

    /// Spends the operation's cost of this node's share, and at most what is left of it: a debt in the share would deny
    /// long after the store's own count has aged.
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
        self.local.execute_now(Operation { verb: operation.verb, check })
    }

    /// What the policy asks for instead of the store's answer.
    fn fall_back(
        &self,
        operation: &Operation<'_>,
        group: &Group<C>,
        reason: Reason,
        error: impl FnOnce() -> StoreError,
    ) -> Result<Decision, StoreError> {
        if !matches!(operation.verb, Verb::Check | Verb::Peek) {
            // The store has not confirmed the charge, yet the cost has arisen.
            if operation.verb == Verb::Charge && group.rule.on_failure == OnFailure::Local {
                self.spend_share(operation);
            }
            return Err(error());
        }
        let policy = operation.check.policy;
        group.falls_back(policy, reason, self.clock.now_ms());
        let source = Source::Fallback(reason);
        match group.rule.on_failure {
            OnFailure::Open => Ok(Decision::unspent(policy, source)),
            OnFailure::Closed => Err(error()),
            OnFailure::Local => {
                let share = self.shares.of(policy);
                let decision = self.local_now(&share, operation, operation.check.cost)?;
                Ok(not_for_good(decision, policy, operation.check.cost).by(source))
            }
        }
    }

    fn settle(
        &self,
        operation: &Operation<'_>,
        group: &Group<C>,
        answer: Result<Decision, StoreError>,
    ) -> Result<Decision, StoreError> {
        match answer {
            Ok(decision) => {
                self.latest.decided();
                group.is_decided(operation.check.policy, self.clock.now_ms());
                if group.rule.on_failure == OnFailure::Local {
                    self.keep_up(operation, &decision);
                }
                Ok(decision)
            }
            Err(error) => {
                signals::failed(&error, 1);
                group.note(&error);
                let reason = reason(&error);
                self.latest.failed(reason, &error);
                self.fall_back(operation, group, reason, || error.clone())
            }
        }
    }
}

impl<S: Store, C: Clock> Fallback<S, C> {
    /// Operations under one rule, in one call of the store.
    async fn execute_group(
        &self,
        group: &Group<C>,
        operations: &[Operation<'_>],
    ) -> Vec<Result<Decision, StoreError>> {
        let all_fall_back = |reason: Reason, error: &StoreError| {
            operations.iter().map(|one| self.fall_back(one, group, reason, || error.clone())).collect()
        };
        let Some(permit) = group.breaker.admit() else {
            return all_fall_back(Reason::Resting, &group.resting());
        };
        let budget = group.rule.budget;
        let Some(answers) = within(budget, self.store.execute_many(operations)).await else {
            let error = too_late(budget);
            signals::failed(&error, operations.len());
            group.note(&error);
            self.latest.failed(Reason::Timeout, &error);
            if operations.len() <= MOST_TELLING {
                group.conclude(permit, Some(&error));
            }
            return all_fall_back(Reason::Timeout, &error);
        };
        group.conclude(permit, answers.iter().find_map(hold_up));
        let missing = std::iter::repeat_with(|| Err(unanswered()));
        let each = operations.iter().zip(answers.into_iter().chain(missing));
        each.map(|(operation, answer)| self.settle(operation, group, answer)).collect()
    }
}

impl<S: Store, C: Clock> Store for Fallback<S, C> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let group = self.group(operation.check.policy);
        let Some(permit) = group.breaker.admit() else {
            return self.fall_back(&operation, group, Reason::Resting, || group.resting());
        };
        let budget = group.rule.budget;
        if let Some(answer) = within(budget, self.store.execute(operation)).await {
            group.conclude(permit, hold_up(&answer));
            self.settle(&operation, group, answer)
        } else {
            let error = too_late(budget);
            signals::failed(&error, 1);
            self.latest.failed(Reason::Timeout, &error);
            group.conclude(permit, Some(&error));
            self.fall_back(&operation, group, Reason::Timeout, || error)
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let groups: Vec<&Group<C>> =
            operations.iter().map(|operation| self.group(operation.check.policy)).collect();
        let Some(first) = groups.first() else { return Vec::new() };
        if groups.iter().all(|group| std::ptr::eq(*group, *first)) {
            return self.execute_group(first, operations).await;
        }
        // Each rule by itself, at the same time, so that nobody's patience is cut short by another's.
        let mut parts: Vec<(&Group<C>, Vec<usize>)> = Vec::new();
        for (place, group) in groups.into_iter().enumerate() {
            match parts.iter_mut().find(|(known, _)| std::ptr::eq(*known, group)) {
                Some((_, places)) => places.push(place),
                None => parts.push((group, vec![place])),
            }
        }
        let mut asked = Vec::new();
        for (group, places) in parts {
            let part: Vec<Operation<'_>> = places.iter().map(|place| operations[*place]).collect();
            asked.push(async move { (places, self.execute_group(group, &part).await) });
        }
        let answered = join_all(asked).await;
        let mut answers: Vec<_> = operations.iter().map(|_| Err(unanswered())).collect();
        for (places, part) in answered {
            for (place, answer) in places.into_iter().zip(part) {
                answers[place] = answer;
            }
        }
        answers
    }

    /// Takes the time that it takes, whatever the budget and the breaker. What this node counts by itself is forgotten once the
    /// store has forgotten.
    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        let forgotten = self.store.forget(policy).await?;
        self.local.forget_now(policy)?;
        Ok(forgotten)
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        self.store.feed_version(check)
    }
}

impl<S: fmt::Debug, C: Clock> fmt::Debug for Fallback<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Fallback");
        debug.field("store", &self.store).field("usual", &self.usual.rule);
        debug.finish_non_exhaustive()
    }
}

pub(super) fn unanswered() -> StoreError {
    StoreError::permanent("the store has given fewer answers than were asked for").perhaps_counted()
}

/// The failure for which a store is to be left alone. One that is full or refuses for good may be so to some keys only.
fn hold_up(answer: &Result<Decision, StoreError>) -> Option<&StoreError> {
    answer.as_ref().err().filter(|error| error.is_transient() && !error.is_full())
}

pub(super) fn reason(error: &StoreError) -> Reason {
    if error.is_full() {
        Reason::Full
    } else if error.is_late() {
        Reason::Timeout
    } else if error.is_transient() {
        Reason::Unavailable
    } else {
        Reason::Refused
    }
}

/// A cost that exceeds this node's share, but not the limit, will be allowed when the store is back. When that is, nobody
/// knows: one may ask again soon.
fn not_for_good(decision: Decision, policy: &Policy, cost: u64) -> Decision {
    const SOON: Retry = Retry::AfterMs(1000);
    if !decision.is_never() || policy.quotas().iter().any(|quota: &Quota| cost > quota.capacity()) {
        return decision;
    }
    let report = |report: &QuotaReport| match report.retry {
        Some(Retry::Never) => QuotaReport { retry: Some(SOON), ..*report },
        _ => *report,
    };
    Decision::new(false, decision.source(), decision.quotas().iter().map(report).collect())
}
