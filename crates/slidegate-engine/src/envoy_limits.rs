//! Limits of envoyproxy/ratelimit in force: the rules of the files, with their metrics.

use std::sync::Arc;

use slidegate_config::envoy::{Amount, CounterKey, Domains, EnvoySettings, Rule};

use crate::policy_metrics::{MetricsByValue, PolicyMetrics};

/// Rules of all domains, and the metrics of each.
#[derive(Debug, Default)]
pub struct EnvoyLimits {
    domains: Domains,
    /// By [`Rule::index`].
    metrics: Vec<RuleMetrics>,
}

/// Metrics of a rule.
#[derive(Debug)]
struct RuleMetrics {
    all: Arc<PolicyMetrics>,
    /// Metrics of single descriptor values.
    by_value: MetricsByValue,
}

/// Rule for a descriptor, the key of its counter and its metrics.
#[derive(Debug)]
pub struct EnvoyMatch<'a> {
    pub rule: &'a Rule,
    pub key: CounterKey,
    pub metrics: Arc<PolicyMetrics>,
}

impl From<Domains> for EnvoyLimits {
    fn from(domains: Domains) -> Self {
        let mut rules = domains.rules();
        rules.sort_unstable_by_key(|rule| rule.index);
        let metrics = rules.into_iter().map(RuleMetrics::new).collect();
        Self { domains, metrics }
    }
}

impl RuleMetrics {
    fn new(rule: &Rule) -> Self {
        let all = match &rule.amount {
            Amount::Limited(limited) => PolicyMetrics::for_policy(&limited.policy, "", rule.index, None),
            Amount::Unlimited | Amount::Zero(_) => {
                PolicyMetrics::for_rule(&rule.policy_name, &rule.display_name, rule.index)
            }
        };
        Self { all: Arc::new(all), by_value: MetricsByValue::default() }
    }
}

impl EnvoyLimits {
    /// Returns the settings that all rules share.
    pub fn settings(&self) -> EnvoySettings {
        self.domains.settings
    }

    /// Returns whether there are rules for a domain.
    pub fn contains(&self, domain: &[u8]) -> bool {
        self.domains.contains(domain)
    }

    /// Returns the names of all domains, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.domains.names()
    }

    /// Finds the rule for a descriptor, as [`Domains::find`] does.
    pub fn find<'e>(
        &self,
        domain: &[u8],
        entries: impl ExactSizeIterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) -> Option<EnvoyMatch<'_>> {
        let found = self.domains.find(domain, entries)?;
        let metrics = self.metrics.get(found.rule.index)?;
        let by_value =
            found.metric_name.and_then(|name| metrics.by_value.find(name, &found.rule.policy_name));
        Some(EnvoyMatch {
            rule: found.rule,
            key: found.key,
            metrics: by_value.unwrap_or_else(|| Arc::clone(&metrics.all)),
        })
    }
}
