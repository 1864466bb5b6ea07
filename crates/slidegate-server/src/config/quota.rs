//! Quotas in the file, and policies made of them.

use serde_json::{Value as Json, json};
use slidegate::{Algorithm, Anchor, MAX_LIMIT, MAX_QUOTAS, Policy};

use super::containers::{ListOf, Listed, Mapping};
use super::field::{Declarations, Field, Fields, Kind, Within};
use super::kinds::{OneOf, Text, Whole, Word};
use super::review::Review;
use super::tree::{Node, Value};
use crate::quota_spec::{NamedQuota, QuotaFields, QuotaProblem, QuotaSpec};
use crate::whole;

const LIMIT: Field<Whole> = Field::new(
    "limit",
    Whole { min: 0, max: MAX_LIMIT },
    "How much is allowed in a window; 0 denies every cost above 0.",
)
.required();
const WINDOW: Field<Text> = Field::new(
    "window",
    Text { what: "a time such as 30s, 15m or 1d" },
    "How long the window is, 1ms to 366d.",
)
.required();
const ALGORITHM: Field<OneOf<Algorithm>> =
    Field::new("algorithm", OneOf::ANY, "How it is counted.").usual("sliding-window");
const BURST: Field<Whole> =
    Field::new("burst", Whole { min: 1, max: MAX_LIMIT }, "How much a token bucket holds.")
        .otherwise("the limit");
const SLOTS: Field<Whole> = Field::new(
    "slots",
    Whole { min: 4, max: 64 },
    "Into how many parts a strict window is divided, an even number; more admit more exactly.",
)
.usual("16");
const ANCHOR: Field<OneOf<Anchor>> = Field::new(
    "anchor",
    OneOf::ANY,
    "Where sliding and fixed windows begin: at whole multiples since 1970, or with a key's first request.",
)
.usual("epoch");
const NAME: Field<Text> = Field::new(
    "name",
    Text { what: "a text" },
    "What it is called in answers, headers and metrics, 1 to 256 bytes.",
)
.otherwise("LIMIT/WINDOW");

const FIELDS: Declarations = &[&LIMIT, &WINDOW, &ALGORITHM, &BURST, &SLOTS, &ANCHOR, &NAME];

impl Word for Algorithm {
    const ALL: &'static [(&'static str, Self)] = &[
        (Self::SlidingWindow.name(), Self::SlidingWindow),
        (Self::StrictWindow.name(), Self::StrictWindow),
        (Self::SlidingLog.name(), Self::SlidingLog),
        (Self::FixedWindow.name(), Self::FixedWindow),
        (Self::TokenBucket.name(), Self::TokenBucket),
    ];
}

impl Word for Anchor {
    const ALL: &'static [(&'static str, Self)] =
        &[(Self::Epoch.name(), Self::Epoch), (Self::FirstRequest.name(), Self::FirstRequest)];
}

/// A quota: `100/1m`, or a mapping with its parts.
#[derive(Clone, Copy)]
pub(super) struct QuotaKind;

pub(super) const QUOTAS: ListOf<QuotaKind> =
    ListOf { item: QuotaKind, what: "1 to 16 quotas", most: Some(MAX_QUOTAS) };

impl QuotaKind {
    pub(super) fn whole_schema() -> Json {
        let text = json!({
            "type": "string",
            "pattern": "^\\s*[0-9]+/",
            "description": "LIMIT/WINDOW, then an algorithm and its options: 100/1m, 5/15m strict-window slots=32.",
        });
        let mut parts = super::field::mapping_schema(FIELDS);
        parts["description"] = "The same, part by part.".into();
        json!({"anyOf": [text, parts]})
    }
}

impl Kind for QuotaKind {
    type Value = NamedQuota;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<NamedQuota> {
        match &node.value {
            Value::Map(_) => Mapping { fields: FIELDS, one_of: &[], read: of_parts }.read(node, path, review),
            Value::Scalar { text, .. } if !node.is_nothing() => {
                let quota = QuotaSpec::Text(text.clone()).build();
                let refuse = |problem: QuotaProblem| review.refuse(node.line, path, problem.message);
                quota.map_err(|problems| problems.into_iter().for_each(refuse)).ok()
            }
            _ => {
                let message = format!("expected {}, not {}", self.allowed(), node.kind());
                review.refuse(node.line, path, message);
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"$ref": "#/$defs/quota"})
    }

    fn allowed(&self) -> String {
        "a quota such as 100/1m, or a mapping with limit and window".to_owned()
    }

    fn within(&self) -> Within {
        Within { step: "", fields: FIELDS }
    }
}

fn of_parts(fields: &Fields<'_>, review: &mut Review) -> Option<NamedQuota> {
    let (limit, window) = (fields.get(&LIMIT, review), fields.get(&WINDOW, review));
    let (algorithm, anchor) = (fields.get(&ALGORITHM, review), fields.get(&ANCHOR, review));
    let (burst, slots) = (fields.get(&BURST, review), fields.get(&SLOTS, review));
    let name = fields.get(&NAME, review);
    let is_whole = fields.has(&ALGORITHM) == algorithm.is_some()
        && fields.has(&ANCHOR) == anchor.is_some()
        && fields.has(&BURST) == burst.is_some()
        && fields.has(&SLOTS) == slots.is_some()
        && fields.has(&NAME) == name.is_some();
    // Whether an option goes with the algorithm can be said only if that is known.
    let is_known = algorithm.is_some() || !fields.has(&ALGORITHM);
    // In place of what is wrong stands what cannot be, so that the other parts are looked at too.
    let parts = QuotaFields {
        limit: whole::Whole(limit.unwrap_or(1)),
        window: window.clone().unwrap_or_else(|| "1s".to_owned()),
        algorithm: algorithm.map(|algorithm| algorithm.name().to_owned()),
        burst: burst.filter(|_| is_known).map(whole::Whole),
        slots: slots.filter(|_| is_known).map(whole::Whole),
        anchor: anchor.filter(|_| is_known).map(|anchor| anchor.name().to_owned()),
        name,
    };
    let refuse = |problem: QuotaProblem| {
        let (line, path) = match problem.field {
            Some(field) => (fields.line_of(field), fields.path_of(field)),
            None => (fields.line, fields.path.to_owned()),
        };
        review.refuse(line, path, problem.message);
    };
    let built = parts.build().map_err(|problems| problems.into_iter().for_each(refuse)).ok();
    built.filter(|_| is_whole && limit.is_some() && window.is_some())
}

/// A policy of these quotas. With some of them missing, what is wrong with the whole would be said of what is not there.
pub(super) fn policy(
    name: &str,
    path: &str,
    quotas: Listed<NamedQuota>,
    review: &mut Review,
) -> Option<Policy> {
    let Listed { line, is_whole: true, .. } = quotas else { return None };
    let named = quotas.into_values().into_iter().map(|NamedQuota { name, quota }| (name, quota));
    let policy = Policy::with_names(name, named);
    let refuse = |error: slidegate::QuotaError| {
        let part = if error.field() == "policy" { "" } else { ".quotas" };
        review.refuse(line, format!("{path}{part}"), error.message());
    };
    policy.map_err(refuse).ok()
}

const _: () = assert!(MAX_QUOTAS == 16, "the text of QUOTAS says so");
