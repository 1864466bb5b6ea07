//! What the file says about the memory store.

use std::marker::PhantomData;

use slidegate::WhenFull;

use super::MemoryConfig;
use super::containers::Mapping;
use super::field::{Field, Fields};
use super::kinds::{OneOf, Whole, Word};
use super::review::Review;

const MAX_KEYS: Field<Whole> =
    Field::new("max_keys", Whole { min: 1, max: 1 << 31 }, "How many keys it keeps at most.")
        .usual("1000000");
const MAX_BYTES: Field<Whole> = Field::new(
    "max_bytes",
    Whole { min: 1, max: u64::MAX },
    "How much memory it takes at most: the table and what is kept beside it.",
)
.otherwise("280 bytes a key, or 24 a key and 64 MiB if that is more");
const WHEN_FULL: Field<OneOf<WhenFull>> = Field::new(
    "when_full",
    OneOf(PhantomData),
    "What becomes of a new key when it is full: another one makes room, or it is answered with 503.",
)
.usual("evict");

pub(super) const MEMORY: Mapping<MemoryConfig> = Mapping {
    fields: &[&MAX_KEYS, &MAX_BYTES, &WHEN_FULL],
    one_of: &[],
    read: |fields, review| Some(memory(fields, review)),
};

impl Word for WhenFull {
    const ALL: &'static [(&'static str, Self)] = &[("evict", Self::Evict), ("refuse", Self::Refuse)];
}

fn memory(fields: &Fields<'_>, review: &mut Review) -> MemoryConfig {
    let mut number = |field| fields.get(field, review).map(usize::try_from);
    let (max_keys, max_bytes) = (number(&MAX_KEYS), number(&MAX_BYTES));
    let when_full = fields.get(&WHEN_FULL, review);
    let is_right =
        max_keys.is_some() == fields.has(&MAX_KEYS) && max_bytes.is_some() == fields.has(&MAX_BYTES);
    let config = MemoryConfig {
        max_keys: max_keys.and_then(Result::ok),
        max_bytes: max_bytes.and_then(Result::ok),
        when_full,
    };
    // Only the store knows how many bytes its keys need.
    if is_right && let Err(error) = config.builder().validate() {
        let field = if fields.has(&MAX_BYTES) { "max_bytes" } else { "max_keys" };
        review.refuse(fields.line_of(field), fields.path_of(error.field()), error.message());
    }
    config
}
