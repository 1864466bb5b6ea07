//! What fields take that holds other values: mappings, lists, and mappings by any name.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::field::{Declarations, Fields, Kind, Within, join, mapping_schema};
use super::review::Review;
use super::tree::{Node, Value};

/// A mapping with fields of its own.
pub(super) struct Mapping<T> {
    pub(super) fields: Declarations,
    /// Exactly one of these stands there, if there are any.
    pub(super) one_of: &'static [&'static str],
    /// Makes of the fields what they mean, or takes note of what is wrong with them.
    pub(super) read: fn(&Fields<'_>, &mut Review) -> Option<T>,
}

impl<T> Clone for Mapping<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mapping<T> {}

impl<T> Kind for Mapping<T> {
    type Value = T;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<T> {
        let fields = Fields::open(node, path, self.fields, review)?;
        let given = self.one_of.iter().filter(|name| fields.has_name(name)).count();
        if given != 1 && !self.one_of.is_empty() {
            review.refuse(node.line, path, format!("give exactly one of {}", listed(self.one_of)));
        }
        (self.read)(&fields, review)
    }

    fn schema(&self) -> Json {
        let mut schema = mapping_schema(self.fields);
        if !self.one_of.is_empty() {
            schema["oneOf"] = self.one_of.iter().map(|name| json!({"required": [name]})).collect();
        }
        schema
    }

    fn allowed(&self) -> String {
        "a mapping".to_owned()
    }

    fn may_be_nothing(&self) -> bool {
        true
    }

    fn within(&self) -> Within {
        Within { step: "", fields: self.fields }
    }
}

/// `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// A list.
#[derive(Clone, Copy)]
pub(super) struct ListOf<K> {
    pub(super) item: K,
    /// What the items are called.
    pub(super) what: &'static str,
    /// How many there may be, for editors. Whoever makes something of them knows it too.
    pub(super) most: Option<usize>,
}

/// The items that are right, and whether all are.
#[derive(Clone, Debug)]
pub(super) struct Listed<T> {
    pub(super) line: u64,
    pub(super) items: Vec<Item<T>>,
    pub(super) is_whole: bool,
}

/// An item, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Item<T> {
    pub(super) path: String,
    pub(super) value: T,
}

impl<T> Listed<T> {
    pub(super) fn into_values(self) -> Vec<T> {
        self.items.into_iter().map(|item| item.value).collect()
    }
}

impl<K: Kind> Kind for ListOf<K> {
    type Value = Listed<K::Value>;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<Self::Value> {
        let Value::List(nodes) = &node.value else {
            let message = format!("expected a list of {}, not {}", self.what, node.kind());
            review.refuse(node.line, path, message);
            return None;
        };
        let mut items = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let value = self.item.read(node, &path, review);
            items.extend(value.map(|value| Item { path, value }));
        }
        Some(Listed { line: node.line, is_whole: items.len() == nodes.len(), items })
    }

    fn schema(&self) -> Json {
        let mut schema = json!({"type": "array", "items": self.item.schema()});
        if let Some(most) = self.most {
            schema["minItems"] = 1.into();
            schema["maxItems"] = most.into();
        }
        schema
    }

    fn allowed(&self) -> String {
        format!("a list of {}", self.what)
    }

    fn may_be_nothing(&self) -> bool {
        true
    }

    fn within(&self) -> Within {
        Within { step: "[]", fields: self.item.within().fields }
    }
}

/// A mapping whose names are for the file to choose.
#[derive(Clone, Copy)]
pub(super) struct ByName<K> {
    pub(super) each: K,
    /// What the names are.
    pub(super) what: &'static str,
    /// How a path leads through it.
    pub(super) step: &'static str,
}

/// What stands under a name; none if it is wrong.
#[derive(Debug)]
pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) line: u64,
    pub(super) path: String,
    pub(super) value: Option<T>,
}

impl<K: Kind> Kind for ByName<K> {
    type Value = Vec<Named<K::Value>>;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<Self::Value> {
        let Value::Map(entries) = &node.value else {
            let message = format!("expected a mapping by {}, not {}", self.what, node.kind());
            review.refuse(node.line, path, message);
            return None;
        };
        let mut seen = HashSet::new();
        let mut named = Vec::with_capacity(entries.len());
        for entry in entries {
            let name = entry.name.clone();
            if !seen.insert(entry.name.as_str()) {
                review.refuse(entry.line, path, format!("{name:?} stands here twice"));
                continue;
            }
            let path = join(path, &name);
            let value = self.each.read(&entry.node, &path, review);
            named.push(Named { name, line: entry.line, path, value });
        }
        Some(named)
    }

    fn schema(&self) -> Json {
        json!({"type": "object", "additionalProperties": self.each.schema()})
    }

    fn allowed(&self) -> String {
        format!("a mapping by {}", self.what)
    }

    fn may_be_nothing(&self) -> bool {
        true
    }

    fn within(&self) -> Within {
        Within { step: self.step, fields: self.each.within().fields }
    }
}
