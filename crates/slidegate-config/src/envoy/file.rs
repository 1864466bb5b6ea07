//! Structure of a file of envoyproxy/ratelimit, with the lines of the values that are validated later.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::bounded_integer::BoundedInteger;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) domain: Option<Spanned<String>>,
    pub(super) descriptors: Option<Vec<Spanned<DescriptorFields>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DescriptorFields {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<Spanned<String>>,
    pub(super) rate_limit: Option<Spanned<RateLimitFields>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) quota_mode: Option<bool>,
    pub(super) detailed_metric: Option<bool>,
    pub(super) value_to_metric: Option<bool>,
    pub(super) share_threshold: Option<Spanned<bool>>,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
    pub(super) descriptors: Option<Vec<Spanned<DescriptorFields>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimitFields {
    pub(super) unit: Option<Spanned<String>>,
    pub(super) requests_per_unit: Option<Spanned<BoundedInteger<0, { u32::MAX as u64 }>>>,
    pub(super) unlimited: Option<bool>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) replaces: Option<Vec<ReplacesFields>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplacesFields {
    pub(super) name: Option<Spanned<String>>,
}
