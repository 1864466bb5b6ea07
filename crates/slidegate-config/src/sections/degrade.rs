//! Section `degrade`: behaviour when the store fails, and modes of policies.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use slidegate::resilience::{FailureRule, Mode, OnFailure, PolicySwitch};
use slidegate::store::StoreUrl;

use crate::fields::containers::Mapping;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields};
use crate::fields::scalars::{Boolean, Integer, Keyword, OneOf, Time};

const NODES: Field<Integer> =
    Field::new("nodes", Integer { min: 1, max: 100_000 }, "Number of servers that share the store.")
        .with_default("1");
const ON_FAILURE: Field<OneOf<OnFailure>> = Field::new(
    "on_failure",
    OneOf::ANY,
    "Decision for requests that the store does not decide: open allows them, closed rejects them with 503, local \
     applies this server's share of the limits.",
)
.with_default("local");
const BUDGET: Field<Time> = Field::new(
    "budget",
    Time::UP_TO_A_MINUTE,
    "Time that a store call may take; budget_ms in the store's URL takes precedence.",
)
.with_default("20ms");
const RETRY_JITTER: Field<Time> = Field::new(
    "retry_jitter",
    Time::UP_TO_A_MINUTE.or_none(),
    "Maximum random time added to the retry time of a denial.",
)
.with_default("none");
const CACHE_DENIALS: Field<Boolean> =
    Field::new("cache_denials", Boolean, "Whether this server caches denials until they end.")
        .with_default("true");

pub(crate) const DEGRADE: Mapping<DegradeConfig> = Mapping {
    fields: &[&NODES, &ON_FAILURE, &BUDGET, &RETRY_JITTER, &CACHE_DENIALS],
    one_of: &[],
    read: |fields, diagnostics| Some(degrade(fields, diagnostics)),
};

/// Behaviour when the store fails, and modes of policies.
#[derive(Clone, Debug)]
pub struct DegradeConfig {
    /// Number of servers that share the store.
    pub nodes: Option<u32>,
    /// Decision for requests that the store does not decide.
    pub on_failure: OnFailure,
    /// Time that a store call may take.
    pub budget: Option<Duration>,
    /// Maximum random time added to the retry time of a denial.
    pub retry_jitter: Duration,
    /// Whether this server caches denials until they end.
    pub cache_denials: bool,
    /// Values that single policies set instead, by name of the policy.
    pub overrides: HashMap<String, DegradeOverride>,
    /// Policies with a mode, an allow list, a deny list or a candidate.
    pub switches: Vec<(String, PolicySwitch)>,
}

/// Values that a policy sets instead of those in `degrade`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DegradeOverride {
    /// Decision for requests that the store does not decide.
    pub on_failure: Option<OnFailure>,
    /// Time that a store call may take.
    pub budget: Option<Duration>,
    /// Maximum random time added to the retry time of a denial.
    pub retry_jitter: Option<Duration>,
    /// Whether this server caches denials until they end.
    pub cache_denials: Option<bool>,
}

impl DegradeOverride {
    /// Returns the failure rule of the policy, completed from `default`; `None` if the policy sets no part of it.
    pub fn failure_rule(self, default: FailureRule) -> Option<FailureRule> {
        if self.on_failure.is_none() && self.budget.is_none() {
            return None;
        }

        let rule = FailureRule::new(self.on_failure.unwrap_or(default.on_failure));
        Some(rule.budget(self.budget.unwrap_or(default.budget)))
    }
}

impl Default for DegradeConfig {
    fn default() -> Self {
        Self {
            nodes: None,
            on_failure: OnFailure::default(),
            budget: None,
            retry_jitter: Duration::ZERO,
            cache_denials: true,
            overrides: HashMap::new(),
            switches: Vec::new(),
        }
    }
}

fn degrade(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> DegradeConfig {
    DegradeConfig {
        nodes: fields.get(&NODES, diagnostics).and_then(|nodes| u32::try_from(nodes).ok()),
        on_failure: fields.get(&ON_FAILURE, diagnostics).unwrap_or_default(),
        budget: fields.get(&BUDGET, diagnostics),
        retry_jitter: fields.get(&RETRY_JITTER, diagnostics).unwrap_or_default(),
        cache_denials: fields.get(&CACHE_DENIALS, diagnostics).unwrap_or(true),
        ..DegradeConfig::default()
    }
}

impl DegradeConfig {
    /// Returns the failure rule of policies without their own, for the store at `url`.
    pub fn default_rule(&self, url: &StoreUrl) -> FailureRule {
        let rule = FailureRule::new(self.on_failure);
        // The URL is specific to this store, hence its budget takes precedence.
        url.budget().or(self.budget).map_or(rule, |budget| rule.budget(budget))
    }

    /// Returns whether both have the same values for policies without their own.
    pub(crate) fn has_same_defaults(&self, other: &Self) -> bool {
        let defaults = |config: &Self| {
            (config.nodes, config.on_failure, config.budget, config.retry_jitter, config.cache_denials)
        };
        defaults(self) == defaults(other)
    }

    /// Returns the policies that set at least one value, with their values.
    pub(crate) fn policy_overrides(&self) -> BTreeMap<&str, DegradeOverride> {
        let set = self.overrides.iter().filter(|(_, values)| **values != DegradeOverride::default());
        set.map(|(name, values)| (name.as_str(), *values)).collect()
    }
}

impl Keyword for OnFailure {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [
            (Self::Open.name(), Self::Open),
            (Self::Closed.name(), Self::Closed),
            (Self::Local.name(), Self::Local),
        ]
        .into_iter()
    }
}

impl Keyword for Mode {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [
            (Self::Enforce.name(), Self::Enforce),
            (Self::Shadow.name(), Self::Shadow),
            (Self::Off.name(), Self::Off),
        ]
        .into_iter()
    }
}
