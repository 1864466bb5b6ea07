//! Kinds of fields that contain other values: mappings, lists, and maps with free names.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Children, FieldList, Fields, Kind, join, mapping_schema, path_or_yaml};
use crate::fields::tree::{Node, Value};

/// A mapping with a fixed set of fields.
pub(crate) struct Mapping<T> {
    pub(crate) fields: FieldList,
    /// Fields of which exactly one must be given; empty for no such rule.
    pub(crate) one_of: &'static [&'static str],
    /// Converts the fields into the value, or reports their problems.
    pub(crate) read: fn(&Fields<'_>, &mut Diagnostics) -> Option<T>,
}

impl<T> Clone for Mapping<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mapping<T> {}

impl<T> Kind for Mapping<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<T> {
        let fields = Fields::open(node, path, self.fields, diagnostics)?;
        let given = self.one_of.iter().filter(|name| fields.has_name(name)).count();
        if given != 1 && !self.one_of.is_empty() {
            diagnostics.report(node.line, path, format!("give exactly one of {}", enumeration(self.one_of)));
        }
        (self.read)(&fields, diagnostics)
    }

    fn schema(&self) -> Json {
        let mut schema = mapping_schema(self.fields);
        if !self.one_of.is_empty() {
            schema["oneOf"] = self.one_of.iter().map(|name| json!({"required": [name]})).collect();
        }
        schema
    }

    fn expected(&self) -> String {
        "a mapping".to_owned()
    }

    fn is_nullable(&self) -> bool {
        true
    }

    fn children(&self) -> Children {
        Children { step: "", fields: self.fields }
    }
}

/// Joins names as `a, b and c`.
fn enumeration(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// A list of items of one kind.
#[derive(Clone, Copy)]
pub(crate) struct ListOf<K> {
    pub(crate) item: K,
    /// Plural noun for the items in messages.
    pub(crate) noun: &'static str,
    /// Maximum number of items in the JSON Schema. The code that uses the list enforces it.
    pub(crate) max_items: Option<usize>,
}

/// The valid items of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListItems<T> {
    pub(crate) line: u64,
    pub(crate) items: Vec<ListItem<T>>,
    /// Whether every item of the list is valid.
    pub(crate) is_complete: bool,
}

/// A valid item, its line and its path in the file.
#[derive(Clone, Debug)]
pub(crate) struct ListItem<T> {
    pub(crate) line: u64,
    pub(crate) path: String,
    pub(crate) value: T,
}

impl<T> ListItems<T> {
    pub(crate) fn into_values(self) -> Vec<T> {
        self.items.into_iter().map(|item| item.value).collect()
    }
}

impl<K: Kind> Kind for ListOf<K> {
    type Value = ListItems<K::Value>;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Self::Value> {
        let Value::List(nodes) = &node.value else {
            let message = format!("expected a list of {}, not {}", self.noun, node.kind());
            diagnostics.report(node.line, path_or_yaml(path), message);
            return None;
        };
        let mut items = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let value = self.item.read(node, &path, diagnostics);
            items.extend(value.map(|value| ListItem { line: node.line, path, value }));
        }
        Some(ListItems { line: node.line, is_complete: items.len() == nodes.len(), items })
    }

    fn schema(&self) -> Json {
        let mut schema = json!({"type": "array", "items": self.item.schema()});
        if let Some(max_items) = self.max_items {
            schema["minItems"] = 1.into();
            schema["maxItems"] = max_items.into();
        }
        schema
    }

    fn expected(&self) -> String {
        format!("a list of {}", self.noun)
    }

    fn is_nullable(&self) -> bool {
        true
    }

    fn children(&self) -> Children {
        Children { step: "[]", fields: self.item.children().fields }
    }
}

/// A mapping whose names the file chooses.
#[derive(Clone, Copy)]
pub(crate) struct MapOf<K> {
    pub(crate) value: K,
    /// Noun for the names in messages.
    pub(crate) noun: &'static str,
    /// Placeholder of a name in the paths of the reference.
    pub(crate) step: &'static str,
}

/// An entry of a map; `value` is `None` if it is invalid.
#[derive(Debug)]
pub(crate) struct MapEntry<T> {
    pub(crate) name: String,
    pub(crate) line: u64,
    pub(crate) path: String,
    pub(crate) value: Option<T>,
}

impl<K: Kind> Kind for MapOf<K> {
    type Value = Vec<MapEntry<K::Value>>;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Self::Value> {
        let Value::Map(entries) = &node.value else {
            let message = format!("expected a mapping by {}, not {}", self.noun, node.kind());
            diagnostics.report(node.line, path, message);
            return None;
        };
        let mut seen = HashSet::new();
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            let name = entry.name.clone();
            if !seen.insert(entry.name.as_str()) {
                diagnostics.report(entry.line, path, format!("{name:?} appears twice in this mapping"));
                continue;
            }
            let path = join(path, &name);
            let value = self.value.read(&entry.node, &path, diagnostics);
            read.push(MapEntry { name, line: entry.line, path, value });
        }
        Some(read)
    }

    fn schema(&self) -> Json {
        json!({"type": "object", "additionalProperties": self.value.schema()})
    }

    fn expected(&self) -> String {
        format!("a mapping by {}", self.noun)
    }

    fn is_nullable(&self) -> bool {
        true
    }

    fn children(&self) -> Children {
        Children { step: self.step, fields: self.value.children().fields }
    }
}
