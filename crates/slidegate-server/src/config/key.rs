//! What the file says about keys that nobody names, and about who is believed about addresses.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::HeaderName;
use ipnet::IpNet;
use serde_json::{Value as Json, json};

use super::containers::{ListOf, Mapping};
use super::field::{Declarations, Field, Fields, Kind, mapping_schema};
use super::kinds::Parsed;
use super::review::{Review, hint};
use super::tree::{Node, Value};
use crate::key_rule::{KeyPart, KeyRule};

/// A network of proxies, or a single one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network(pub(super) IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(Self).ok_or_else(|| {
            format!("{text:?} is not a network: write ADDRESS/BITS, such as 10.0.0.0/8, or ADDRESS")
        })
    }
}

pub(super) const NETWORKS: ListOf<Parsed<Network>> =
    ListOf { item: Parsed::new("a network", "^[0-9a-fA-F.:]+(/[0-9]{1,3})?$"), what: "networks", most: None };

/// The name of a header.
struct Header(HeaderName);

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        HeaderName::try_from(text).map(Self).map_err(|_| format!("{text:?} is not the name of a header"))
    }
}

const HEADER: Field<Parsed<Header>> = Field::new(
    "header",
    Parsed::new("the name of a header", "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$"),
    "The value of this header, such as an API key.",
)
.required();
const FIELDS: Declarations = &[&HEADER];

/// What a key is made of.
#[derive(Clone, Copy)]
pub(super) struct KeyKind;

#[derive(Clone, Copy)]
struct PartKind;

impl Kind for PartKind {
    type Value = KeyPart;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<KeyPart> {
        match &node.value {
            Value::Map(_) => Mapping { fields: FIELDS, one_of: &[], read: header }.read(node, path, review),
            Value::Scalar { text, .. } if text == "address" => Some(KeyPart::Address),
            Value::Scalar { text, .. } if !node.is_nothing() => {
                let hint = hint(text, ["address"].into_iter());
                review.refuse(node.line, path, format!("{text:?} is not {}{hint}", self.allowed()));
                None
            }
            _ => {
                review.refuse(node.line, path, format!("expected {}, not {}", self.allowed(), node.kind()));
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"const": "address"}, mapping_schema(FIELDS)]})
    }

    fn allowed(&self) -> String {
        "address or a mapping such as {header: X-Api-Key}".to_owned()
    }
}

fn header(fields: &Fields<'_>, review: &mut Review) -> Option<KeyPart> {
    fields.get(&HEADER, review).map(|Header(name)| KeyPart::Header(name))
}

impl Kind for KeyKind {
    type Value = KeyRule;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<KeyRule> {
        let Value::List(_) = &node.value else {
            return PartKind.read(node, path, review).and_then(|part| KeyRule::of(vec![part]));
        };
        let parts = ListOf { item: PartKind, what: "parts", most: None }.read(node, path, review)?;
        let is_whole = parts.is_whole;
        let rule = KeyRule::of(parts.into_values());
        if rule.is_none() && is_whole {
            review.refuse(node.line, path, "none given; at least one is needed");
        }
        rule
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [PartKind.schema(), {"type": "array", "items": PartKind.schema(), "minItems": 1}]})
    }

    fn allowed(&self) -> String {
        "address, a mapping such as {header: X-Api-Key}, or a list of these".to_owned()
    }
}
