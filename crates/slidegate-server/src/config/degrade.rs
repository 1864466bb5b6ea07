//! What the file says about failing stores, and about policies that are switched.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;
use slidegate::degrade::{FailureRule, Mode, OnFailure, PolicySwitch};
use slidegate::tower::HeaderStyle;

use super::build::{line_of, named_quotas};
use super::file::{PolicyFields, Quotas};
use super::problem::Problem;
use super::span::span;
use crate::tokens::Scope;
use crate::whole::Whole;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DegradeFields {
    nodes: Option<Spanned<Whole<1, 100_000>>>,
    on_failure: Option<Spanned<String>>,
    budget: Option<Spanned<String>>,
    retry_jitter: Option<Spanned<String>>,
    cache_denials: Option<bool>,
}

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
        Self::build(&DegradeFields::default(), &mut Vec::new())
    }
}

impl DegradeConfig {
    pub(super) fn build(fields: &DegradeFields, problems: &mut Vec<Problem>) -> Self {
        let nodes = fields.nodes.as_ref().and_then(|nodes| {
            let refuse = |message| problems.push(Problem::at(line_of(nodes), "degrade.nodes", message));
            nodes.value.checked().map_err(refuse).ok().and_then(|nodes| u32::try_from(nodes).ok())
        });
        Self {
            nodes,
            on_failure: one_of("degrade.on_failure", fields.on_failure.as_ref(), problems)
                .unwrap_or_default(),
            budget: span("degrade.budget", fields.budget.as_ref(), problems),
            retry_jitter: span_or_none("degrade.retry_jitter", fields.retry_jitter.as_ref(), problems)
                .unwrap_or_default(),
            cache_denials: fields.cache_denials.unwrap_or(true),
            rules: HashMap::new(),
            switches: Vec::new(),
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

    /// Adds what the policy called `name` asks for.
    pub(super) fn add(&mut self, name: &str, fields: &PolicyFields, problems: &mut Vec<Problem>) {
        let path = |field: &str| format!("policies.{name}.{field}");
        let rule = PolicyRule {
            on_failure: one_of(&path("on_failure"), fields.on_failure.as_ref(), problems),
            budget: span(&path("budget"), fields.budget.as_ref(), problems),
            retry_jitter: span_or_none(&path("retry_jitter"), fields.retry_jitter.as_ref(), problems),
            cache_denials: fields.cache_denials,
        };
        self.rules.insert(name.to_owned(), rule);
        let is_plain = fields.mode.is_none()
            && fields.allow.is_none()
            && fields.deny.is_none()
            && fields.candidate.is_none();
        if is_plain {
            return;
        }
        let keys =
            |keys: &Option<Vec<String>>| keys.iter().flatten().map(|key| key.clone().into_bytes()).collect();
        let mut switch = PolicySwitch::default();
        switch.mode = one_of(&path("mode"), fields.mode.as_ref(), problems).unwrap_or_default();
        switch.allowed_keys = keys(&fields.allow);
        switch.denied_keys = keys(&fields.deny);
        if let Some(quotas) = &fields.candidate {
            candidate(&mut switch, name, quotas, problems);
        }
        self.switches.push((name.to_owned(), switch));
    }
}

fn candidate(switch: &mut PolicySwitch, name: &str, quotas: &Quotas, problems: &mut Vec<Problem>) {
    let path = format!("policies.{name}.candidate");
    let before = problems.len();
    let named = named_quotas(&path, quotas, problems);
    if problems.len() == before
        && let Err(error) = switch.set_candidate(name, named.into_iter().map(|named| named.quota))
    {
        problems.push(Problem::at(line_of(quotas), path, error.message()));
    }
}

/// A word that the configuration knows.
pub(super) trait Word: Copy + 'static {
    const ALL: &'static [(&'static str, Self)];
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

impl Word for HeaderStyle {
    const ALL: &'static [(&'static str, Self)] = &[
        ("ietf", Self::Draft),
        ("legacy-epoch", Self::LegacyEpoch),
        ("legacy-delta", Self::LegacyDelta),
        ("none", Self::None),
    ];
}

impl Word for Scope {
    const ALL: &'static [(&'static str, Self)] = &[("read", Self::Read), ("write", Self::Write)];
}

pub(super) fn one_of<T: Word>(
    field: &str,
    text: Option<&Spanned<String>>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let text = text?;
    let found = T::ALL.iter().find(|(name, _)| *name == text.value);
    if found.is_none() {
        let names: Vec<&str> = T::ALL.iter().map(|(name, _)| *name).collect();
        let message = format!("{:?} is not one of {}", text.value, names.join(", "));
        problems.push(Problem::at(line_of(text), field, message));
    }
    found.map(|(_, value)| *value)
}

/// A time, or `none`: a policy may want none where the others have one.
fn span_or_none(
    field: &str,
    text: Option<&Spanned<String>>,
    problems: &mut Vec<Problem>,
) -> Option<Duration> {
    if text.is_some_and(|text| text.value == "none") {
        return Some(Duration::ZERO);
    }
    span(field, text, problems)
}
