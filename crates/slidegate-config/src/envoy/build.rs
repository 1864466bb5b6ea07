//! Builds the rules of a parsed file, and collects all its problems.

use std::collections::HashSet;
use std::sync::Arc;

use serde_saphyr::Spanned;
use slidegate::{MAX_NAME_BYTES, Policy};

use super::Settings;
use super::domains::{Node, Wildcard};
use super::file::{DescriptorFields, RateLimitFields, ReplacesFields};
use super::rule::{Amount, Limited, MetricValues, Rule, hashed_name, policy_name, quota};
use super::unit::Unit;
use crate::Problem;

/// Builder of the rules of one file.
pub(super) struct RuleBuilder<'a> {
    pub(super) settings: Settings,
    /// Number of limits built so far, in all files.
    pub(super) limit_count: &'a mut usize,
    /// Names of their policies.
    pub(super) policy_names: &'a mut HashSet<String>,
    pub(super) problems: Vec<Problem>,
}

/// Position of a descriptor.
struct Position {
    /// Domain and composites joined with dots. Different descriptors may have the same name.
    name: String,
    /// Unique path: the same parts joined with NUL.
    path: String,
    /// Path of the field in the file.
    field: String,
    /// Whether the descriptor or one of its parents has `value_to_metric`.
    has_value_metric: bool,
}

impl RuleBuilder<'_> {
    pub(super) fn domain(&mut self, name: &str, descriptors: &[Spanned<DescriptorFields>]) -> Node {
        let mut domain = Node::default();
        let position = Position {
            name: name.to_owned(),
            path: name.to_owned(),
            field: String::new(),
            has_value_metric: false,
        };
        self.level(&mut domain, &position, descriptors);
        domain
    }

    fn level(&mut self, parent: &mut Node, position: &Position, descriptors: &[Spanned<DescriptorFields>]) {
        for (index, spanned) in descriptors.iter().enumerate() {
            let dot = if position.field.is_empty() { "" } else { "." };
            let field = format!("{}{dot}descriptors[{index}]", position.field);
            let fields = &spanned.value;
            let Some(key) = fields.key.as_ref().filter(|key| !key.value.is_empty()) else {
                self.add_problem(
                    line(spanned),
                    format!("{field}.key"),
                    "missing; every descriptor needs a key",
                );
                continue;
            };
            let value = fields.value.as_ref().map_or("", |value| value.value.as_str());
            let literal = if value.is_empty() { key.value.trim_end_matches('*') } else { &key.value };
            if literal.contains('*') {
                let message = format!(
                    "{:?} contains *; a wildcard belongs in the value, or at the end of a key without a value",
                    key.value
                );
                self.add_problem(line(key), format!("{field}.key"), message);
                continue;
            }
            let composite =
                if value.is_empty() { key.value.clone() } else { format!("{}_{value}", key.value) };
            let name = format!("{}.{composite}", position.name);
            let has_value_metric = position.has_value_metric || fields.value_to_metric == Some(true);
            let position =
                Position { name, path: format!("{}\0{composite}", position.path), field, has_value_metric };
            if parent.children.contains_key(&composite) {
                let message = format!("{composite:?} appears twice in this list");
                self.add_problem(line(key), position.field, message);
                continue;
            }
            let node = self.node(&position, &key.value, &composite, fields);
            if composite.contains('*') {
                parent.wildcards.push(Wildcard::new(composite.clone(), value));
            }
            parent.children.insert(composite, node);
        }
    }

    fn node(&mut self, position: &Position, key: &str, composite: &str, fields: &DescriptorFields) -> Node {
        let mut node = Node {
            has_value_metric: fields.value_to_metric == Some(true),
            rule: fields
                .rate_limit
                .as_ref()
                .and_then(|limit| self.rule(position, limit, fields))
                .map(Arc::new),
            ..Node::default()
        };
        if let Some(shares) = fields.share_threshold.as_ref().filter(|shares| shares.value) {
            if composite.contains('*') {
                let value = composite.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
                node.shared_value = Some(value.unwrap_or(composite).to_owned());
            } else {
                let message = format!("needs a value with a wildcard (*); {composite:?} has none");
                self.add_problem(line(shares), format!("{}.share_threshold", position.field), message);
            }
        }
        self.level(&mut node, position, fields.descriptors.as_deref().unwrap_or_default());
        node
    }

    fn rule(
        &mut self,
        position: &Position,
        spanned: &Spanned<RateLimitFields>,
        descriptor: &DescriptorFields,
    ) -> Option<Rule> {
        let limit = &spanned.value;
        let field = format!("{}.rate_limit", position.field);
        let name = limit.name.as_ref().map(|name| name.value.clone()).unwrap_or_default();
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let message = format!("a name has at most {MAX_NAME_BYTES} bytes and no control characters");
            self.add_problem(limit.name.as_ref().map_or(0, line), format!("{field}.name"), message);
            return None;
        }
        let replaces = limit.replaces.as_deref().unwrap_or_default();
        let replaces = self.replaces(&format!("{field}.replaces"), line(spanned), replaces, &name);
        let policy = self.policy_name(position);
        let display_name = if name.is_empty() { policy.clone() } else { name.clone() };
        let amount = self.amount(&field, spanned, [&policy, &display_name])?;
        let index = *self.limit_count;
        *self.limit_count += 1;
        Some(Rule {
            amount,
            name,
            display_name,
            replaces,
            is_shadow: descriptor.shadow_mode == Some(true),
            is_quota: descriptor.quota_mode == Some(true),
            metadata: descriptor.metadata.clone(),
            metric_values: match (descriptor.detailed_metric, position.has_value_metric) {
                (Some(true), _) => MetricValues::All,
                (_, true) => MetricValues::Marked,
                (_, false) => MetricValues::Configured,
            },
            policy_name: policy,
            index,
        })
    }

    fn replaces(
        &mut self,
        field: &str,
        rate_limit_line: u64,
        names: &[ReplacesFields],
        own_name: &str,
    ) -> Vec<String> {
        let mut replaces = Vec::with_capacity(names.len());
        for (index, fields) in names.iter().enumerate() {
            let (name, line) =
                fields.name.as_ref().map_or(("", rate_limit_line), |name| (name.value.as_str(), line(name)));
            if name.is_empty() {
                self.add_problem(
                    line,
                    format!("{field}[{index}].name"),
                    "missing; give the name of another limit",
                );
            } else if name == own_name {
                let message = format!("{name:?} is this limit itself; give the name of another limit");
                self.add_problem(line, format!("{field}[{index}].name"), message);
            }
            replaces.push(name.to_owned());
        }
        replaces
    }

    /// Returns a unique name, because a policy is counted under its name. Dots join the parts of a path and may occur
    /// within them, so two paths can join to the same text: `a.b` below a domain, and `b` below `a`.
    fn policy_name(&mut self, position: &Position) -> String {
        let mut name = policy_name(&position.name);
        if self.policy_names.contains(&name) {
            name = hashed_name(&position.name, &position.path);
        }
        self.policy_names.insert(name.clone());
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
                let message = "has no effect with unlimited; remove one of them";
                self.add_problem(limit.unit.as_ref().map_or(0, line), format!("{field}.unit"), message);
            }
            return Some(Amount::Unlimited);
        }
        let requests_per_unit = match &limit.requests_per_unit {
            None => Some(0),
            Some(requests) => match requests.value.checked() {
                Ok(requests) => u32::try_from(requests).ok(),
                Err(message) => {
                    self.add_problem(line(requests), format!("{field}.requests_per_unit"), message);
                    None
                }
            },
        };
        let Some(unit) = unit else {
            let (found, line) = match &limit.unit {
                Some(unit) => (format!("{:?} is not", unit.value), line(unit)),
                None => ("missing; expected".to_owned(), line(spanned)),
            };
            self.add_problem(line, format!("{field}.unit"), format!("{found} one of {}", Unit::names()));
            return None;
        };
        match requests_per_unit? {
            0 => Some(Amount::Zero(unit)),
            requests => {
                self.limited(field, requests, unit, names).map(|limited| Amount::Limited(Box::new(limited)))
            }
        }
    }

    /// Builds a counted limit; `names` are those of the policy and of its quota.
    fn limited(&mut self, field: &str, requests: u32, unit: Unit, names: [&str; 2]) -> Option<Limited> {
        let [name, display_name] = names;
        let policy = quota(requests, unit, self.settings.algorithm)
            .and_then(|quota| Policy::with_names(name, [(display_name, quota)]));
        match policy {
            Ok(policy) => Some(Limited { requests_per_unit: requests, unit, policy }),
            Err(error) => {
                self.add_problem(0, field, error.to_string());
                None
            }
        }
    }

    fn add_problem(&mut self, line: u64, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::at(line, field, message));
    }
}

fn line<T>(spanned: &Spanned<T>) -> u64 {
    spanned.defined.line()
}
