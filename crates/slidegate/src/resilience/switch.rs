//! Settings of policies that can be changed at run time: mode, lists of allowed and denied keys, candidate quotas.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use slidegate_core::{Decision, Policy, Quota, QuotaError, Source, Verb};

use super::mode::Mode;
use super::rules::fallback_reason;
use super::telemetry;
use crate::error::StoreError;
use crate::store::StoreLayer;
use crate::store::responses::{Responses, missing_response};
use crate::store::{Operation, Store};

/// Run-time settings of one policy.
#[derive(Clone, Debug, Default)]
pub struct PolicySwitch {
    /// Enforcement mode.
    pub mode: Mode,
    /// Keys that are always allowed and never counted.
    pub allowed_keys: HashSet<Vec<u8>>,
    /// Keys that are always denied while the policy is enforced, even if they are in `allowed_keys`.
    pub denied_keys: HashSet<Vec<u8>>,
    candidate: Option<Arc<Policy>>,
}

impl PolicySwitch {
    /// Sets quotas that are evaluated beside those of the policy called `name` without being enforced. They have counts
    /// of their own. [`Decision::shadow`] holds their decision, unless the policy itself is in [`Mode::Shadow`].
    pub fn set_candidate(
        &mut self,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<(), QuotaError> {
        self.candidate = Some(Arc::new(Policy::candidate_for(name, quotas)?));
        Ok(())
    }

    /// Returns the candidate, if one is set.
    pub fn candidate(&self) -> Option<&Policy> {
        self.candidate.as_deref()
    }

    /// Removes the candidate.
    pub fn clear_candidate(&mut self) {
        self.candidate = None;
    }

    /// Returns the decision of the mode or of a list, without the store.
    fn rule_decision(&self, operation: &Operation<'_>) -> Option<Decision> {
        // Blocks and resets reach the store in every mode, so that they are in force when the policy is enforced again.
        if !operation.verb.can_be_denied() && operation.verb != Verb::Refund {
            return None;
        }
        let (policy, key) = (operation.check.policy, operation.check.key);
        let (rule, decision) = if self.mode == Mode::Off {
            ("off", Decision::allowed_by(policy, Source::Rule))
        } else if !operation.verb.can_be_denied() {
            return None;
        } else if self.denied_keys.contains(key) {
            ("denied", Decision::denied_by(policy, Source::Rule))
        } else if self.allowed_keys.contains(key) {
            ("allowed", Decision::allowed_by(policy, Source::Rule))
        } else {
            return None;
        };
        telemetry::count_rule(policy, rule);
        Some(if self.mode == Mode::Shadow && !decision.is_allowed() {
            decision.in_shadow()
        } else {
            decision
        })
    }

    /// Combines the store's responses for the policy and its candidate according to the mode.
    fn enforce(
        &self,
        operation: &Operation<'_>,
        response: Result<Decision, StoreError>,
        candidate: Option<Result<Decision, StoreError>>,
    ) -> Result<Decision, StoreError> {
        let policy = operation.check.policy;
        let can_be_denied = operation.verb.can_be_denied();
        if let (true, Some(Ok(candidate))) = (can_be_denied, &candidate) {
            telemetry::count_shadow_denial(policy, "candidate", candidate);
        }
        match (response, self.mode) {
            (Ok(decision), Mode::Shadow) if can_be_denied => {
                telemetry::count_shadow_denial(policy, "policy", &decision);
                Ok(decision.in_shadow())
            }
            // A policy in shadow mode allows every request even while the store fails. A lost change is still an error.
            (Err(error), Mode::Shadow)
                if !error.is_usage()
                    && (operation.verb.is_check_or_peek() || operation.verb == Verb::Refund) =>
            {
                Ok(Decision::allowed_by(policy, Source::Fallback(fallback_reason(&error))))
            }
            (Ok(decision), _) => match candidate {
                Some(Ok(candidate)) if can_be_denied => Ok(decision.with_candidate(&candidate)),
                _ => Ok(decision),
            },
            (Err(error), _) => Err(error),
        }
    }
}

/// A store with run-time settings for each policy.
///
/// ```
/// use slidegate::resilience::{Mode, Switch};
/// use slidegate::Policy;
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = StoreLimiter::new(Switch::new(MemoryStore::new()));
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
    /// Wraps `store` with every policy enforced.
    pub fn new(store: S) -> Self {
        Self { store, policies: ArcSwap::default() }
    }

    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the settings of the policy called `name`.
    pub fn of(&self, name: &str) -> PolicySwitch {
        self.policies.load().get(name).map(|switch| PolicySwitch::clone(switch)).unwrap_or_default()
    }

    /// Changes the settings of the policy called `name` atomically. Every later request sees the whole change.
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
        telemetry::report_mode_change(name, before, after);
    }

    /// Replaces the settings of all policies atomically. Policies that are not named get the default settings.
    pub fn replace(&self, switches: impl IntoIterator<Item = (String, PolicySwitch)>) {
        let switches = switches.into_iter().map(|(name, switch)| (name.into_boxed_str(), Arc::new(switch)));
        let after: Arc<HashMap<Box<str>, Arc<PolicySwitch>>> = Arc::new(switches.collect());
        let before = self.policies.swap(Arc::clone(&after));
        let names: BTreeSet<&str> = before.keys().chain(after.keys()).map(|name| &**name).collect();
        for name in names {
            let mode = |switches: &HashMap<Box<str>, Arc<PolicySwitch>>| {
                switches.get(name).map(|switch| switch.mode).unwrap_or_default()
            };
            telemetry::report_mode_change(name, mode(&before), mode(&after));
        }
    }

    fn switch_of(&self, policy: &Policy) -> Option<Arc<PolicySwitch>> {
        // An anonymous policy, made of quotas in a request, has no name to look up.
        if policy.is_anonymous() { None } else { self.policies.load().get(policy.name()).cloned() }
    }
}

/// Origin of the response to an operation.
enum Plan<'a> {
    Rule(Decision),
    /// Next response of the store, followed by another one if the policy has a candidate.
    Store {
        operation: &'a Operation<'a>,
        switch: Option<Arc<PolicySwitch>>,
    },
}

impl<S: Store> Switch<S> {
    fn plan<'a>(&self, operation: &'a Operation<'a>) -> Plan<'a> {
        let switch = self.switch_of(operation.check.policy);
        match switch.as_ref().and_then(|switch| switch.rule_decision(operation)) {
            Some(decision) => Plan::Rule(decision),
            None => Plan::Store { operation, switch },
        }
    }

    /// Executes operations of policies with settings. The policy and its candidate are separate operations of one call,
    /// so that a failure of the candidate does not affect the policy.
    async fn execute_planned(&self, plans: &[Plan<'_>]) -> Responses {
        let mut sent = Vec::with_capacity(plans.len());
        for plan in plans {
            if let Plan::Store { operation, switch } = plan {
                sent.push(**operation);
                sent.extend(candidate(switch.as_ref()).map(|candidate| with_policy(operation, candidate)));
            }
        }
        let responses = if sent.is_empty() { Responses::default() } else { self.store.execute(&sent).await };
        let mut responses = responses.into_iter();
        let settle = |plan: &Plan<'_>| match plan {
            Plan::Rule(decision) => Ok(decision.clone()),
            Plan::Store { operation, switch } => {
                let response = responses.next().unwrap_or_else(|| Err(missing_response()));
                let tried = candidate(switch.as_ref()).and_then(|_| responses.next());
                match switch {
                    Some(switch) => switch.enforce(operation, response, tried),
                    None => response,
                }
            }
        };
        plans.iter().map(settle).collect()
    }
}

impl<S: Store> StoreLayer for Switch<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        if operations.iter().all(|operation| self.switch_of(operation.check.policy).is_none()) {
            return self.store.execute(operations).await;
        }
        let plans: Vec<Plan<'_>> = operations.iter().map(|operation| self.plan(operation)).collect();
        self.execute_planned(&plans).await
    }

    /// Resets the policy and its candidate. Returns the number of keys of the policy.
    async fn apply_forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        if let Some(candidate) = candidate(self.switch_of(policy).as_ref()) {
            self.store.forget(candidate).await?;
        }
        self.store.forget(policy).await
    }
}

fn candidate(switch: Option<&Arc<PolicySwitch>>) -> Option<&Policy> {
    switch?.candidate.as_deref()
}

/// Returns the operation under another policy.
fn with_policy<'a>(operation: &Operation<'a>, policy: &'a Policy) -> Operation<'a> {
    Operation { check: policy.key(operation.check.key).cost(operation.check.cost), ..*operation }
}
