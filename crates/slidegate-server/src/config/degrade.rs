//! What the file says about failing stores, and about policies that are switched.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use slidegate::resilience::{FailureRule, Mode, OnFailure, PolicySwitch};

use super::containers::Mapping;
use super::field::{Field, Fields};
use super::kinds::{Flag, OneOf, Time, Whole, Word};
use super::review::Review;
use super::store_url::StoreUrl;

const NODES: Field<Whole> =
    Field::new("nodes", Whole { min: 1, max: 100_000 }, "How many servers share the store.").usual("1");
const ON_FAILURE: Field<OneOf<OnFailure>> = Field::new(
    "on_failure",
    OneOf::ANY,
    "What becomes of requests that the store does not decide: allowed, refused with 503, or decided by this server's \
     share of the limits.",
)
.usual("local");
const BUDGET: Field<Time> = Field::new(
    "budget",
    Time::UP_TO_A_MINUTE,
    "How long the store may take; what a store's URL says goes over it.",
)
.usual("20ms");
const RETRY_JITTER: Field<Time> = Field::new(
    "retry_jitter",
    Time::UP_TO_A_MINUTE.or_none(),
    "By how much at most a retry is put off, at random.",
)
.usual("none");
const CACHE_DENIALS: Field<Flag> =
    Field::new("cache_denials", Flag, "Whether denials are remembered here until they end.").usual("true");

pub(super) const DEGRADE: Mapping<DegradeConfig> = Mapping {
    fields: &[&NODES, &ON_FAILURE, &BUDGET, &RETRY_JITTER, &CACHE_DENIALS],
    one_of: &[],
    read: |fields, review| Some(degrade(fields, review)),
};

/// What is done when the store fails, and which policies are switched.
#[derive(Clone, Debug)]
pub struct DegradeConfig {
    /// How many servers share the store.
    pub nodes: Option<u32>,
    /// What becomes of requests that the store does not decide.
    pub on_failure: OnFailure,
    /// How long the store may take.
    pub budget: Option<Duration>,
    /// By how much at most a retry is put off, at random.
    pub retry_jitter: Duration,
    /// Whether denials are remembered here until they end.
    pub cache_denials: bool,
    /// What single policies ask for instead, as far as they do.
    pub rules: HashMap<String, PolicyRule>,
    /// Policies that are not simply enforced.
    pub switches: Vec<(String, PolicySwitch)>,
}

/// What a policy asks for instead of what is usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyRule {
    /// What becomes of requests that the store does not decide.
    pub on_failure: Option<OnFailure>,
    /// How long the store may take.
    pub budget: Option<Duration>,
    /// By how much at most a retry is put off, at random.
    pub retry_jitter: Option<Duration>,
    /// Whether denials are remembered here.
    pub cache_denials: Option<bool>,
}

impl PolicyRule {
    /// The whole rule for when the store fails; nothing if the policy asks for nothing of its own.
    pub fn or(self, usual: FailureRule) -> Option<FailureRule> {
        if self.on_failure.is_none() && self.budget.is_none() {
            return None;
        }

        Some(FailureRule {
            on_failure: self.on_failure.unwrap_or(usual.on_failure),
            budget: self.budget.unwrap_or(usual.budget),
        })
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
            rules: HashMap::new(),
            switches: Vec::new(),
        }
    }
}

fn degrade(fields: &Fields<'_>, review: &mut Review) -> DegradeConfig {
    DegradeConfig {
        nodes: fields.get(&NODES, review).and_then(|nodes| u32::try_from(nodes).ok()),
        on_failure: fields.get(&ON_FAILURE, review).unwrap_or_default(),
        budget: fields.get(&BUDGET, review),
        retry_jitter: fields.get(&RETRY_JITTER, review).unwrap_or_default(),
        cache_denials: fields.get(&CACHE_DENIALS, review).unwrap_or(true),
        ..DegradeConfig::default()
    }
}

impl DegradeConfig {
    /// What holds over the store at `url` where a policy asks for nothing else.
    pub fn usual(&self, url: &StoreUrl) -> FailureRule {
        FailureRule {
            on_failure: self.on_failure,
            // What a URL says, be it by flag or in the file, is said of this very store.
            budget: url.budget().or(self.budget).unwrap_or(FailureRule::default().budget),
        }
    }

    /// Whether it asks for the same where a policy asks for nothing else.
    pub(super) fn is_usually_like(&self, other: &Self) -> bool {
        let usual = |it: &Self| (it.nodes, it.on_failure, it.budget, it.retry_jitter, it.cache_denials);
        usual(self) == usual(other)
    }

    /// What single policies ask for.
    pub(super) fn own_rules(&self) -> BTreeMap<&str, PolicyRule> {
        let own = self.rules.iter().filter(|(_, rule)| **rule != PolicyRule::default());
        own.map(|(name, rule)| (name.as_str(), *rule)).collect()
    }
}

impl Word for OnFailure {
    const ALL: &'static [(&'static str, Self)] = &[
        (Self::Open.name(), Self::Open),
        (Self::Closed.name(), Self::Closed),
        (Self::Local.name(), Self::Local),
    ];
}

impl Word for Mode {
    const ALL: &'static [(&'static str, Self)] = &[
        (Self::Enforce.name(), Self::Enforce),
        (Self::Shadow.name(), Self::Shadow),
        (Self::Off.name(), Self::Off),
    ];
}
