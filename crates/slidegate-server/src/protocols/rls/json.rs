//! Messages as JSON, by the rules of protobuf: field names are read in snake case and camel case and written in camel case, and
//! fields with their default are omitted.

use base64::prelude::{BASE64_STANDARD, Engine};
use prost_types::value::Kind;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};
use utoipa::ToSchema;

use super::message::{messages, optional_message};
use super::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::proto::rate_limit_response::{Code, DescriptorStatus};
use super::proto::{HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit};

/// Rate limit request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonRequest {
    #[schema(value_type = Option<String>)]
    #[serde(default, deserialize_with = "or_default")]
    domain: String,
    #[schema(value_type = Option<Vec<JsonDescriptor>>)]
    #[serde(default, deserialize_with = "messages")]
    descriptors: Vec<JsonDescriptor>,
    #[schema(value_type = Option<NumberForm>)]
    #[serde(default, alias = "hitsAddend", deserialize_with = "number")]
    hits_addend: u64,
}

/// Descriptor of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    #[schema(value_type = Option<Vec<JsonEntry>>)]
    #[serde(default, deserialize_with = "messages")]
    entries: Vec<JsonEntry>,
    #[serde(default, deserialize_with = "optional_message")]
    limit: Option<JsonOverride>,
    #[schema(value_type = Option<NumberForm>)]
    #[serde(default, alias = "hitsAddend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    #[schema(value_type = Option<bool>)]
    #[serde(default, alias = "isNegativeHits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

/// Entry of a descriptor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[schema(value_type = Option<String>)]
    #[serde(default, deserialize_with = "or_default")]
    key: String,
    #[schema(value_type = Option<String>)]
    #[serde(default, deserialize_with = "or_default")]
    value: String,
}

/// Limit of a descriptor, instead of the configured one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JsonOverride {
    #[schema(value_type = Option<NumberForm>)]
    #[serde(default, alias = "requestsPerUnit", deserialize_with = "number")]
    requests_per_unit: u64,
    #[schema(value_type = Option<UnitForm>)]
    #[serde(default)]
    unit: JsonUnit,
}

/// A whole number, as a number or as text.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "schema only")]
enum NumberForm {
    Number(u64),
    Text(String),
}

/// A unit of time: its name, such as `MINUTE`, or its number.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "schema only")]
enum UnitForm {
    Name(String),
    Number(u32),
}

/// Unit of time, by name or by number.
#[derive(Debug, Default)]
struct JsonUnit(i32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => {
                RateLimitUnit::from_str_name(&name).map(|unit| Self(unit.into())).ok_or_else(|| {
                    D::Error::custom(format_args!(
                        "unknown unit {name:?}; expected a name such as \"MINUTE\""
                    ))
                })
            }
            Value::Null => Ok(Self::default()),
            Value::Number(number) => whole_number(&number)
                .and_then(|number| i32::try_from(number).ok())
                .map(Self)
                .ok_or_else(|| D::Error::custom("expected a unit: its name or its number")),
            _ => Err(D::Error::custom("expected a unit: its name or its number")),
        }
    }
}

/// Deserializes a value, or `null` as its default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Returns a number if it is a whole number; `1.0` is one.
#[expect(clippy::cast_sign_loss, reason = "the number is not negative")]
fn whole_number(number: &Number) -> Option<u64> {
    // 2^53. Floats represent all whole numbers up to this one.
    const MAX: f64 = 9_007_199_254_740_992.0;
    let is_whole = |number: &f64| (0.0..=MAX).contains(number) && number.fract() == 0.0;
    let from_float = || number.as_f64().filter(is_whole).map(|number| number as u64);
    number.as_u64().or_else(from_float)
}

/// Deserializes a whole number. Text is accepted because many JSON libraries lose precision above 2^53.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    optional_number(deserializer).map(Option::unwrap_or_default)
}

fn optional_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let invalid = || D::Error::custom("expected a whole number of at least 0");
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::Number(number) => whole_number(&number).map(Some).ok_or_else(invalid),
        Value::String(text) => text.parse().map(Some).map_err(|_| invalid()),
        _ => Err(invalid()),
    }
}

impl TryFrom<JsonRequest> for RateLimitRequest {
    type Error = String;

    fn try_from(request: JsonRequest) -> Result<Self, String> {
        let to_u32 = |field: &str, number: u64| {
            u32::try_from(number).map_err(|_| format!("{field}: {number} is more than {}", u32::MAX))
        };
        let mut descriptors = Vec::with_capacity(request.descriptors.len());
        for descriptor in request.descriptors {
            let limit = match descriptor.limit {
                None => None,
                Some(JsonOverride { requests_per_unit, unit }) => Some(RateLimitOverride {
                    requests_per_unit: to_u32("requests_per_unit", requests_per_unit)?,
                    unit: unit.0,
                }),
            };
            let entry = |JsonEntry { key, value }| Entry { key: key.into(), value: value.into() };
            descriptors.push(RateLimitDescriptor {
                entries: descriptor.entries.into_iter().map(entry).collect(),
                limit,
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            });
        }
        let hits_addend = to_u32("hits_addend", request.hits_addend)?;
        Ok(Self { domain: request.domain.into(), descriptors, hits_addend })
    }
}

/// Rate limit response.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonResponse {
    overall_code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<JsonStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

/// Status of a descriptor.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct JsonStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

/// Limit that applies to a descriptor.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct JsonLimit {
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
}

/// Header for the proxy to add.
#[derive(Debug, Serialize, ToSchema)]
struct JsonHeader {
    key: String,
    value: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl JsonResponse {
    /// Returns whether the request is over a limit.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.overall_code == Code::OverLimit.as_str_name()
    }
}

impl From<RateLimitResponse> for JsonResponse {
    fn from(response: RateLimitResponse) -> Self {
        let header = |HeaderValue { key, value }| JsonHeader { key, value };
        Self {
            overall_code: response.overall_code().as_str_name(),
            statuses: response.statuses.into_iter().map(JsonStatus::from).collect(),
            response_headers_to_add: response.response_headers_to_add.into_iter().map(header).collect(),
            raw_body: BASE64_STANDARD.encode(&response.raw_body),
            dynamic_metadata: response.dynamic_metadata.map(json_object),
        }
    }
}

impl From<DescriptorStatus> for JsonStatus {
    fn from(status: DescriptorStatus) -> Self {
        Self {
            code: status.code().as_str_name(),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.map(|reset| format!("{}s", reset.seconds)),
            current_limit: status.current_limit.map(|limit| JsonLimit {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit().as_str_name(),
                name: limit.name,
            }),
        }
    }
}

fn json_object(fields: prost_types::Struct) -> Value {
    Value::Object(fields.fields.into_iter().map(|(name, field)| (name, json_value(field))).collect())
}

fn json_value(value: prost_types::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(number)) => json_integer(number).unwrap_or_else(|| number.into()),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_value).collect(),
        Some(Kind::StructValue(fields)) => json_object(fields),
    }
}

/// Converts a whole number to an integer, so that it is written as `1` and not as `1.0`.
#[expect(clippy::cast_precision_loss, reason = "the comparison detects a loss")]
fn json_integer(number: f64) -> Option<Value> {
    let rounded = number as i64;
    #[expect(clippy::float_cmp, reason = "only the same number is an integer")]
    (rounded as f64 == number).then(|| rounded.into())
}
