//! Decodes requests from JSON: one, or a batch.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use slidegate::MAX_QUOTAS;
use slidegate_config::QuotaSpec;
use slidegate_engine::{BlockMs, Cost, Rejection, RejectionKind, UncheckedRequest, parse_json};
use utoipa::ToSchema;

/// Maximum number of requests in a batch. A body fits fewer valid requests, but more short invalid values.
const MAX_BATCH: usize = 50_000;

/// Maximum number of invalid requests in a batch. To report an error takes longer than to decide a request.
const MAX_INVALID_REQUESTS: usize = 1000;

/// An array with at most as many items as a batch.
type BatchVec<T> = BoundedVec<T, MAX_BATCH>;

/// A decoded body: one request or a batch.
pub(super) enum Body<'a> {
    Single(UncheckedRequest<'a>),
    /// Independent requests. An invalid request is rejected alone.
    Batch(Vec<Result<UncheckedRequest<'a>, Rejection>>),
}

/// Decodes a body with one request or a batch.
pub(super) fn parse(bytes: &[u8]) -> Result<Body<'_>, Rejection> {
    let text = utf8(bytes)?;
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'[') => decode_batch(text).map(Body::Batch),
        Some(b'{') => parse_json(text).map(|RequestJson(request)| Body::Single(request)),
        _ => {
            let detail = "the body is neither a JSON object nor an array of them";
            Err(Rejection::new(RejectionKind::Malformed, detail))
        }
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Rejection> {
    str::from_utf8(bytes)
        .map_err(|error| Rejection::new(RejectionKind::Malformed, format!("the body is not UTF-8: {error}")))
}

/// Decodes an array of requests. An element that is valid JSON but not a valid request is rejected alone; a syntax error
/// rejects the batch.
fn decode_batch(text: &str) -> Result<Vec<Result<UncheckedRequest<'_>, Rejection>>, Rejection> {
    if let Ok(requests) = serde_json::from_str::<BatchVec<RequestJson<'_>>>(text) {
        return Ok(requests.0.into_iter().map(|RequestJson(request)| Ok(request)).collect());
    }
    // A second pass finds the invalid requests. Even a valid JSON string may be invalid: half of a surrogate pair.
    let elements = parse_json::<BatchVec<&RawValue>>(text)?.0;
    let (mut requests, mut invalid) = (Vec::with_capacity(elements.len()), 0);
    for element in elements {
        let request = parse_json(element.get()).map(|RequestJson(request)| request);
        invalid += usize::from(request.is_err());
        if invalid > MAX_INVALID_REQUESTS {
            let detail = format!(
                "more than {MAX_INVALID_REQUESTS} requests of the batch are invalid; correct them, or send smaller batches"
            );
            return Err(Rejection::new(RejectionKind::OutOfRange, detail));
        }
        requests.push(request);
    }
    Ok(requests)
}

/// A request as JSON.
pub(crate) struct RequestJson<'a>(pub(crate) UncheckedRequest<'a>);

/// Request for a decision: a key, a cost, and either a policy or quotas.
#[derive(Deserialize, ToSchema)]
#[schema(as = Request)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestFields<'a> {
    /// Name of a policy. Exactly one of `policy` and `quotas` is required.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    policy: Option<Text<'a>>,
    /// Tier of the policy.
    #[schema(value_type = Option<String>)]
    tier: Option<Text<'a>>,
    /// Quotas, instead of a policy.
    #[schema(value_type = Option<Vec<QuotaSpec>>, min_items = 1, max_items = 16)]
    quotas: Option<BoundedVec<QuotaSpec, MAX_QUOTAS>>,
    /// Key that the cost counts for, 1 to 4096 bytes.
    #[schema(value_type = String, min_length = 1, max_length = 4096)]
    key: Option<Text<'a>>,
    /// Cost of the request; 0 only reads the counts.
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 281_474_976_710_656_u64, default = 1)]
    cost: Option<Cost>,
    /// Duration of a block in milliseconds, up to 366 days; for `/v1/block` only.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_622_400_000_u64)]
    for_ms: Option<BlockMs>,
}

/// Implemented by hand, because a derived implementation also accepts an array of the field values.
impl<'de> Deserialize<'de> for RequestJson<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RequestVisitor;

        impl<'de> Visitor<'de> for RequestVisitor {
            type Value = RequestJson<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with key and either policy or quotas")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RequestJson<'de>, A::Error> {
                let fields = RequestFields::deserialize(MapAccessDeserializer::new(map))?;
                let RequestFields { policy, tier, quotas, key, cost, for_ms } = fields;
                let [policy, tier, key] = [policy, tier, key].map(|text| text.map(|text| text.0));
                let quotas = quotas.map(|quotas| quotas.0);
                Ok(RequestJson(UncheckedRequest { policy, tier, quotas, key, cost, for_ms, path: None }))
            }
        }

        deserializer.deserialize_map(RequestVisitor)
    }
}

/// A text that borrows from the input unless it contains escapes. Serde would always copy it.
pub(super) struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(text.into()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(text.to_owned().into()))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// An array with at most `MAX` items. Decoding stops at the next item, because a small body can contain very many values.
pub(super) struct BoundedVec<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = BoundedVec<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    if list.len() == MAX {
                        return Err(A::Error::custom(format_args!(
                            "the array has more than {MAX} elements; at most {MAX} are allowed"
                        )));
                    }
                    list.push(item);
                }
                Ok(BoundedVec(list))
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}
