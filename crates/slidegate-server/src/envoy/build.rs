//! From a file's shape to what it means, collecting everything that is wrong with it.

use std::sync::Arc;

use serde_saphyr::Spanned;
use slidegate::{MAX_NAME_BYTES, Policy};

use super::Settings;
use super::domains::Node;
use super::file::{DescriptorFields, RateLimitFields, ReplacesFields};
use super::metadata;
use super::rule::{Amount, Limited, Rule, policy_name, quota};
use super::unit::Unit;
use crate::config::Problem;
use crate::signals::Signals;

/// Makes the rules of one file.
pub(super) struct Build<'a> {
    pub(super) settings: Settings,
    /// How many limits there were before, in all files.
    pub(super) limits: &'a mut usize,
    pub(super) problems: Vec<Problem>,
}

/// Where a descriptor stands: what it is called, and how the file writes it.
struct Place {
    name: String,
    field: String,
}

impl Build<'_> {
    pub(super) fn domain(&mut self, name: &str, descriptors: &[Spanned<DescriptorFields>]) -> Node {
        let mut domain = Node::default();
        self.level(&mut domain, &Place { name: name.to_owned(), field: String::new() }, descriptors);
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
            let composite =
                if value.is_empty() { key.value.clone() } else { format!("{}_{value}", key.value) };
            let place = Place { name: format!("{}.{composite}", place.name), field };
            if parent.below.contains_key(&composite) {
                let message = format!("{composite:?} stands in this list before");
                self.refuse(line(key), place.field, message);
                continue;
            }
            let node = self.node(&place, &key.value, &composite, fields);
            if composite.ends_with('*') {
                parent.wildcards.push(composite.clone());
            }
            parent.below.insert(composite, node);
        }
    }

    fn node(&mut self, place: &Place, key: &str, composite: &str, fields: &DescriptorFields) -> Node {
        // Labels of metrics come from the configuration alone, so that nobody outside can make more of them.
        let asks = [("detailed_metric", fields.detailed_metric), ("value_to_metric", fields.value_to_metric)];
        let mut node = Node {
            unused: asks
                .into_iter()
                .filter_map(|(name, asks)| (asks == Some(true)).then_some(name))
                .collect(),
            rule: fields.rate_limit.as_ref().and_then(|limit| self.rule(place, limit, fields)).map(Arc::new),
            ..Node::default()
        };
        if let Some(shares) = fields.share_threshold.as_ref().filter(|shares| shares.value) {
            if composite.ends_with('*') {
                let value = composite.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
                node.shared_value = Some(value.unwrap_or(composite).to_owned());
            } else {
                let message = format!("goes with a value that ends in *, and not with {composite:?}");
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
        let shown = if name.is_empty() { policy_name(&place.name) } else { name.clone() };
        let amount = self.amount(place, &field, spanned, &shown)?;
        Some(Rule {
            amount,
            name,
            shown,
            replaces,
            is_shadow: descriptor.shadow_mode == Some(true),
            is_quota: descriptor.quota_mode == Some(true),
            metadata: descriptor.metadata.as_ref().map(metadata::of),
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

    fn amount(
        &mut self,
        place: &Place,
        field: &str,
        spanned: &Spanned<RateLimitFields>,
        shown: &str,
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
                self.limited(place, requests, unit, shown).map(|limited| Amount::Limited(Box::new(limited)))
            }
        }
    }

    fn limited(&mut self, place: &Place, requests: u32, unit: Unit, shown: &str) -> Option<Limited> {
        let made = quota(requests, unit, self.settings.algorithm)
            .and_then(|quota| Policy::with_names(&policy_name(&place.name), [(shown, quota)]));
        match made {
            Ok(policy) => {
                let signals = Signals::of(&policy, "", *self.limits, None);
                *self.limits += 1;
                Some(Limited { requests_per_unit: requests, unit, policy, signals })
            }
            Err(error) => {
                self.refuse(0, place.field.clone(), error.to_string());
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
