//! Fields of the file. Each is declared once: its name, what it takes, what it is for. From that it is read, refused and
//! described.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::review::{Review, hint, nearest};
use super::tree::{Entry, Node, Value};

/// What a field takes.
pub(super) trait Kind: Copy {
    /// What it is read as.
    type Value;

    /// Reads a value, or takes note of what is wrong with it.
    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<Self::Value>;

    /// As JSON Schema has it.
    fn schema(&self) -> Json;

    /// What is allowed, in words.
    fn allowed(&self) -> String;

    /// Whether a field that stands there without a value is one that does not stand there.
    fn may_be_nothing(&self) -> bool {
        false
    }

    /// The fields within, and how a path leads to them.
    fn within(&self) -> Within {
        Within { step: "", fields: &[] }
    }
}

/// The fields within a field.
#[derive(Clone, Copy)]
pub(super) struct Within {
    pub(super) step: &'static str,
    pub(super) fields: Declarations,
}

pub(super) type Declarations = &'static [&'static dyn Declared];

/// A field that may stand in the file.
#[derive(Clone, Copy)]
pub(super) struct Field<K> {
    name: &'static str,
    kind: K,
    about: &'static str,
    /// What holds if it is left out, as one would write it.
    usual: Option<&'static str>,
    /// The same in words, where it cannot be written.
    otherwise: Option<&'static str>,
    is_required: bool,
}

impl<K: Kind> Field<K> {
    pub(super) const fn new(name: &'static str, kind: K, about: &'static str) -> Self {
        Self { name, kind, about, usual: None, otherwise: None, is_required: false }
    }

    pub(super) const fn usual(self, usual: &'static str) -> Self {
        Self { usual: Some(usual), otherwise: None, ..self }
    }

    pub(super) const fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise: Some(otherwise), ..self }
    }

    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }
}

/// What is the same for fields of all kinds.
pub(super) trait Declared {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn usual(&self) -> Option<&'static str>;
    fn otherwise(&self) -> Option<&'static str>;
    fn is_required(&self) -> bool;
    fn allowed(&self) -> String;
    fn within(&self) -> Within;
    fn schema(&self) -> Json;
}

impl<K: Kind> Declared for Field<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn usual(&self) -> Option<&'static str> {
        self.usual
    }

    fn otherwise(&self) -> Option<&'static str> {
        self.otherwise
    }

    fn is_required(&self) -> bool {
        self.is_required
    }

    fn allowed(&self) -> String {
        self.kind.allowed()
    }

    fn within(&self) -> Within {
        self.kind.within()
    }

    fn schema(&self) -> Json {
        let mut schema = self.kind.schema();
        if self.kind.may_be_nothing()
            && !self.is_required
            && let Some(kind) = schema.get_mut("type")
        {
            *kind = json!([kind.take(), "null"]);
        }
        schema["description"] = match self.otherwise {
            Some(otherwise) => format!("{} If left out: {otherwise}.", self.about).into(),
            None => self.about.into(),
        };
        if let Some(usual) = self.usual {
            schema["default"] = serde_json::from_str(usual).unwrap_or_else(|_| usual.into());
        }
        schema
    }
}

/// A mapping with these fields and no others.
pub(super) fn mapping_schema(fields: Declarations) -> Json {
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

/// The fields of one mapping, as they stand in the file.
pub(super) struct Fields<'a> {
    pub(super) line: u64,
    pub(super) path: &'a str,
    entries: &'a [Entry],
}

impl<'a> Fields<'a> {
    /// Takes note of fields that should not be there, and of those that should. None if it is no mapping.
    pub(super) fn open(
        node: &'a Node,
        path: &'a str,
        declared: Declarations,
        review: &mut Review,
    ) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            // The whole file has no name.
            let path = if path.is_empty() { "yaml" } else { path };
            review.refuse(node.line, path, format!("expected a mapping, not {}", node.kind()));
            return None;
        };
        let fields = Self { line: node.line, path, entries };
        let names = || declared.iter().map(|field| field.name());
        let mut meant = Vec::new();
        let mut seen = HashSet::new();
        for entry in entries {
            if !seen.insert(entry.name.as_str()) {
                review.refuse(entry.line, path_or_yaml(path), format!("{:?} stands here twice", entry.name));
            } else if names().all(|name| name != entry.name) {
                let message = if review.is_full() {
                    // It is only counted, and to look for what was meant takes time.
                    String::new()
                } else {
                    meant.extend(nearest(&entry.name, names()));
                    unknown(&entry.name, names)
                };
                review.refuse(entry.line, fields.path_of(&entry.name), message);
            }
        }
        for field in declared.iter().filter(|field| field.is_required()) {
            // Who has written it wrong has been told so.
            if fields.find(field.name()).is_none() && !meant.contains(&field.name()) {
                let name = field.name();
                review.refuse(
                    node.line,
                    path_or_yaml(path),
                    format!("{name} is missing; it takes {}", field.allowed()),
                );
            }
        }
        Some(fields)
    }

    /// What the field is read as; none if it does not stand there, or is wrong.
    pub(super) fn get<K: Kind>(&self, field: &Field<K>, review: &mut Review) -> Option<K::Value> {
        let node = &self.find(field.name)?.node;
        if node.is_nothing() && field.kind.may_be_nothing() && !field.is_required {
            return None;
        }
        field.kind.read(node, &self.path_of(field.name), review)
    }

    /// Whether it stands there, right or wrong.
    pub(super) fn has<K: Kind>(&self, field: &Field<K>) -> bool {
        self.find(field.name).is_some()
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The line of what stands under this name, or of the mapping.
    pub(super) fn line_of(&self, name: &str) -> u64 {
        self.find(name).map_or(self.line, |entry| entry.node.line)
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        join(self.path, name)
    }

    fn find(&self, name: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// What is said of a field that there is not.
fn unknown<'a, I: Iterator<Item = &'a str>>(written: &str, names: impl Fn() -> I) -> String {
    let allowed = names().collect::<Vec<_>>().join(", ");
    match hint(written, names()) {
        hint if hint.is_empty() => format!("there is no such field; allowed are {allowed}"),
        hint => format!("there is no such field{hint} Allowed are {allowed}"),
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn path_or_yaml(path: &str) -> &str {
    if path.is_empty() { "yaml" } else { path }
}
