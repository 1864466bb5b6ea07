//! Fields of a file of envoyproxy/ratelimit. Every field may be absent or null.

use crate::fields::containers::ListOf;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{AnyField, Field, FieldList, Fields};
use crate::fields::foreign::{AnyMapping, AnyNode, Flag, TEXT, WholeNumber};
use crate::fields::scalars::Text;

pub(super) const DOMAIN: Field<Text> = Field::foreign("domain", TEXT);
pub(super) const DESCRIPTORS: Field<ListOf<AnyNode>> =
    Field::foreign("descriptors", ListOf { item: AnyNode, noun: "descriptors", max_items: None });

pub(super) const FILE: FieldList = &[&DOMAIN, &DESCRIPTORS];

pub(super) const KEY: Field<Text> = Field::foreign("key", TEXT);
pub(super) const VALUE: Field<Text> = Field::foreign("value", TEXT);
pub(super) const RATE_LIMIT: Field<AnyNode> = Field::foreign("rate_limit", AnyNode);
pub(super) const SHADOW_MODE: Field<Flag> = Field::foreign("shadow_mode", Flag);
pub(super) const QUOTA_MODE: Field<Flag> = Field::foreign("quota_mode", Flag);
pub(super) const DETAILED_METRIC: Field<Flag> = Field::foreign("detailed_metric", Flag);
pub(super) const VALUE_TO_METRIC: Field<Flag> = Field::foreign("value_to_metric", Flag);
pub(super) const SHARE_THRESHOLD: Field<Flag> = Field::foreign("share_threshold", Flag);
pub(super) const METADATA: Field<AnyMapping> = Field::foreign("metadata", AnyMapping);

pub(super) const DESCRIPTOR: FieldList = &[
    &KEY,
    &VALUE,
    &RATE_LIMIT,
    &SHADOW_MODE,
    &QUOTA_MODE,
    &DETAILED_METRIC,
    &VALUE_TO_METRIC,
    &SHARE_THRESHOLD,
    &METADATA,
    &DESCRIPTORS,
];

pub(super) const UNIT: Field<Text> = Field::foreign("unit", TEXT);
pub(super) const REQUESTS_PER_UNIT: Field<WholeNumber<0, { u32::MAX as u64 }>> =
    Field::foreign("requests_per_unit", WholeNumber);
pub(super) const UNLIMITED: Field<Flag> = Field::foreign("unlimited", Flag);
pub(super) const NAME: Field<Text> = Field::foreign("name", TEXT);
pub(super) const REPLACES: Field<ListOf<AnyNode>> =
    Field::foreign("replaces", ListOf { item: AnyNode, noun: "limits", max_items: None });

pub(super) const RATE_LIMIT_FIELDS: FieldList = &[&UNIT, &REQUESTS_PER_UNIT, &UNLIMITED, &NAME, &REPLACES];

pub(super) const REPLACES_FIELDS: FieldList = &[&NAME];

/// Reads a text that must not be empty. `line` is the line of the problem if it is absent or empty.
pub(super) fn non_empty(
    fields: &Fields<'_>,
    field: &Field<Text>,
    line: u64,
    missing: &str,
    diagnostics: &mut Diagnostics,
) -> Option<String> {
    let text = fields.get(field, diagnostics);
    let is_invalid = text.is_none() && fields.has_value(field);
    let text = text.filter(|text| !text.is_empty());
    if text.is_none() && !is_invalid {
        diagnostics.report(line, fields.path_of(field.name()), missing);
    }
    text
}
