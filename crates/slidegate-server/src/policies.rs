//! The policies of the configuration, by name, tier and key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use slidegate::Policy;
use slidegate::tower::{ClientAddress, HeaderStyle, Tier};
use slidegate_config::{KeyRule, Override, PolicyEntry, PolicySet, listed};

use crate::json_fragments::PolicyFragments;
use crate::policy_metrics::PolicyMetrics;
use crate::request::Rejection;

/// Policies in force.
#[derive(Clone, Debug)]
pub struct Policies {
    by_name: BTreeMap<String, Entry>,
    /// Number of policies, tiers and sets of overrides with metrics of their own so far.
    counted: usize,
    headers: HeaderStyle,
    client: ClientAddress,
}

#[derive(Clone, Debug)]
struct Entry {
    source: PolicyEntry,
    standard: Arc<PolicyView>,
    tiers: BTreeMap<String, Arc<PolicyView>>,
    /// None if no key is treated otherwise, so that nothing has to be looked up.
    overrides: Option<Arc<HashMap<String, Arc<PolicyView>>>>,
    key: Option<KeyRule>,
}

/// A policy as some requests meet it, and what is said and counted about it.
#[derive(Debug)]
pub(crate) struct PolicyView {
    pub(crate) tier: Tier,
    pub(crate) headers: HeaderStyle,
    pub(crate) policy_metrics: Arc<PolicyMetrics>,
    pub(crate) spelled: PolicyFragments,
}

/// By what a request's quotas are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaSource<'a> {
    /// Its key has quotas of its own.
    OwnQuotas,
    /// Its key has this tier.
    OwnTier(&'a str),
    /// It names a tier.
    Tier(&'a str),
    /// Nothing else.
    Standard,
}

impl PolicyView {
    pub(crate) fn new(policy: Policy, headers: HeaderStyle, policy_metrics: Arc<PolicyMetrics>) -> Self {
        let spelled = PolicyFragments::of(&policy, Some(policy.name()));
        Self { tier: Tier::new(policy), headers, policy_metrics, spelled }
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.tier.policy()
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self::from(&PolicySet::default())
    }
}

impl From<&PolicySet> for Policies {
    fn from(set: &PolicySet) -> Self {
        let mut policies = Self {
            by_name: BTreeMap::new(),
            counted: 0,
            headers: set.headers(),
            client: set.client().clone(),
        };
        set.entries().for_each(|entry| policies.insert(entry));
        policies
    }
}

impl Policies {
    fn insert(&mut self, source: &PolicyEntry) {
        let source = source.clone();
        let PolicyEntry { policy, tiers, overrides, headers, key, labels } = source.clone();
        let headers = headers.unwrap_or(self.headers);
        let name = policy.name().to_owned();
        let mut named = |policy: Policy, tier: &str| {
            let policy_metrics =
                Arc::new(PolicyMetrics::for_policy(&policy, tier, self.counted, labels.as_deref()));
            self.counted += 1;
            Arc::new(PolicyView::new(policy, headers, policy_metrics))
        };
        let standard = named(policy, "");
        let tiers: BTreeMap<_, _> =
            tiers.into_iter().map(|(tier, policy)| (tier.clone(), named(policy, &tier))).collect();
        let mut by_key = HashMap::with_capacity(overrides.len());
        let mut of_overrides = None;
        for (key, replacement) in overrides {
            let named = match replacement {
                Override::Tier(tier) => tiers.get(&tier).cloned(),
                Override::Quotas(policy) => {
                    let policy_metrics = of_overrides.get_or_insert_with(|| {
                        self.counted += 1;
                        Arc::new(PolicyMetrics::for_overrides(&name, self.counted - 1))
                    });
                    let policy_metrics = Arc::clone(policy_metrics);
                    Some(Arc::new(PolicyView::new(policy, headers, policy_metrics)))
                }
            };
            by_key.extend(named.map(|named| (key, named)));
        }
        let overrides = (!by_key.is_empty()).then(|| Arc::new(by_key));
        self.by_name.insert(name, Entry { source, standard, tiers, overrides, key });
    }

    /// Returns all policies as the file and the changes define them, sorted by name.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &PolicyEntry> {
        self.by_name.values().map(|entry| &entry.source)
    }

    /// The names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Every policy in its standard tier, in the order of the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.by_name.values().map(|entry| entry.standard.policy())
    }

    /// Which headers answers carry where no policy says otherwise.
    pub fn headers(&self) -> HeaderStyle {
        self.headers
    }

    /// How the address of a client is found.
    pub fn client(&self) -> &ClientAddress {
        &self.client
    }

    /// Whom a request counts for when nobody says so; none if the policy has no rule for that.
    pub fn key_rule(&self, name: &str) -> Result<Option<&KeyRule>, Rejection> {
        self.entry(name).map(|entry| entry.key.as_ref())
    }

    /// What a request meets: what holds for its key, else its tier, else the standard.
    pub(crate) fn find(
        &self,
        name: &str,
        tier: Option<&str>,
        key: Option<&str>,
    ) -> Result<&Arc<PolicyView>, Rejection> {
        let entry = self.entry(name)?;
        let asked = match tier {
            None => &entry.standard,
            Some(tier) => entry.tiers.get(tier).ok_or_else(|| {
                let known = listed(entry.tiers.keys().map(String::as_str));
                let detail = format!("policy {name:?} has no tier {tier:?}; known: {known}");
                Rejection::out_of_range("tier", detail)
            })?,
        };
        let own = entry.overrides.as_ref().and_then(|overrides| overrides.get(key?));
        Ok(own.unwrap_or(asked))
    }

    /// One of them, as it was added.
    pub(crate) fn source(&self, name: &str) -> Result<&PolicyEntry, Rejection> {
        self.entry(name).map(|entry| &entry.source)
    }

    /// Why a request meets what [`find`](Self::find) says.
    pub(crate) fn why<'a>(
        &'a self,
        name: &str,
        tier: Option<&'a str>,
        key: Option<&str>,
    ) -> Result<QuotaSource<'a>, Rejection> {
        let entry = self.entry(name)?;
        let own = entry.overrides.as_ref().and_then(|overrides| overrides.get(key?));
        Ok(match (own, tier) {
            (Some(own), _) => match entry.tiers.iter().find(|(_, tier)| Arc::ptr_eq(tier, own)) {
                Some((name, _)) => QuotaSource::OwnTier(name),
                None => QuotaSource::OwnQuotas,
            },
            (None, Some(tier)) => QuotaSource::Tier(tier),
            (None, None) => QuotaSource::Standard,
        })
    }

    fn entry(&self, name: &str) -> Result<&Entry, Rejection> {
        self.by_name.get(name).ok_or_else(|| {
            Rejection::unknown_policy(&format!(
                "there is no policy {name:?}; known: {}",
                listed(self.by_name.keys().map(String::as_str))
            ))
        })
    }
}
