//! Field `key` of a policy, and the networks of `trusted_proxies`.

use std::net::IpAddr;
use std::str::FromStr;

use http::HeaderName;
use ipnet::IpNet;
use serde_json::{Value as Json, json};

use crate::fields::containers::{ListOf, Mapping};
use crate::fields::diagnostics::{Diagnostics, hint};
use crate::fields::field::{Field, FieldList, Fields, Kind, mapping_schema};
use crate::fields::scalars::Parsed;
use crate::fields::tree::{Node, Value};
use crate::key_rule::{KeyPart, KeyRule};

/// A network of proxies, or a single address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network(pub(crate) IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(Self).ok_or_else(|| {
            format!("{text:?} is not a network: write ADDRESS/BITS, such as 10.0.0.0/8, or ADDRESS")
        })
    }
}

pub(crate) const NETWORKS: ListOf<Parsed<Network>> = ListOf {
    item: Parsed::new("a network", "^[0-9a-fA-F.:]+(/[0-9]{1,3})?$"),
    noun: "networks",
    max_items: None,
};

/// Name of a header.
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
    "Header whose value is the key, such as an API key.",
)
.required();
const FIELDS: FieldList = &[&HEADER];

/// Parts of a key: one part, or a list of parts.
#[derive(Clone, Copy)]
pub(crate) struct KeyKind;

#[derive(Clone, Copy)]
struct PartKind;

impl Kind for PartKind {
    type Value = KeyPart;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<KeyPart> {
        match &node.value {
            Value::Map(_) => {
                Mapping { fields: FIELDS, one_of: &[], read: header }.read(node, path, diagnostics)
            }
            Value::Scalar { text, .. } if text == "address" => Some(KeyPart::Address),
            Value::Scalar { text, .. } if !node.is_null() => {
                let hint = hint(text, ["address"].into_iter());
                diagnostics.report(node.line, path, format!("{text:?} is not {}{hint}", self.expected()));
                None
            }
            _ => {
                diagnostics.report(
                    node.line,
                    path,
                    format!("expected {}, not {}", self.expected(), node.kind()),
                );
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"const": "address"}, mapping_schema(FIELDS)]})
    }

    fn expected(&self) -> String {
        "address or a mapping such as {header: X-Api-Key}".to_owned()
    }
}

fn header(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<KeyPart> {
    fields.get(&HEADER, diagnostics).map(|Header(name)| KeyPart::Header(name))
}

impl Kind for KeyKind {
    type Value = KeyRule;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<KeyRule> {
        let Value::List(_) = &node.value else {
            return PartKind.read(node, path, diagnostics).and_then(|part| KeyRule::from_parts(vec![part]));
        };
        let parts =
            ListOf { item: PartKind, noun: "parts", max_items: None }.read(node, path, diagnostics)?;
        let is_complete = parts.is_complete;
        let rule = KeyRule::from_parts(parts.into_values());
        if rule.is_none() && is_complete {
            diagnostics.report(node.line, path, "the list is empty; give at least one part");
        }
        rule
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [PartKind.schema(), {"type": "array", "items": PartKind.schema(), "minItems": 1}]})
    }

    fn expected(&self) -> String {
        "address, a mapping such as {header: X-Api-Key}, or a list of these".to_owned()
    }
}
