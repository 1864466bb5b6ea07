//! Kinds of fields of foreign formats. They accept more spellings than those of our own file.

use serde_json::{Map, Value as Json, json};

use crate::bounded_integer::BoundedInteger;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::Kind;
use crate::fields::json::{boolean, integer, object};
use crate::fields::scalars::{Text, shortened};
use crate::fields::tree::{Node, Value};

pub(crate) const TEXT: Text = Text { noun: "a text" };

/// A boolean in any spelling of YAML 1.1, with or without quotes.
#[derive(Clone, Copy)]
pub(crate) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<bool> {
        let found = match &node.value {
            Value::Scalar { text, .. } if !node.is_null() => match boolean(text.trim()) {
                Some(flag) => return Some(flag),
                None => format!("{:?}", shortened(text)),
            },
            _ => node.kind().to_owned(),
        };
        diagnostics.report(node.line, path, format!("{found} is not {}", self.expected()));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }

    fn expected(&self) -> String {
        "true or false".to_owned()
    }
}

/// A whole number without quotes. The caller checks the range, because some numbers beyond it are not errors.
#[derive(Clone, Copy)]
pub(crate) struct WholeNumber<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Kind for WholeNumber<MIN, MAX> {
    type Value = BoundedInteger<MIN, MAX>;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Self::Value> {
        let found = match &node.value {
            Value::Scalar { text, is_plain } if !node.is_null() => {
                match integer(text).and_then(|number| u64::try_from(number).ok()) {
                    Some(number) if *is_plain => return Some(BoundedInteger(number)),
                    Some(_) => format!("{text:?} in quotes"),
                    None if *is_plain => shortened(text),
                    None => format!("{:?}", shortened(text)),
                }
            }
            _ => node.kind().to_owned(),
        };
        diagnostics.report(node.line, path, format!("{found} is not {}", self.expected()));
        None
    }

    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }

    fn expected(&self) -> String {
        format!("a whole number between {MIN} and {MAX}")
    }
}

/// A mapping with any names and values.
#[derive(Clone, Copy)]
pub(crate) struct AnyMapping;

impl Kind for AnyMapping {
    type Value = Map<String, Json>;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Self::Value> {
        let Value::Map(entries) = &node.value else {
            diagnostics.report(node.line, path, format!("expected a mapping, not {}", node.kind()));
            return None;
        };
        object(entries, path, diagnostics)
    }

    fn schema(&self) -> Json {
        json!({"type": "object"})
    }

    fn expected(&self) -> String {
        "a mapping".to_owned()
    }
}

/// Any value, which the caller reads. A declaration of nested fields cannot contain itself.
#[derive(Clone, Copy)]
pub(crate) struct AnyNode;

impl Kind for AnyNode {
    type Value = Node;

    fn read(&self, node: &Node, _: &str, _: &mut Diagnostics) -> Option<Node> {
        Some(node.clone())
    }

    fn schema(&self) -> Json {
        json!(true)
    }

    fn expected(&self) -> String {
        "a mapping".to_owned()
    }
}
