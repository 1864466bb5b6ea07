//! Which rule a descriptor meets, as envoyproxy/ratelimit finds it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Settings;
use super::key::CounterKey;
use super::rule::{Apart, Rule, policy_name};
use super::wildcard;

/// All domains of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    pub(crate) settings: Settings,
    pub(super) by_name: HashMap<String, Node>,
}

/// A descriptor of the configuration, or a domain.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// By key and value, put together as that project does: `key_value`, or `key` if it is for any value.
    pub(super) below: HashMap<String, Node>,
    /// Those with a wildcard, in the order of the file.
    pub(super) wildcards: Vec<String>,
    pub(super) rule: Option<Arc<Rule>>,
    /// What all values that meet it are counted as, if they are counted together.
    pub(super) shared_value: Option<String>,
    /// Whether its values are counted apart.
    pub(super) tells_value: bool,
}

/// What a descriptor has met, and what it is counted by.
#[derive(Debug)]
pub(crate) struct Met<'a> {
    pub(crate) rule: &'a Arc<Rule>,
    pub(crate) key: CounterKey,
    /// What it is called in metrics, if that depends on its values.
    pub(crate) told_as: Option<String>,
}

impl Domains {
    pub(crate) fn knows(&self, domain: &[u8]) -> bool {
        self.by_name.contains_key(&*String::from_utf8_lossy(domain))
    }

    /// The names of all domains, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Every rule, by domain and path.
    pub(crate) fn rules(&self) -> Vec<&Rule> {
        let mut rules = Vec::new();
        for name in self.names() {
            self.by_name.get(name).into_iter().for_each(|domain| domain.gather(&mut rules));
        }
        rules
    }

    /// The rule for a descriptor, which is a list of keys and values. It has to be exactly as deep as the configuration.
    /// What is not UTF-8 meets what its text with replacement characters meets, and is counted by its bytes.
    pub(crate) fn find<'e>(
        &self,
        domain: &[u8],
        entries: impl ExactSizeIterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) -> Option<Met<'_>> {
        let all = entries.clone();
        let mut node = self.by_name.get(&*String::from_utf8_lossy(domain))?;
        let mut counted_by = CounterKey::default();
        let mut composite = String::new();
        for (key, value) in entries {
            let key_text = String::from_utf8_lossy(key);
            composite.clear();
            composite.extend([&key_text, "_", &*String::from_utf8_lossy(value)]);
            (_, node) = node.next(&composite, &key_text)?;
            counted_by.push(key, node.shared_value.as_ref().map_or(value, String::as_bytes));
        }
        let rule = node.rule.as_ref()?;
        let told_as = match rule.apart {
            Apart::None => None,
            apart => self.told_as(domain, all, apart == Apart::All),
        };
        Some(Met { rule, key: counted_by, told_as })
    }

    /// What a descriptor is called by domain and path, with its own values where these are counted apart; `None` if none is
    /// other than in the file. Values that are counted together are told together.
    fn told_as<'e>(
        &self,
        domain: &[u8],
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])>,
        are_all_told: bool,
    ) -> Option<String> {
        let domain = String::from_utf8_lossy(domain);
        let mut node = self.by_name.get(&*domain)?;
        let (mut path, mut has_value) = (domain.into_owned(), false);
        for (key, value) in entries {
            let [key, value] = [key, value].map(String::from_utf8_lossy);
            let composite = format!("{key}_{value}");
            let (name, next) = node.next(&composite, &key)?;
            let own = if value.is_empty() { &*key } else { &composite };
            let is_told = (are_all_told || next.tells_value) && next.shared_value.is_none();
            has_value |= is_told && own != name;
            path.extend([".", if is_told { own } else { name }]);
            node = next;
        }
        has_value.then(|| policy_name(&path))
    }
}

impl Node {
    /// What is below, by name.
    pub(super) fn sorted(&self) -> Vec<(&String, &Self)> {
        let mut below: Vec<_> = self.below.iter().collect();
        below.sort_unstable_by_key(|(name, _)| *name);
        below
    }

    fn gather<'a>(&'a self, rules: &mut Vec<&'a Rule>) {
        rules.extend(self.rule.as_deref());
        self.sorted().into_iter().for_each(|(_, node)| node.gather(rules));
    }

    /// What is met below, and what it is called there.
    fn next(&self, composite: &str, key: &str) -> Option<(&str, &Self)> {
        let by_wildcard = || {
            let is_met = |wildcard: &&String| wildcard::matches(wildcard, composite);
            self.wildcards.iter().find(is_met).and_then(|wildcard| self.below.get_key_value(wildcard))
        };
        let met = self.below.get_key_value(composite).or_else(by_wildcard);
        let (name, node) = met.or_else(|| self.below.get_key_value(key))?;
        Some((name, node))
    }
}
