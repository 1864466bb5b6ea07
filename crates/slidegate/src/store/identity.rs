//! Who a key is, for stores that others can look into.

use slidegate_core::Policy;

/// Without a secret of one's own: everybody's.
const NO_SECRET: &str = "";
/// Separates what is derived here from whatever else the same secret is used for.
const CONTEXT: &str = "slidegate 2026-11 key names";
/// Of the hash, 128 bits are kept: two of a trillion keys meet with a probability of 10^-15.
const HASH_BYTES: usize = 16;

/// Turns a policy and a key into 128 bits that nobody can guess who does not know the secret.
#[derive(Clone)]
pub(crate) struct Identities {
    secret: [u8; 32],
}

impl Identities {
    pub(crate) fn new(secret: Option<&str>) -> Self {
        Self { secret: blake3::derive_key(CONTEXT, secret.unwrap_or(NO_SECRET).as_bytes()) }
    }

    /// Each field with its length before it, so that no two different pairs make the same bytes.
    pub(crate) fn of(&self, policy: &Policy, key: &[u8]) -> [u8; HASH_BYTES] {
        let mut fields = Vec::with_capacity(17 + policy.name().len() + key.len());
        fields.push(policy.kind());
        for field in [policy.name().as_bytes(), key] {
            fields.extend_from_slice(&(field.len() as u64).to_le_bytes());
            fields.extend_from_slice(field);
        }
        let whole = blake3::keyed_hash(&self.secret, &fields);
        let mut half = [0; HASH_BYTES];
        half.copy_from_slice(&whole.as_bytes()[..HASH_BYTES]);
        half
    }
}
