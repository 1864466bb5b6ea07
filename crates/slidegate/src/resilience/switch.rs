//! Lists and switches that can be changed while it runs: who is never asked, who is never let in, and which policy is off
//! or only looks on.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::join;
use slidegate_core::{Check, Decision, Policy, Quota, QuotaError, Source, Verb};

use super::fallback::{reason, unanswered};
use super::signals;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{Operation, Store};

/// What is made of a policy's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are enforced.
    #[default]
    Enforce,
    /// They are made, counted and reported, and nobody is denied: [`Decision::shadow`] is what was decided.
    Shadow,
    /// None are made. Everything is allowed and nothing is counted.
    Off,
}

impl Mode {
    /// The name in configuration and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

/// The switches of one policy.
#[derive(Clone, Debug, Default)]
pub struct PolicySwitch {
    /// What is made of its decisions.
    pub mode: Mode,
    /// Keys that are always allowed and never counted.
    pub allowed_keys: HashSet<Vec<u8>>,
    /// Keys that are always denied where the policy is enforced, even if they are among those allowed.
    pub denied_keys: HashSet<Vec<u8>>,
    candidate: Option<Arc<Policy>>,
}

impl PolicySwitch {
    /// Quotas that are decided beside those of the policy called `name` and not enforced, to see what they would do.
    /// They count by themselves; each [`Decision::shadow`] is theirs, unless the policy itself is only a shadow.
    pub fn set_candidate(
        &mut self,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<(), QuotaError> {
        self.candidate = Some(Arc::new(Policy::candidate_for(name, quotas)?));
        Ok(())
    }

    /// The candidate, if there is one.
    pub fn candidate(&self) -> Option<&Policy> {
        self.candidate.as_deref()
    }

    /// Without a candidate.
    pub fn clear_candidate(&mut self) {
        self.candidate = None;
    }

    /// The answer to `operation` that needs no store.
    fn answer(&self, operation: &Operation<'_>) -> Option<Decision> {
        // An operator's block or reset holds in every mode: it must be in force when the policy is enforced again.
        if matches!(operation.verb, Verb::Block | Verb::Reset) {
            return None;
        }
        let (policy, key) = (operation.check.policy, operation.check.key);
        let (rule, decision) = if self.mode == Mode::Off {
            ("off", Decision::unspent(policy, Source::Rule))
        } else if !asks(operation.verb) {
            return None;
        } else if self.denied_keys.contains(key) {
            ("denied", Decision::refused(policy, Source::Rule))
        } else if self.allowed_keys.contains(key) {
            ("allowed", Decision::unspent(policy, Source::Rule))
        } else {
            return None;
        };
        signals::ruled(policy, rule);
        Some(if self.mode == Mode::Shadow && !decision.is_allowed() {
            decision.in_shadow()
        } else {
            decision
        })
    }

    /// What is made of the store's answer, and of that to the candidate.
    fn enforce(
        &self,
        operation: &Operation<'_>,
        answer: Result<Decision, StoreError>,
        candidate: Option<Result<Decision, StoreError>>,
    ) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let asks = asks(operation.verb);
        if let (true, Some(Ok(candidate))) = (asks, &candidate) {
            signals::shadowed(policy, "candidate", candidate);
        }
        match (answer, self.mode) {
            (Ok(decision), Mode::Shadow) if asks => {
                signals::shadowed(policy, "policy", &decision);
                Ok(decision.in_shadow())
            }
            // A policy in shadow denies nothing, also when the store fails. A change that was not stored is an error.
            (Err(error), Mode::Shadow)
                if matches!(operation.verb, Verb::Check | Verb::Peek | Verb::Refund) =>
            {
                Ok(Decision::unspent(policy, Source::Fallback(reason(&error))))
            }
            (Ok(decision), _) => match candidate {
                Some(Ok(candidate)) if asks => Ok(decision.beside(&candidate)),
                _ => Ok(decision),
            },
            (Err(error), _) => Err(error),
        }
    }
}

/// Whether the verb spends or would spend, as opposed to giving back, so that its denial can be waived.
fn asks(verb: Verb) -> bool {
    matches!(verb, Verb::Check | Verb::Peek | Verb::Charge)
}

/// A store whose policies can be switched while it runs.
///
/// ```
/// use slidegate::resilience::{Mode, Switch};
/// use slidegate::{Limiter, MemoryStore, Policy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Switch::new(MemoryStore::new()));
/// let policy = Policy::parse("api", ["1/1h"])?;
/// limiter.check(policy.key("k")).await?;
/// assert!(!limiter.check(policy.key("k")).await?.is_allowed());
///
/// limiter.store().update("api", |switch| switch.mode = Mode::Shadow);
/// let decision = limiter.check(policy.key("k")).await?;
/// assert!(decision.is_allowed() && decision.shadow().is_some_and(|shadow| !shadow.is_allowed()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Switch<S> {
    store: S,
    policies: ArcSwap<HashMap<Box<str>, Arc<PolicySwitch>>>,
}

impl<S> Switch<S> {
    /// `store`, with every policy enforced.
    pub fn new(store: S) -> Self {
        Self { store, policies: ArcSwap::default() }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The switches of the policy called `name`.
    pub fn of(&self, name: &str) -> PolicySwitch {
        self.policies.load().get(name).map(|switch| PolicySwitch::clone(switch)).unwrap_or_default()
    }

    /// Changes the switches of the policy called `name`. Whoever asks from now on sees all of it, and nobody a part.
    pub fn update(&self, name: &str, change: impl Fn(&mut PolicySwitch)) {
        let (mut before, mut after) = (Mode::default(), Mode::default());
        self.policies.rcu(|policies| {
            let mut switch = policies.get(name).map(|switch| PolicySwitch::clone(switch)).unwrap_or_default();
            before = switch.mode;
            change(&mut switch);
            after = switch.mode;
            let mut policies = HashMap::clone(policies);
            policies.insert(name.into(), Arc::new(switch));
            policies
        });
        signals::switched(name, before, after);
    }

    /// Changes the switches of all policies at once; those of a policy that is not named are as they are at first.
    pub fn replace(&self, switches: impl IntoIterator<Item = (String, PolicySwitch)>) {
        let switches = switches.into_iter().map(|(name, switch)| (name.into_boxed_str(), Arc::new(switch)));
        let after: Arc<HashMap<Box<str>, Arc<PolicySwitch>>> = Arc::new(switches.collect());
        let before = self.policies.swap(Arc::clone(&after));
        let names: BTreeSet<&str> = before.keys().chain(after.keys()).map(|name| &**name).collect();
        for name in names {
            let mode = |switches: &HashMap<Box<str>, Arc<PolicySwitch>>| {
                switches.get(name).map(|switch| switch.mode).unwrap_or_default()
            };
            signals::switched(name, mode(&before), mode(&after));
        }
    }

    fn switch_of(&self, policy: &Policy) -> Option<Arc<PolicySwitch>> {
        // One that was made of quotas in a request has no name by which it could be meant.
        if policy.is_anonymous() { None } else { self.policies.load().get(policy.name()).cloned() }
    }
}

/// Where the answer to an operation comes from.
enum Plan<'a> {
    Ruled(Decision),
    /// The next answers of the store: one, and one more if there is a candidate.
    Asked {
        operation: &'a Operation<'a>,
        switch: Option<Arc<PolicySwitch>>,
    },
}

impl<S: Store> Store for Switch<S> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let Some(switch) = self.switch_of(operation.check.policy) else {
            return self.store.execute(operation).await;
        };
        if let Some(decision) = switch.answer(&operation) {
            return Ok(decision);
        }
        let Some(candidate) = &switch.candidate else {
            return switch.enforce(&operation, self.store.execute(operation).await, None);
        };
        // At the same time, and each for itself: the candidate's failure is not the policy's.
        let tried = self.store.execute(instead(&operation, candidate));
        let (answer, tried) = join(self.store.execute(operation), tried).await;
        switch.enforce(&operation, answer, Some(tried))
    }

    /// Only where nothing is switched.
    fn execute_at_once(&self, operation: Operation<'_>) -> Option<Result<Decision, StoreError>> {
        match self.switch_of(operation.check.policy) {
            None => self.store.execute_at_once(operation),
            Some(_) => None,
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let plan = |operation| {
            let switch = self.switch_of(Operation::clone(operation).check.policy);
            match switch.as_ref().and_then(|switch| switch.answer(operation)) {
                Some(decision) => Plan::Ruled(decision),
                None => Plan::Asked { operation, switch },
            }
        };
        let plans: Vec<Plan<'_>> = operations.iter().map(plan).collect();
        let mut asked = Vec::with_capacity(operations.len());
        for plan in &plans {
            if let Plan::Asked { operation, switch } = plan {
                asked.push(**operation);
                asked.extend(candidate(switch.as_ref()).map(|candidate| instead(operation, candidate)));
            }
        }
        let mut answers = self.store.execute_many(&asked).await.into_iter();
        let settle = |plan: &Plan<'_>| match plan {
            Plan::Ruled(decision) => Ok(decision.clone()),
            Plan::Asked { operation, switch } => {
                let answer = answers.next().unwrap_or_else(|| Err(unanswered()));
                let beside = candidate(switch.as_ref()).and_then(|_| answers.next());
                match switch {
                    Some(switch) => switch.enforce(operation, answer, beside),
                    None => answer,
                }
            }
        };
        plans.iter().map(settle).collect()
    }

    /// The keys of the candidate are forgotten as well. Returns how many there were of the policy.
    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        if let Some(candidate) = candidate(self.switch_of(policy).as_ref()) {
            self.store.forget(candidate).await?;
        }
        self.store.forget(policy).await
    }

    #[inline]
    fn announce(&self, check: &Check<'_>) {
        self.store.announce(check);
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }
}

fn candidate(switch: Option<&Arc<PolicySwitch>>) -> Option<&Policy> {
    switch?.candidate.as_deref()
}

/// The same under another policy.
fn instead<'a>(operation: &Operation<'a>, policy: &'a Policy) -> Operation<'a> {
    Operation { verb: operation.verb, check: policy.key(operation.check.key).cost(operation.check.cost) }
}
