//! From a file's shape to what it means, collecting everything that is wrong with it.

use std::collections::HashSet;
use std::sync::Arc;

use serde_saphyr::Spanned;
use slidegate::{MAX_NAME_BYTES, Policy};

use super::Settings;
use super::domains::Node;
use super::file::{DescriptorFields, RateLimitFields, ReplacesFields};
use super::metadata;
use super::rule::{Amount, Apart, Limited, Rule, hashed_name, policy_name, quota};
use super::unit::Unit;
use crate::config::Problem;
use crate::signals::{Signals, SignalsByValue};

/// Makes the rules of one file.
pub(super) struct Build<'a> {
    pub(super) settings: Settings,
    /// How many limits there were before, in all files.
    pub(super) limits: &'a mut usize,
    /// The names of their policies.
    pub(super) names: &'a mut HashSet<String>,
    pub(super) problems: Vec<Problem>,
}

/// Where a descriptor stands: what it is called, what nothing else is called, and how the file writes it.
struct Place {
    name: String,
    path: String,
    field: String,
    /// Whether it or one above it asks for its values to be counted apart.
    tells_values: bool,
}

impl Build<'_> {
    pub(super) fn domain(&mut self, name: &str, descriptors: &[Spanned<DescriptorFields>]) -> Node {
        let mut domain = Node::default();
        let place =
            Place { name: name.to_owned(), path: name.to_owned(), field: String::new(), tells_values: false };
        self.level(&mut domain, &place, descriptors);
        domain
    }

    fn level(&mut self, parent: &mut Node, place: &Place, descriptors: &[Spanned<DescriptorFields>]) {
        for (index, spanned) in descriptors.iter().enumerate() {
            let dot = if place.field.is_empty() { "" } else { "." };
            let field = format!("{}{dot}descriptors[{index}]", place.field);
            let fields = &spanned.value;
            let Some(key) = fields.key.as_ref().filter(|key| !key.value.is_empty()) else {
                self.refuse(line(spanned), format!("{field}.key"), "missing; every descriptor has one");
                continue;
            };
            let value = fields.value.as_ref().map_or("", |value| value.value.as_str());
            let literal = if value.is_empty() { key.value.trim_end_matches('*') } else { &key.value };
            if literal.contains('*') {
                let message = format!(
                    "{:?} has a * in it; a wildcard stands in the value, or ends a key without a value",
                    key.value
                );
                self.refuse(line(key), format!("{field}.key"), message);
                continue;
            }
            let composite =
                if value.is_empty() { key.value.clone() } else { format!("{}_{value}", key.value) };
            let name = format!("{}.{composite}", place.name);
            let tells_values = place.tells_values || fields.value_to_metric == Some(true);
            let place = Place { name, path: format!("{}\0{composite}", place.path), field, tells_values };
            if parent.below.contains_key(&composite) {
                let message = format!("{composite:?} stands in this list before");
                self.refuse(line(key), place.field, message);
                continue;
            }
            let node = self.node(&place, &key.value, &composite, fields);
            if composite.contains('*') {
                parent.wildcards.push(composite.clone());
            }
            parent.below.insert(composite, node);
        }
    }

    fn node(&mut self, place: &Place, key: &str, composite: &str, fields: &DescriptorFields) -> Node {
        let mut node = Node {
            tells_value: fields.value_to_metric == Some(true),
            rule: fields.rate_limit.as_ref().and_then(|limit| self.rule(place, limit, fields)).map(Arc::new),
            ..Node::default()
        };
        if let Some(shares) = fields.share_threshold.as_ref().filter(|shares| shares.value) {
            if composite.contains('*') {
                let value = composite.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
                node.shared_value = Some(value.unwrap_or(composite).to_owned());
            } else {
                let message = format!("goes with a value that has a * in it, and not with {composite:?}");
                self.refuse(line(shares), format!("{}.share_threshold", place.field), message);
            }
        }
        self.level(&mut node, place, fields.descriptors.as_deref().unwrap_or_default());
        node
    }

    fn rule(
        &mut self,
        place: &Place,
        spanned: &Spanned<RateLimitFields>,
        descriptor: &DescriptorFields,
    ) -> Option<Rule> {
        let limit = &spanned.value;
        let field = format!("{}.rate_limit", place.field);
        let name = limit.name.as_ref().map(|name| name.value.clone()).unwrap_or_default();
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let message = format!("a name has at most {MAX_NAME_BYTES} bytes and no control characters");
            self.refuse(limit.name.as_ref().map_or(0, line), format!("{field}.name"), message);
            return None;
        }
        let replaces = limit.replaces.as_deref().unwrap_or_default();
        let replaces = self.replaces(&format!("{field}.replaces"), line(spanned), replaces, &name);
        let policy = self.policy_name(place);
        let shown = if name.is_empty() { policy.clone() } else { name.clone() };
        let amount = self.amount(&field, spanned, [&policy, &shown])?;
        let signals = Arc::new(match &amount {
            Amount::Limited(limited) => Signals::of(&limited.policy, "", *self.limits, None),
            Amount::Unlimited | Amount::Nothing(_) => Signals::of_rule(&policy, &shown, *self.limits),
        });
        *self.limits += 1;
        Some(Rule {
            amount,
            name,
            shown,
            replaces,
            is_shadow: descriptor.shadow_mode == Some(true),
            is_quota: descriptor.quota_mode == Some(true),
            metadata: descriptor.metadata.as_ref().map(metadata::of),
            apart: match (descriptor.detailed_metric, place.tells_values) {
                (Some(true), _) => Apart::All,
                (_, true) => Apart::Some,
                (_, false) => Apart::None,
            },
            policy_name: policy,
            signals,
            by_value: SignalsByValue::default(),
        })
    }

    fn replaces(&mut self, field: &str, at: u64, names: &[ReplacesFields], own: &str) -> Vec<String> {
        let mut replaces = Vec::with_capacity(names.len());
        for (index, fields) in names.iter().enumerate() {
            let (name, at) = fields.name.as_ref().map_or(("", at), |name| (name.value.as_str(), line(name)));
            if name.is_empty() {
                self.refuse(at, format!("{field}[{index}].name"), "missing; it names another limit");
            } else if name == own {
                let message = format!("{name:?} is this very limit; it names another one");
                self.refuse(at, format!("{field}[{index}].name"), message);
            }
            replaces.push(name.to_owned());
        }
        replaces
    }

    /// Dots stand between the parts of a path and within them, so two paths may read the same: `a.b` below a domain, and
    /// `b` below `a`. Each needs a name of its own, for what a policy is called is what it is counted by.
    fn policy_name(&mut self, place: &Place) -> String {
        let mut name = policy_name(&place.name);
        if self.names.contains(&name) {
            name = hashed_name(&place.name, &place.path);
        }
        self.names.insert(name.clone());
        name
    }

    fn amount(
        &mut self,
        field: &str,
        spanned: &Spanned<RateLimitFields>,
        names: [&str; 2],
    ) -> Option<Amount> {
        let limit = &spanned.value;
        let unit = limit.unit.as_ref().and_then(|unit| Unit::parse(&unit.value));
        if limit.unlimited == Some(true) {
            if unit.is_some() {
                let message = "goes with requests_per_unit, not with unlimited";
                self.refuse(limit.unit.as_ref().map_or(0, line), format!("{field}.unit"), message);
            }
            return Some(Amount::Unlimited);
        }
        let requests_per_unit = match &limit.requests_per_unit {
            None => Some(0),
            Some(requests) => match requests.value.checked() {
                Ok(requests) => u32::try_from(requests).ok(),
                Err(message) => {
                    self.refuse(line(requests), format!("{field}.requests_per_unit"), message);
                    None
                }
            },
        };
        let Some(unit) = unit else {
            let (found, at) = match &limit.unit {
                Some(unit) => (format!("{:?} is not", unit.value), line(unit)),
                None => ("missing; it is".to_owned(), line(spanned)),
            };
            self.refuse(at, format!("{field}.unit"), format!("{found} one of {}", Unit::names()));
            return None;
        };
        match requests_per_unit? {
            0 => Some(Amount::Nothing(unit)),
            requests => {
                self.limited(field, requests, unit, names).map(|limited| Amount::Limited(Box::new(limited)))
            }
        }
    }

    /// The names are those of the policy and of its quota.
    fn limited(&mut self, field: &str, requests: u32, unit: Unit, names: [&str; 2]) -> Option<Limited> {
        let [name, shown] = names;
        let made = quota(requests, unit, self.settings.algorithm)
            .and_then(|quota| Policy::with_names(name, [(shown, quota)]));
        match made {
            Ok(policy) => Some(Limited { requests_per_unit: requests, unit, policy }),
            Err(error) => {
                self.refuse(0, field, error.to_string());
                None
            }
        }
    }

    fn refuse(&mut self, line: u64, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::at(line, field, message));
    }
}

fn line<T>(spanned: &Spanned<T>) -> u64 {
    spanned.defined.line()
}
