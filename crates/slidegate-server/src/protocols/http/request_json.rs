//! Requests as JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use slidegate::MAX_QUOTAS;
use slidegate_config::QuotaSpec;
use slidegate_engine::{BlockMs, Cost, UncheckedRequest};
use utoipa::ToSchema;

/// Maximum number of requests in a batch. A body fits fewer valid requests, but more short invalid values.
const MAX_BATCH: usize = 50_000;

/// An array with at most as many items as a batch.
pub(super) type BatchVec<T> = BoundedVec<T, MAX_BATCH>;

/// A request as JSON.
pub(crate) struct RequestJson<'a>(pub(crate) UncheckedRequest<'a>);

/// Request for a decision: a key, a cost, and either a policy or quotas.
#[derive(Deserialize, ToSchema)]
#[schema(as = Request)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestFields<'a> {
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
