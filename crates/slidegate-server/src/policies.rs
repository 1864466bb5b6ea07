//! The policies of the configuration, by name and tier.

use std::collections::BTreeMap;
use std::sync::Arc;

use slidegate::Policy;

use crate::request::{Refusal, RefusalKind};
use crate::signals::Signals;

/// How many names an error lists before it only counts them.
const MOST_LISTED: usize = 20;

/// Every policy that a request may name.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_name: BTreeMap<String, Tiers>,
}

/// One policy, and the same policy with other quotas.
#[derive(Clone, Debug)]
struct Tiers {
    standard: Arc<Named>,
    by_name: BTreeMap<String, Arc<Named>>,
}

/// A policy in one of its tiers, and what is counted about it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) policy: Policy,
    pub(crate) signals: Signals,
}

impl Policies {
    /// Adds a policy, in place of one of the same name, with its tiers: policies of that same name with other
    /// quotas, so that counts carry over when a key changes its tier.
    pub fn insert(&mut self, policy: Policy, tiers: impl IntoIterator<Item = (String, Policy)>) {
        let before: usize = self.by_name.values().map(|tiers| 1 + tiers.by_name.len()).sum();
        let named = |policy: Policy, tier: &str, before| {
            let signals = Signals::of(&policy, tier, before);
            Arc::new(Named { policy, signals })
        };
        let tiers = (before + 1..).zip(tiers).map(|(before, (tier, policy))| {
            let named = named(policy, &tier, before);
            (tier, named)
        });
        let by_name = tiers.collect();
        let name = policy.name().to_owned();
        self.by_name.insert(name, Tiers { standard: named(policy, "", before), by_name });
    }

    /// The names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Every policy in its standard tier, in the order of the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.by_name.values().map(|tiers| &tiers.standard.policy)
    }

    pub(crate) fn find(&self, name: &str, tier: Option<&str>) -> Result<&Arc<Named>, Refusal> {
        let Some(tiers) = self.by_name.get(name) else {
            let detail = format!("there is no policy {name:?}; there is {}", listed(self.by_name.keys()));
            let field = Some("policy".to_owned());
            return Err(Refusal { field, ..Refusal::new(RefusalKind::UnknownPolicy, detail) });
        };
        let Some(tier) = tier else { return Ok(&tiers.standard) };
        tiers.by_name.get(tier).ok_or_else(|| {
            let known = listed(tiers.by_name.keys());
            Refusal::out_of_range("tier", format!("policy {name:?} has no tier {tier:?}; there is {known}"))
        })
    }
}

fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(MOST_LISTED);
    let listed: Vec<_> = names.take(MOST_LISTED).map(|name| format!("{name:?}")).collect();
    match (listed.as_slice(), more) {
        ([], _) => "none".to_owned(),
        (listed, 0) => listed.join(", "),
        (listed, more) => format!("{} and {more} more", listed.join(", ")),
    }
}
