//! Which rule a descriptor meets, as envoyproxy/ratelimit finds it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Settings;
use super::key::CounterKey;
use super::rule::Rule;

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
    /// Those of them that end in `*`, in the order of the file.
    pub(super) wildcards: Vec<String>,
    pub(super) rule: Option<Arc<Rule>>,
    /// What all values that meet it are counted as, if they are counted together.
    pub(super) shared_value: Option<String>,
    /// What the file says and nothing is made of.
    pub(super) unused: Vec<&'static str>,
}

/// What a descriptor has met, and what it is counted by.
#[derive(Debug)]
pub(crate) struct Met<'a> {
    pub(crate) rule: &'a Arc<Rule>,
    pub(crate) key: CounterKey,
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
        entries: impl ExactSizeIterator<Item = (&'e [u8], &'e [u8])>,
    ) -> Option<Met<'_>> {
        let mut node = self.by_name.get(&*String::from_utf8_lossy(domain))?;
        let mut counted_by = CounterKey::default();
        let mut composite = String::new();
        for (key, value) in entries {
            let key_text = String::from_utf8_lossy(key);
            composite.clear();
            composite.extend([&key_text, "_", &*String::from_utf8_lossy(value)]);
            node = node.next(&composite, &key_text)?;
            counted_by.push(key, node.shared_value.as_ref().map_or(value, String::as_bytes));
        }
        node.rule.as_ref().map(|rule| Met { rule, key: counted_by })
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

    fn next(&self, composite: &str, key: &str) -> Option<&Self> {
        let by_wildcard = || {
            let is_met = |wildcard: &&String| {
                wildcard.strip_suffix('*').is_some_and(|prefix| composite.starts_with(prefix))
            };
            self.wildcards.iter().find(is_met).and_then(|wildcard| self.below.get(wildcard))
        };
        self.below.get(composite).or_else(by_wildcard).or_else(|| self.below.get(key))
    }
}
