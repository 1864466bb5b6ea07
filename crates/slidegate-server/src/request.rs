//! What a request says, whichever way it came, and why it may be refused.

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

/// The most requests in one batch. No valid ones are so short that a body has room for as many; but they may be none.
const MAX_BATCH: usize = 50_000;

/// One request, decoded and not yet checked.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    pub(crate) policy: Option<Cow<'a, str>>,
    pub(crate) tier: Option<Cow<'a, str>>,
    pub(crate) quotas: Option<Vec<QuotaSpec>>,
    pub(crate) key: Option<Cow<'a, str>>,
    pub(crate) cost: Option<Cost>,
    /// For how long a key is to be blocked.
    pub(crate) for_ms: Option<BlockMs>,
    /// What it is asked for, if a proxy has said so; for the log.
    pub(crate) path: Option<Cow<'a, str>>,
}

/// Any whole number that a store can count.
pub(crate) type Cost = BoundedInteger<0, MAX_LIMIT>;

/// How long a block may last.
pub(crate) type BlockMs = BoundedInteger<1, MAX_WINDOW_MS>;

/// Several requests, each for itself: what is wrong with one refuses that one.
#[derive(Debug, Default)]
pub struct Batch<'a>(pub(crate) Vec<Result<Request<'a>, Rejection>>);

/// As many of anything as a batch may have.
pub(crate) type Many<T> = AtMost<T, MAX_BATCH>;

/// Why a request was refused. Nothing was spent, unless [`may_have_counted`](Self::may_have_counted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What kind of reason.
    pub kind: RejectionKind,
    /// The field to blame, as a path from the request: `cost`, `quotas[1].limit`.
    pub field: Option<String>,
    /// What is wrong and what is allowed.
    pub detail: String,
}

/// The kinds of reasons to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// It cannot be read.
    Malformed,
    /// It is larger than allowed.
    TooLarge,
    /// Its body takes too long.
    TooSlow,
    /// There is no room for it at the moment.
    Busy,
    /// Whoever asks has shown no token, or a wrong one.
    Unauthorized,
    /// The token is not for this verb.
    Forbidden,
    /// It names a policy that there is not.
    UnknownPolicy,
    /// A value is missing or out of range.
    OutOfRange,
    /// The store could not decide.
    StoreUnavailable {
        /// Whether the same request may succeed later.
        is_transient: bool,
        /// Whether the store may have counted it although no answer came.
        may_have_counted: bool,
    },
}

impl RejectionKind {
    /// The name in metrics.
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

    /// Whether it may have been spent all the same.
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

/// Who asks, for how much, and under which policy: one that the service knows, or quotas.
#[derive(Deserialize, ToSchema)]
#[schema(as = Request)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestFields<'a> {
    /// The name of a policy. Exactly one of `policy` and `quotas` is given.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    policy: Option<Text<'a>>,
    /// A tier of the policy.
    #[schema(value_type = Option<String>)]
    tier: Option<Text<'a>>,
    /// What is allowed, instead of a policy.
    #[schema(value_type = Option<Vec<QuotaSpec>>, min_items = 1, max_items = 16)]
    quotas: Option<AtMost<QuotaSpec, MAX_QUOTAS>>,
    /// Who asks, 1 to 4096 bytes.
    #[schema(value_type = String, min_length = 1, max_length = 4096)]
    key: Option<Text<'a>>,
    /// How much is asked for; 0 only looks.
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 281_474_976_710_656_u64, default = 1)]
    cost: Option<Cost>,
    /// For how long `/v1/block` blocks the key, up to 366 days; for no other path.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31_622_400_000_u64)]
    for_ms: Option<BlockMs>,
}

/// By hand, because a derived struct would also take an array of its fields' values.
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

/// A text as it stands in what was read, where nothing in it is escaped; serde would copy it.
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

/// A list that stops being read when it is too long: a small body may hold very many small values.
pub(crate) struct AtMost<T, const MAX: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = AtMost<T, MAX>;

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
                Ok(AtMost(list))
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}
