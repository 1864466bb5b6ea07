//! Section `memory`: the memory store.

use std::marker::PhantomData;

use slidegate::store::WhenFull;

use crate::MemoryConfig;
use crate::fields::containers::Mapping;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields};
use crate::fields::scalars::{Integer, Keyword, OneOf};

const MAX_KEYS: Field<Integer> =
    Field::new("max_keys", Integer { min: 1, max: 1 << 31 }, "Maximum number of keys.")
        .with_default("1000000");
const MAX_BYTES: Field<Integer> = Field::new(
    "max_bytes",
    Integer { min: 1, max: u64::MAX },
    "Maximum memory in bytes: the table and the data beside it.",
)
.with_described_default("280 bytes per key, or 24 bytes per key plus 64 MiB if that is more");
const WHEN_FULL: Field<OneOf<WhenFull>> = Field::new(
    "when_full",
    OneOf(PhantomData),
    "Handling of a new key in a full store: evict removes another key, refuse returns 503.",
)
.with_default("evict");

pub(crate) const MEMORY: Mapping<MemoryConfig> = Mapping {
    fields: &[&MAX_KEYS, &MAX_BYTES, &WHEN_FULL],
    one_of: &[],
    read: |fields, diagnostics| Some(memory(fields, diagnostics)),
};

impl Keyword for WhenFull {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [("evict", Self::Evict), ("refuse", Self::Refuse)].into_iter()
    }
}

fn memory(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> MemoryConfig {
    let mut number = |field| fields.get(field, diagnostics).map(usize::try_from);
    let (max_keys, max_bytes) = (number(&MAX_KEYS), number(&MAX_BYTES));
    let when_full = fields.get(&WHEN_FULL, diagnostics);
    let are_valid =
        max_keys.is_some() == fields.has(&MAX_KEYS) && max_bytes.is_some() == fields.has(&MAX_BYTES);
    let config = MemoryConfig {
        max_keys: max_keys.and_then(Result::ok),
        max_bytes: max_bytes.and_then(Result::ok),
        when_full,
    };
    // The store itself checks whether the bytes suffice for the keys.
    if are_valid && let Err(error) = config.builder().validate() {
        let field = if fields.has(&MAX_BYTES) { "max_bytes" } else { "max_keys" };
        diagnostics.report(fields.line_of(field), fields.path_of(error.field()), error.message());
    }
    config
}
