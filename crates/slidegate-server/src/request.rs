//! Requests of all protocols, and reasons for their rejection.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use slidegate::{MAX_LIMIT, MAX_QUOTAS, MAX_WINDOW_MS};
use utoipa::ToSchema;

use slidegate_config::BoundedInteger;
use slidegate_config::QuotaSpec;

/// Maximum number of requests in a batch. A body fits fewer valid requests, but more short invalid values.
const MAX_BATCH: usize = 50_000;

/// A decoded request. Its values are not yet checked.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    pub(crate) policy: Option<Cow<'a, str>>,
    pub(crate) tier: Option<Cow<'a, str>>,
    pub(crate) quotas: Option<Vec<QuotaSpec>>,
    pub(crate) key: Option<Cow<'a, str>>,
    pub(crate) cost: Option<Cost>,
    /// Duration of a block.
    pub(crate) for_ms: Option<BlockMs>,
    /// Path of the request that a proxy decides about, for the log.
    pub(crate) path: Option<Cow<'a, str>>,
}

/// Cost of a request.
pub(crate) type Cost = BoundedInteger<0, MAX_LIMIT>;

/// Duration of a block in milliseconds.
pub(crate) type BlockMs = BoundedInteger<1, MAX_WINDOW_MS>;

/// Independent requests. An invalid request is rejected alone.
#[derive(Debug, Default)]
pub struct Batch<'a>(pub(crate) Vec<Result<Request<'a>, Rejection>>);

/// An array with at most as many items as a batch.
pub(crate) type BatchVec<T> = BoundedVec<T, MAX_BATCH>;

/// Rejection of a request: no decision was made. No cost was counted, except possibly if
/// [`may_have_counted`](Self::may_have_counted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Kind of the reason.
    pub kind: RejectionKind,
    /// Invalid field, as a path in the request: `cost`, `quotas[1].limit`.
    pub field: Option<String>,
    /// Description of the problem and of valid values.
    pub detail: String,
}

/// Reason for a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The request cannot be decoded.
    Malformed,
    /// The body is too large.
    TooLarge,
    /// The body did not arrive before its timeout.
    TooSlow,
    /// The server is at its capacity for such requests.
    Busy,
    /// The client sent no token, or an invalid one.
    Unauthorized,
    /// The token does not permit this verb.
    Forbidden,
    /// The policy does not exist.
    UnknownPolicy,
    /// A value is missing or out of range.
    OutOfRange,
    /// The store failed to decide.
    StoreUnavailable {
        /// Whether the same request may succeed later.
        is_transient: bool,
        /// Whether the store may have counted the cost, because the failure was a lost reply.
        may_have_counted: bool,
    },
}

impl RejectionKind {
    /// Returns the name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::TooSlow => "too-slow",
            Self::Busy => "busy",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::UnknownPolicy => "unknown-policy",
            Self::OutOfRange => "out-of-range",
            Self::StoreUnavailable { .. } => "store-unavailable",
        }
    }
}

impl Rejection {
    pub(crate) fn new(kind: RejectionKind, detail: impl Into<String>) -> Self {
        Self { kind, field: None, detail: detail.into() }
    }

    pub(crate) fn out_of_range(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(RejectionKind::OutOfRange, detail) }
    }

    pub(crate) fn unknown_policy(detail: &str) -> Self {
        Self { field: Some("policy".to_owned()), ..Self::new(RejectionKind::UnknownPolicy, detail) }
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(RejectionKind::Malformed, detail)
    }

    /// Returns whether the store may have counted the cost.
    pub fn may_have_counted(&self) -> bool {
        matches!(self.kind, RejectionKind::StoreUnavailable { may_have_counted: true, .. })
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for Rejection {}

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
impl<'de> Deserialize<'de> for Request<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RequestVisitor;

        impl<'de> Visitor<'de> for RequestVisitor {
            type Value = Request<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with key and either policy or quotas")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Request<'de>, A::Error> {
                let fields = RequestFields::deserialize(MapAccessDeserializer::new(map))?;
                let RequestFields { policy, tier, quotas, key, cost, for_ms } = fields;
                let [policy, tier, key] = [policy, tier, key].map(|text| text.map(|text| text.0));
                let quotas = quotas.map(|quotas| quotas.0);
                Ok(Request { policy, tier, quotas, key, cost, for_ms, path: None })
            }
        }

        deserializer.deserialize_map(RequestVisitor)
    }
}

/// A text that borrows from the input unless it contains escapes. Serde would always copy it.
pub(crate) struct Text<'a>(Cow<'a, str>);

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
pub(crate) struct BoundedVec<T, const MAX: usize>(pub(crate) Vec<T>);

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
