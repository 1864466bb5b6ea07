//! Policies as the file defines them.

use std::collections::BTreeMap;

use slidegate::Policy;
use slidegate::address::ClientAddress;
use slidegate::headers::HeaderStyle;

use crate::key_rule::KeyRule;

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 20;

/// Policies by name, and the settings that they share.
#[derive(Clone, Debug)]
pub struct PolicySet {
    entries: BTreeMap<String, PolicyEntry>,
    headers: HeaderStyle,
    client: ClientAddress,
}

/// A policy as the file defines it.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    /// The policy with its own quotas.
    pub policy: Policy,
    /// Policies of the same name with other quotas, so that counts carry over when a key changes its tier.
    pub tiers: Vec<(String, Policy)>,
    /// Overrides of single keys.
    pub overrides: Vec<(String, Override)>,
    /// Style of rate-limit headers; `None` for the style of the set.
    pub headers: Option<HeaderStyle>,
    /// Rule for the key of requests that a proxy checks.
    pub key: Option<KeyRule>,
    /// Names of the quotas that have metrics of their own; `None` for all.
    pub labels: Option<Vec<String>>,
}

/// Override of a key. It takes precedence over the tier of the request.
#[derive(Clone, Debug, PartialEq)]
pub enum Override {
    /// A policy of the same name with other quotas.
    Quotas(Policy),
    /// A tier of the policy.
    Tier(String),
}

impl From<Policy> for PolicyEntry {
    fn from(policy: Policy) -> Self {
        Self { policy, tiers: Vec::new(), overrides: Vec::new(), headers: None, key: None, labels: None }
    }
}

impl Default for PolicySet {
    fn default() -> Self {
        Self::new(HeaderStyle::default(), ClientAddress::peer())
    }
}

impl PolicySet {
    /// Creates an empty set. `headers` is the style of policies without their own; `client` finds the address of a client.
    pub fn new(headers: HeaderStyle, client: ClientAddress) -> Self {
        Self { entries: BTreeMap::new(), headers, client }
    }

    /// Returns an empty set with the same settings.
    #[must_use]
    pub fn without_policies(&self) -> Self {
        Self::new(self.headers, self.client.clone())
    }

    /// Adds a policy, and replaces the policy of the same name.
    pub fn insert(&mut self, entry: impl Into<PolicyEntry>) {
        let entry: PolicyEntry = entry.into();
        self.entries.insert(entry.policy.name().to_owned(), entry);
    }

    /// Returns the policy called `name`.
    pub fn get(&self, name: &str) -> Option<&PolicyEntry> {
        self.entries.get(name)
    }

    /// Returns all policies, sorted by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &PolicyEntry> {
        self.entries.values()
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the style of rate-limit headers of policies without their own.
    pub fn headers(&self) -> HeaderStyle {
        self.headers
    }

    /// Returns the rule that finds the address of a client.
    pub fn client(&self) -> &ClientAddress {
        &self.client
    }
}

/// Lists the first names, and the number of the others, for messages.
pub fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(MAX_LISTED);
    let listed: Vec<_> = names.take(MAX_LISTED).map(|name| format!("{name:?}")).collect();
    match (listed.as_slice(), more) {
        ([], _) => "none".to_owned(),
        (listed, 0) => listed.join(", "),
        (listed, more) => format!("{} and {more} more", listed.join(", ")),
    }
}
