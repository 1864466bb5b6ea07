//! Policies of the configuration, by name, tier and key.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use slidegate::Policy;
use slidegate::address::ClientAddress;
use slidegate::headers::HeaderStyle;
use slidegate_config::{KeyRule, Override, PolicyEntry, PolicySet, listed};

use crate::policy_metrics::PolicyMetrics;
use crate::request::Rejection;

/// Policies in force.
#[derive(Clone, Debug)]
pub struct Policies {
    by_name: BTreeMap<String, IndexedPolicy>,
    /// Number of policies, tiers and sets of overrides with metrics.
    metrics_count: usize,
    headers: HeaderStyle,
    client: ClientAddress,
}

/// A policy, prepared for lookups.
#[derive(Clone, Debug)]
struct IndexedPolicy {
    entry: PolicyEntry,
    standard: Arc<PolicyView>,
    tiers: BTreeMap<String, Arc<PolicyView>>,
    /// Views by key; `None` without overrides, which saves the lookup.
    overrides: Option<Arc<HashMap<String, Arc<PolicyView>>>>,
    key: Option<KeyRule>,
}

/// Quotas of a policy for a tier or a key, with their metrics.
pub struct PolicyView {
    policy: Policy,
    headers: HeaderStyle,
    metrics: Arc<PolicyMetrics>,
    encoded: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// Origin of the quotas of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSource<'a> {
    /// The override of the key has quotas.
    OwnQuotas,
    /// The override of the key has this tier.
    OwnTier(&'a str),
    /// The request names this tier.
    Tier(&'a str),
    /// The policy itself.
    Standard,
}

impl PolicyView {
    pub fn new(policy: Policy, headers: HeaderStyle, metrics: Arc<PolicyMetrics>) -> Self {
        Self { policy, headers, metrics, encoded: OnceLock::new() }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the style of rate-limit headers.
    pub fn headers(&self) -> HeaderStyle {
        self.headers
    }

    /// Returns the metrics of decisions.
    pub fn metrics(&self) -> &Arc<PolicyMetrics> {
        &self.metrics
    }

    /// Returns the value that an encoder computes once for each view, such as the constant parts of its responses. Returns
    /// `None` to a second encoder, whose value has another type.
    pub fn encoded<T: Any + Send + Sync>(&self, compute: impl FnOnce(&Policy) -> T) -> Option<&T> {
        self.encoded.get_or_init(|| Box::new(compute(&self.policy))).downcast_ref()
    }
}

impl fmt::Debug for PolicyView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyView").field("policy", &self.policy).finish_non_exhaustive()
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
            metrics_count: 0,
            headers: set.headers(),
            client: set.client().clone(),
        };
        set.entries().for_each(|entry| policies.insert(entry));
        policies
    }
}

impl Policies {
    fn insert(&mut self, entry: &PolicyEntry) {
        let entry = entry.clone();
        let PolicyEntry { policy, tiers, overrides, headers, key, labels } = entry.clone();
        let headers = headers.unwrap_or(self.headers);
        let name = policy.name().to_owned();
        let mut view = |policy: Policy, tier: &str| {
            let existing = self.metrics_count;
            let policy_metrics =
                Arc::new(PolicyMetrics::for_policy(&policy, tier, existing, labels.as_deref()));
            self.metrics_count += 1;
            Arc::new(PolicyView::new(policy, headers, policy_metrics))
        };
        let standard = view(policy, "");
        let tiers: BTreeMap<_, _> =
            tiers.into_iter().map(|(tier, policy)| (tier.clone(), view(policy, &tier))).collect();
        let mut by_key = HashMap::with_capacity(overrides.len());
        let mut override_metrics = None;
        for (key, replacement) in overrides {
            let view = match replacement {
                Override::Tier(tier) => tiers.get(&tier).cloned(),
                Override::Quotas(policy) => {
                    let policy_metrics = override_metrics.get_or_insert_with(|| {
                        self.metrics_count += 1;
                        Arc::new(PolicyMetrics::for_overrides(&name, self.metrics_count - 1))
                    });
                    let policy_metrics = Arc::clone(policy_metrics);
                    Some(Arc::new(PolicyView::new(policy, headers, policy_metrics)))
                }
            };
            by_key.extend(view.map(|view| (key, view)));
        }
        let overrides = (!by_key.is_empty()).then(|| Arc::new(by_key));
        self.by_name.insert(name, IndexedPolicy { entry, standard, tiers, overrides, key });
    }

    /// Returns all policies as the file and the changes define them, sorted by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &PolicyEntry> {
        self.by_name.values().map(|indexed| &indexed.entry)
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns all policies in their standard tier, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.by_name.values().map(|indexed| indexed.standard.policy())
    }

    /// Returns the header style of policies without their own.
    pub fn headers(&self) -> HeaderStyle {
        self.headers
    }

    /// Returns the finder of client addresses.
    pub fn client(&self) -> &ClientAddress {
        &self.client
    }

    /// Returns the key rule of a policy. Returns `None` if the policy has none.
    pub fn key_rule(&self, name: &str) -> Result<Option<&KeyRule>, Rejection> {
        self.indexed(name).map(|indexed| indexed.key.as_ref())
    }

    /// Returns the quotas of a request: those of its key's override, else those of its tier, else the standard quotas.
    pub fn find(
        &self,
        name: &str,
        tier: Option<&str>,
        key: Option<&str>,
    ) -> Result<&Arc<PolicyView>, Rejection> {
        let indexed = self.indexed(name)?;
        let requested = match tier {
            None => &indexed.standard,
            Some(tier) => indexed.tiers.get(tier).ok_or_else(|| {
                let known = listed(indexed.tiers.keys().map(String::as_str));
                let detail = format!("policy {name:?} has no tier {tier:?}; known: {known}");
                Rejection::out_of_range("tier", detail)
            })?,
        };
        let own = indexed.overrides.as_ref().and_then(|overrides| overrides.get(key?));
        Ok(own.unwrap_or(requested))
    }

    /// Returns a policy of the file.
    pub fn entry(&self, name: &str) -> Result<&PolicyEntry, Rejection> {
        self.indexed(name).map(|indexed| &indexed.entry)
    }

    /// Returns the origin of the quotas that [`find`](Self::find) returns.
    pub fn quota_source<'a>(
        &'a self,
        name: &str,
        tier: Option<&'a str>,
        key: Option<&str>,
    ) -> Result<QuotaSource<'a>, Rejection> {
        let indexed = self.indexed(name)?;
        let own = indexed.overrides.as_ref().and_then(|overrides| overrides.get(key?));
        Ok(match (own, tier) {
            (Some(own), _) => match indexed.tiers.iter().find(|(_, tier)| Arc::ptr_eq(tier, own)) {
                Some((name, _)) => QuotaSource::OwnTier(name),
                None => QuotaSource::OwnQuotas,
            },
            (None, Some(tier)) => QuotaSource::Tier(tier),
            (None, None) => QuotaSource::Standard,
        })
    }

    fn indexed(&self, name: &str) -> Result<&IndexedPolicy, Rejection> {
        self.by_name.get(name).ok_or_else(|| {
            Rejection::unknown_policy(&format!(
                "there is no policy {name:?}; known: {}",
                listed(self.by_name.keys().map(String::as_str))
            ))
        })
    }
}
