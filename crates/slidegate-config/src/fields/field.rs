//! Fields of the file. Each field is declared once, with its name, kind, description and default. The declaration
//! drives reading, error messages, the JSON Schema and the reference.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use crate::fields::diagnostics::{Diagnostics, hint, nearest};
use crate::fields::tree::{Entry, Node, Value};

/// Kind of value that a field accepts.
pub(crate) trait Kind: Copy {
    /// Type of the value after reading.
    type Value;

    /// Reads a value, or reports its problems and returns `None`.
    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Self::Value>;

    /// Returns the JSON Schema of the value.
    fn schema(&self) -> Json;

    /// Describes valid values, for messages and the reference.
    fn expected(&self) -> String;

    /// Returns whether a field without a value counts as absent.
    fn is_nullable(&self) -> bool {
        false
    }

    /// Returns the nested fields.
    fn children(&self) -> Children {
        Children { step: "", fields: &[] }
    }
}

/// Nested fields of a field.
#[derive(Clone, Copy)]
pub(crate) struct Children {
    /// Text between the paths of the parent and of a child: `[]` for a list, `.POLICY` for a map.
    pub(crate) step: &'static str,
    pub(crate) fields: FieldList,
}

pub(crate) type FieldList = &'static [&'static dyn AnyField];

/// Declaration of a field.
#[derive(Clone, Copy)]
pub(crate) struct Field<K> {
    name: &'static str,
    kind: K,
    description: &'static str,
    /// Default as written in YAML.
    default: Option<&'static str>,
    /// Default in words, if no YAML value expresses it.
    described_default: Option<&'static str>,
    is_required: bool,
    /// Whether a field without a value counts as absent, whatever its kind.
    is_nullable: bool,
}

impl<K: Kind> Field<K> {
    pub(crate) const fn new(name: &'static str, kind: K, description: &'static str) -> Self {
        Self {
            name,
            kind,
            description,
            default: None,
            described_default: None,
            is_required: false,
            is_nullable: false,
        }
    }

    /// Declares a field of a foreign format. It has no description, because the reference does not list it.
    pub(crate) const fn foreign(name: &'static str, kind: K) -> Self {
        Self { is_nullable: true, ..Self::new(name, kind, "") }
    }

    pub(crate) const fn with_default(self, default: &'static str) -> Self {
        Self { default: Some(default), described_default: None, ..self }
    }

    pub(crate) const fn with_described_default(self, text: &'static str) -> Self {
        Self { described_default: Some(text), ..self }
    }

    pub(crate) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }
}

/// A field of any kind, for the schema and the reference.
pub(crate) trait AnyField {
    fn name(&self) -> &'static str;
    fn description(&self) -> &'static str;
    fn default(&self) -> Option<&'static str>;
    fn described_default(&self) -> Option<&'static str>;
    fn is_required(&self) -> bool;
    fn expected(&self) -> String;
    fn children(&self) -> Children;
    fn schema(&self) -> Json;
}

impl<K: Kind> AnyField for Field<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn default(&self) -> Option<&'static str> {
        self.default
    }

    fn described_default(&self) -> Option<&'static str> {
        self.described_default
    }

    fn is_required(&self) -> bool {
        self.is_required
    }

    fn expected(&self) -> String {
        self.kind.expected()
    }

    fn children(&self) -> Children {
        self.kind.children()
    }

    fn schema(&self) -> Json {
        let mut schema = self.kind.schema();
        if self.kind.is_nullable()
            && !self.is_required
            && let Some(kind) = schema.get_mut("type")
        {
            *kind = json!([kind.take(), "null"]);
        }
        schema["description"] = match self.described_default {
            Some(default) => format!("{} Default: {default}.", self.description).into(),
            None => self.description.into(),
        };
        if let Some(default) = self.default {
            schema["default"] = serde_json::from_str(default).unwrap_or_else(|_| default.into());
        }
        schema
    }
}

/// Returns the JSON Schema of a mapping with exactly these fields.
pub(crate) fn mapping_schema(fields: FieldList) -> Json {
    let properties: serde_json::Map<_, _> =
        fields.iter().map(|field| (field.name().to_owned(), field.schema())).collect();
    let required: Vec<_> =
        fields.iter().filter(|field| field.is_required()).map(|field| field.name()).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// The fields of one mapping in the file.
pub(crate) struct Fields<'a> {
    pub(crate) line: u64,
    pub(crate) path: &'a str,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// Reports unknown, repeated and missing fields. Returns `None` if the node is no mapping.
    pub(crate) fn open(
        node: &'a Node,
        path: &'a str,
        declared: FieldList,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            diagnostics.report(
                node.line,
                path_or_yaml(path),
                format!("expected a mapping, not {}", node.kind()),
            );
            return None;
        };
        let fields = Self { line: node.line, path, entries };
        let names = || declared.iter().map(|field| field.name());
        let mut misspelled = Vec::new();
        let mut seen = HashSet::new();
        for entry in entries {
            if !seen.insert(entry.name.as_str()) {
                let message = format!("{:?} appears twice in this mapping", entry.name);
                diagnostics.report(entry.line, path_or_yaml(path), message);
            } else if names().all(|name| name != entry.name) {
                let message = if diagnostics.is_full() {
                    // Further problems are only counted, and the search for a similar name takes time.
                    String::new()
                } else {
                    misspelled.extend(nearest(&entry.name, names()));
                    unknown(&entry.name, names)
                };
                diagnostics.report(entry.line, fields.path_of(&entry.name), message);
            }
        }
        for field in declared.iter().filter(|field| field.is_required()) {
            // The message about a misspelled field names the required one already.
            if fields.find(field.name()).is_none() && !misspelled.contains(&field.name()) {
                let name = field.name();
                diagnostics.report(
                    node.line,
                    path_or_yaml(path),
                    format!("{name} is missing; expected {}", field.expected()),
                );
            }
        }
        Some(fields)
    }

    /// Reads a field. Returns `None` if it is absent or invalid.
    pub(crate) fn get<K: Kind>(&self, field: &Field<K>, diagnostics: &mut Diagnostics) -> Option<K::Value> {
        let node = &self.find(field.name)?.node;
        let is_nullable = field.is_nullable || field.kind.is_nullable();
        if node.is_null() && is_nullable && !field.is_required {
            return None;
        }
        field.kind.read(node, &self.path_of(field.name), diagnostics)
    }

    /// Returns whether the field is present, valid or not.
    pub(crate) fn has<K: Kind>(&self, field: &Field<K>) -> bool {
        self.find(field.name).is_some()
    }

    /// Returns whether the field has a value, valid or not.
    pub(crate) fn has_value<K: Kind>(&self, field: &Field<K>) -> bool {
        self.find(field.name).is_some_and(|entry| !entry.node.is_null())
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the line of the field's value, or of the mapping if the field is absent.
    pub(crate) fn line_of(&self, name: &str) -> u64 {
        self.find(name).map_or(self.line, |entry| entry.node.line)
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        join(self.path, name)
    }

    fn find(&self, name: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// Returns the message about an unknown field.
fn unknown<'a, I: Iterator<Item = &'a str>>(written: &str, names: impl Fn() -> I) -> String {
    let known = names().collect::<Vec<_>>().join(", ");
    match hint(written, names()) {
        hint if hint.is_empty() => format!("unknown field; known fields: {known}"),
        hint => format!("unknown field{hint} Known fields: {known}"),
    }
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the path, or `yaml` for the whole file.
pub(crate) fn path_or_yaml(path: &str) -> &str {
    if path.is_empty() { "yaml" } else { path }
}
