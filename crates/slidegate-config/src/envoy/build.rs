//! Builds the descriptors of a file, and collects all its problems.

use std::collections::HashSet;
use std::sync::Arc;

use super::EnvoySettings;
use super::domains::{Node, Wildcard};
use super::file::{DESCRIPTOR, DESCRIPTORS, KEY, SHARE_THRESHOLD, VALUE, VALUE_TO_METRIC, non_empty};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::Fields;

/// Builder of the rules of one file.
pub(super) struct RuleBuilder<'a> {
    pub(super) settings: EnvoySettings,
    /// Number of limits built so far, in all files.
    pub(super) limit_count: &'a mut usize,
    /// Names of their policies.
    pub(super) policy_names: &'a mut HashSet<String>,
    pub(super) diagnostics: Diagnostics,
}

/// Position of a descriptor.
pub(super) struct Position {
    /// Domain and composites joined with dots. Different descriptors may have the same name.
    pub(super) name: String,
    /// Unique path: the same parts joined with NUL.
    pub(super) path: String,
    /// Whether the descriptor or one of its parents has `value_to_metric`.
    pub(super) has_value_metric: bool,
}

/// Key and value of a descriptor. A descriptor without a value, which is empty here, matches any value.
struct Entry {
    key: String,
    value: String,
}

impl Entry {
    /// Returns the key and the value as envoyproxy/ratelimit joins them.
    fn composite(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }
}

impl RuleBuilder<'_> {
    /// Builds the domain `name` from the fields of its file.
    pub(super) fn domain(&mut self, name: &str, fields: &Fields<'_>) -> Node {
        let mut domain = Node::default();
        let position = Position { name: name.to_owned(), path: name.to_owned(), has_value_metric: false };
        self.descriptors(&mut domain, &position, fields);
        domain
    }

    /// Adds the descriptors in the field `descriptors` to `parent`.
    fn descriptors(&mut self, parent: &mut Node, position: &Position, fields: &Fields<'_>) {
        let Some(list) = fields.get(&DESCRIPTORS, &mut self.diagnostics) else { return };
        for item in list.items {
            let fields = Fields::open(&item.value, &item.path, DESCRIPTOR, &mut self.diagnostics);
            if let Some(fields) = fields {
                self.descriptor(parent, position, &fields);
            }
        }
    }

    fn descriptor(&mut self, parent: &mut Node, position: &Position, fields: &Fields<'_>) {
        let entry = self.entry(fields);
        // The rest of an invalid descriptor is read too, so that all problems are reported.
        let composite = entry.as_ref().map(Entry::composite).unwrap_or_default();
        let has_value_metric = fields.get(&VALUE_TO_METRIC, &mut self.diagnostics) == Some(true);
        let position = Position {
            name: format!("{}.{composite}", position.name),
            path: format!("{}\0{composite}", position.path),
            has_value_metric: position.has_value_metric || has_value_metric,
        };
        let rule = self.rule(&position, fields).map(Arc::new);
        let shared_value = self.shared_value(entry.as_ref(), fields);
        let mut node = Node { rule, shared_value, has_value_metric, ..Node::default() };
        self.descriptors(&mut node, &position, fields);
        let Some(Entry { value, .. }) = entry else { return };
        if parent.children.contains_key(&composite) {
            let message = format!("{composite:?} appears twice in this list");
            self.diagnostics.report(fields.line_of("key"), fields.path, message);
            return;
        }
        if composite.contains('*') {
            parent.wildcards.push(Wildcard::new(composite.clone(), &value));
        }
        parent.children.insert(composite, node);
    }

    /// Reads the key and the value.
    fn entry(&mut self, fields: &Fields<'_>) -> Option<Entry> {
        let missing = "missing; every descriptor needs a key";
        let key = non_empty(fields, &KEY, fields.line, missing, &mut self.diagnostics);
        let value = fields.get(&VALUE, &mut self.diagnostics);
        if value.is_none() && fields.has_value(&VALUE) {
            return None;
        }
        let (key, value) = (key?, value.unwrap_or_default());
        let literal = if value.is_empty() { key.trim_end_matches('*') } else { &key };
        if literal.contains('*') {
            let message = format!(
                "{key:?} contains *; a wildcard belongs in the value, or at the end of a key without a value"
            );
            self.diagnostics.report(fields.line_of("key"), fields.path_of("key"), message);
            return None;
        }
        Some(Entry { key, value })
    }

    /// Returns the value that replaces all matching values in the counter key, if the descriptor has `share_threshold`.
    fn shared_value(&mut self, entry: Option<&Entry>, fields: &Fields<'_>) -> Option<String> {
        let is_shared = fields.get(&SHARE_THRESHOLD, &mut self.diagnostics) == Some(true);
        let entry = entry.filter(|_| is_shared)?;
        let composite = entry.composite();
        if !composite.contains('*') {
            let message = format!("needs a value with a wildcard (*); {composite:?} has none");
            let field = "share_threshold";
            self.diagnostics.report(fields.line_of(field), fields.path_of(field), message);
            return None;
        }
        Some(if entry.value.is_empty() { composite } else { entry.value.clone() })
    }
}
