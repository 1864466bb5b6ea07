//! Lookup of the rule for a descriptor, by the matching order of envoyproxy/ratelimit.

use std::collections::HashMap;
use std::sync::Arc;

use super::EnvoySettings;
use super::key::CounterKey;
use super::rule::{MetricValues, Rule, policy_name};
use super::wildcard;

/// All domains of a configuration.
#[derive(Debug, Default)]
pub struct Domains {
    pub settings: EnvoySettings,
    pub(super) by_name: HashMap<String, Node>,
}

/// A domain or a descriptor of the configuration.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Child descriptors by composite, as in envoyproxy/ratelimit: `key_value`, or `key` for any value.
    pub(super) children: HashMap<String, Node>,
    /// Children with a wildcard, in the order of the file.
    pub(super) wildcards: Vec<Wildcard>,
    pub(super) rule: Option<Arc<Rule>>,
    /// Value that replaces all matching values in the counter key (`share_threshold`).
    pub(super) shared_value: Option<String>,
    /// Whether metrics distinguish its values (`value_to_metric`).
    pub(super) has_value_metric: bool,
}

/// A child with a `*` in its value, or at the end of a key without a value.
#[derive(Debug)]
pub(super) struct Wildcard {
    composite: String,
    /// Start of the value in the composite; `None` for a key without a value.
    value_at: Option<usize>,
}

impl Wildcard {
    /// Returns the wildcard of a child with this value, which is empty or the end of the composite.
    pub(super) fn new(composite: String, value: &str) -> Self {
        let value_at = (!value.is_empty()).then(|| composite.len() - value.len());
        Self { composite, value_at }
    }

    /// Returns whether a descriptor's composite matches. A value is compared only under its own key: as one text, key `a_x` with
    /// value `b` would match key `a` with value `*b`.
    fn matches(&self, composite: &str, key: &str) -> bool {
        let Some(at) = self.value_at else { return wildcard::matches(&self.composite, composite) };
        let is_same_key = key.len() + 1 == at && composite.starts_with(&self.composite[..at]);
        is_same_key && wildcard::matches(&self.composite[at..], &composite[at..])
    }
}

/// Rule for a descriptor, and the key of its counter.
#[derive(Debug)]
pub struct RuleMatch<'a> {
    pub rule: &'a Arc<Rule>,
    pub key: CounterKey,
    /// Name in metrics, if it depends on the values of the descriptor.
    pub metric_name: Option<String>,
}

impl Domains {
    pub fn contains(&self, domain: &[u8]) -> bool {
        self.by_name.contains_key(&*String::from_utf8_lossy(domain))
    }

    /// Returns the names of all domains, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns all rules, sorted by domain and path.
    pub fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::new();
        for name in self.names() {
            self.by_name.get(name).into_iter().for_each(|domain| domain.collect_rules(&mut rules));
        }
        rules
    }

    /// Finds the rule for a descriptor, which is a list of keys and values. The rule must be exactly as deep as the
    /// descriptor. Bytes that are not UTF-8 match as replacement characters, and are unchanged in the counter key.
    pub fn find<'e>(
        &self,
        domain: &[u8],
        entries: impl ExactSizeIterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) -> Option<RuleMatch<'_>> {
        let all = entries.clone();
        let mut node = self.by_name.get(&*String::from_utf8_lossy(domain))?;
        let mut counter_key = CounterKey::default();
        let mut composite = String::new();
        for (key, value) in entries {
            let key_text = String::from_utf8_lossy(key);
            composite.clear();
            composite.extend([&key_text, "_", &*String::from_utf8_lossy(value)]);
            (_, node) = node.next(&composite, &key_text)?;
            counter_key.push(key, node.shared_value.as_ref().map_or(value, String::as_bytes));
        }
        let rule = node.rule.as_ref()?;
        let metric_name = match rule.metric_values {
            MetricValues::Configured => None,
            metric_values => self.metric_name(domain, all, metric_values == MetricValues::All),
        };
        Some(RuleMatch { rule, key: counter_key, metric_name })
    }

    /// Returns the metric name of a descriptor: domain and path, with the values of the request where metrics
    /// distinguish them. Returns `None` if that equals the name in the configuration. Values with a shared counter
    /// share a name.
    fn metric_name<'e>(
        &self,
        domain: &[u8],
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])>,
        has_all_values: bool,
    ) -> Option<String> {
        let domain = String::from_utf8_lossy(domain);
        let mut node = self.by_name.get(&*domain)?;
        let (mut path, mut differs) = (domain.into_owned(), false);
        for (key, value) in entries {
            let [key, value] = [key, value].map(String::from_utf8_lossy);
            let composite = format!("{key}_{value}");
            let (name, next) = node.next(&composite, &key)?;
            let own_name = if value.is_empty() { &*key } else { &composite };
            let has_own_value = (has_all_values || next.has_value_metric) && next.shared_value.is_none();
            differs |= has_own_value && own_name != name;
            path.extend([".", if has_own_value { own_name } else { name }]);
            node = next;
        }
        differs.then(|| policy_name(&path))
    }
}

impl Node {
    /// Returns the children, sorted by name.
    pub(super) fn sorted(&self) -> Vec<(&String, &Self)> {
        let mut children: Vec<_> = self.children.iter().collect();
        children.sort_unstable_by_key(|(name, _)| *name);
        children
    }

    fn collect_rules<'a>(&'a self, rules: &mut Vec<&'a Rule>) {
        rules.extend(self.rule.as_deref());
        self.sorted().into_iter().for_each(|(_, node)| node.collect_rules(rules));
    }

    /// Returns the child that matches, and its composite: an exact match first, then wildcards, then any value.
    fn next(&self, composite: &str, key: &str) -> Option<(&str, &Self)> {
        let by_wildcard = || {
            let wildcard = self.wildcards.iter().find(|wildcard| wildcard.matches(composite, key))?;
            self.children.get_key_value(&wildcard.composite)
        };
        let exact_or_wildcard = self.children.get_key_value(composite).or_else(by_wildcard);
        let (name, node) = exact_or_wildcard.or_else(|| self.children.get_key_value(key))?;
        Some((name, node))
    }
}
