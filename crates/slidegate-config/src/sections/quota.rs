//! Quotas in the file, and policies built from them.

use serde_json::{Value as Json, json};
use slidegate::{Algorithm, Anchor, MAX_LIMIT, MAX_QUOTAS, Policy};

use crate::bounded_integer;
use crate::fields::containers::{ListItems, ListOf, Mapping};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Children, Field, FieldList, Fields, Kind};
use crate::fields::scalars::{Integer, Keyword, OneOf, Text};
use crate::fields::tree::{Node, Value};
use crate::quota_spec::{NamedQuota, QuotaFields, QuotaProblem, QuotaSpec};

const LIMIT: Field<Integer> = Field::new(
    "limit",
    Integer { min: 0, max: MAX_LIMIT },
    "Cost allowed per window; 0 denies every cost above 0.",
)
.required();
const WINDOW: Field<Text> = Field::new(
    "window",
    Text { noun: "a time such as 30s, 15m or 1d" },
    "Length of the window, 1ms to 366d.",
)
.required();
const ALGORITHM: Field<OneOf<Algorithm>> =
    Field::new("algorithm", OneOf::ANY, "Algorithm that counts the quota.").with_default("sliding-window");
const BURST: Field<Integer> =
    Field::new("burst", Integer { min: 1, max: MAX_LIMIT }, "Capacity of a token bucket.")
        .with_described_default("the limit");
const SLOTS: Field<Integer> = Field::new(
    "slots",
    Integer { min: 4, max: 64 },
    "Number of slots of a strict window, an even number; more slots count more exactly.",
)
.with_default("16");
const ANCHOR: Field<OneOf<Anchor>> = Field::new(
    "anchor",
    OneOf::ANY,
    "Start of sliding and fixed windows: epoch aligns them to multiples of the window since 1970, first-request starts \
     them at a key's first request.",
)
.with_default("epoch");
const NAME: Field<Text> = Field::new(
    "name",
    Text { noun: "a text" },
    "Name of the quota in responses, headers and metrics, 1 to 256 bytes.",
)
.with_described_default("LIMIT/WINDOW");

const FIELDS: FieldList = &[&LIMIT, &WINDOW, &ALGORITHM, &BURST, &SLOTS, &ANCHOR, &NAME];

impl Keyword for Algorithm {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        Self::ALL.iter().map(|algorithm| (algorithm.name(), *algorithm))
    }
}

impl Keyword for Anchor {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [(Self::Epoch.name(), Self::Epoch), (Self::FirstRequest.name(), Self::FirstRequest)].into_iter()
    }
}

/// A quota: `100/1m`, or a mapping with its parts.
#[derive(Clone, Copy)]
pub(crate) struct QuotaKind;

pub(crate) const QUOTAS: ListOf<QuotaKind> =
    ListOf { item: QuotaKind, noun: "1 to 16 quotas", max_items: Some(MAX_QUOTAS) };

impl QuotaKind {
    /// Returns the JSON Schema of a quota, which all its uses reference.
    pub(crate) fn definition() -> Json {
        let text = json!({
            "type": "string",
            "pattern": "^\\s*[0-9]+/",
            "description": "LIMIT/WINDOW, then an algorithm and its options: 100/1m, 5/15m strict-window slots=32.",
        });
        let mut parts = crate::fields::field::mapping_schema(FIELDS);
        parts["description"] = "A quota as a mapping.".into();
        json!({"anyOf": [text, parts]})
    }
}

impl Kind for QuotaKind {
    type Value = NamedQuota;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<NamedQuota> {
        match &node.value {
            Value::Map(_) => {
                Mapping { fields: FIELDS, one_of: &[], read: quota_from_fields }.read(node, path, diagnostics)
            }
            Value::Scalar { text, .. } if !node.is_null() => {
                let quota = QuotaSpec::Text(text.clone()).build();
                let report = |problem: QuotaProblem| diagnostics.report(node.line, path, problem.message);
                quota.map_err(|problems| problems.into_iter().for_each(report)).ok()
            }
            _ => {
                let message = format!("expected {}, not {}", self.expected(), node.kind());
                diagnostics.report(node.line, path, message);
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"$ref": "#/$defs/quota"})
    }

    fn expected(&self) -> String {
        "a quota such as 100/1m, or a mapping with limit and window".to_owned()
    }

    fn children(&self) -> Children {
        Children { step: "", fields: FIELDS }
    }
}

fn quota_from_fields(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<NamedQuota> {
    let (limit, window) = (fields.get(&LIMIT, diagnostics), fields.get(&WINDOW, diagnostics));
    let (algorithm, anchor) = (fields.get(&ALGORITHM, diagnostics), fields.get(&ANCHOR, diagnostics));
    let (burst, slots) = (fields.get(&BURST, diagnostics), fields.get(&SLOTS, diagnostics));
    let name = fields.get(&NAME, diagnostics);
    let is_complete = fields.has(&ALGORITHM) == algorithm.is_some()
        && fields.has(&ANCHOR) == anchor.is_some()
        && fields.has(&BURST) == burst.is_some()
        && fields.has(&SLOTS) == slots.is_some()
        && fields.has(&NAME) == name.is_some();
    // Options can be checked against a valid algorithm only.
    let is_known = algorithm.is_some() || !fields.has(&ALGORITHM);
    // Valid values replace the invalid ones, so that the remaining parts are checked too.
    let parts = QuotaFields {
        limit: bounded_integer::BoundedInteger(limit.unwrap_or(1)),
        window: window.clone().unwrap_or_else(|| "1s".to_owned()),
        algorithm: algorithm.map(|algorithm| algorithm.name().to_owned()),
        burst: burst.filter(|_| is_known).map(bounded_integer::BoundedInteger),
        slots: slots.filter(|_| is_known).map(bounded_integer::BoundedInteger),
        anchor: anchor.filter(|_| is_known).map(|anchor| anchor.name().to_owned()),
        name,
    };
    let report = |problem: QuotaProblem| {
        let (line, path) = match problem.field {
            Some(field) => (fields.line_of(field), fields.path_of(field)),
            None => (fields.line, fields.path.to_owned()),
        };
        diagnostics.report(line, path, problem.message);
    };
    let built = parts.build().map_err(|problems| problems.into_iter().for_each(report)).ok();
    built.filter(|_| is_complete && limit.is_some() && window.is_some())
}

/// Builds a policy of these quotas. Skips incomplete lists: their problems are reported already, and a check of the
/// rest would report misleading ones.
pub(crate) fn policy(
    name: &str,
    path: &str,
    quotas: ListItems<NamedQuota>,
    diagnostics: &mut Diagnostics,
) -> Option<Policy> {
    let ListItems { line, is_complete: true, .. } = quotas else { return None };
    let named = quotas.into_values().into_iter().map(|NamedQuota { name, quota }| (name, quota));
    let policy = Policy::with_names(name, named);
    let report = |error: slidegate::QuotaError| {
        let part = if error.field() == "policy" { "" } else { ".quotas" };
        diagnostics.report(line, format!("{path}{part}"), error.message());
    };
    policy.map_err(report).ok()
}

const _: () = assert!(MAX_QUOTAS == 16, "QUOTAS contains the number as text");
