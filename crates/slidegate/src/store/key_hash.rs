//! Hash of policy and key, under which remote stores keep the key's counts.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate_core::Policy;

/// Secret of the hash if none is configured.
const DEFAULT_SECRET: &str = "";
/// Separates the hash from other uses of the same secret.
const CONTEXT: &str = "slidegate 2026-11 key names";
/// Bytes of a hash. The first [`POLICY_BITS`] bits are a hash of the policy alone, so that the hashes of a policy form a
/// range. The other 86 bits are a hash of policy and key: among a billion keys of a policy, two collide with a probability
/// below 10^-8.
const HASH_BYTES: usize = 16;
/// Among a thousand policies, two collide in these bits with a probability of 10^-7. Their counts remain separate, but
/// a reset of one of these policies also resets the other. 42 bits are exactly the first seven letters of a hash in base 64.
const POLICY_BITS: u32 = 42;
const KEY_BITS: u32 = u128::BITS - POLICY_BITS;
const KEY_MASK: u128 = (1 << KEY_BITS) - 1;

/// Hashes policies and keys into 128 bits that cannot be guessed without the secret.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    secret: [u8; 32],
    /// Distinguishes the hashers of a process in [`LAST_PREFIX`].
    id: u64,
}

/// Policy bits of a hash, with the hasher and the policy that they belong to.
#[derive(Clone, Copy, Default)]
struct PolicyPrefix {
    hasher: u64,
    policy: [u64; 2],
    bits: u128,
}

thread_local! {
    /// Prefix of the thread's last hash: a thread mostly hashes keys of the same few policies.
    static LAST_PREFIX: Cell<PolicyPrefix> =
        const { Cell::new(PolicyPrefix { hasher: 0, policy: [0; 2], bits: 0 }) };
}

impl KeyHasher {
    pub(crate) fn new(secret: Option<&str>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let secret = blake3::derive_key(CONTEXT, secret.unwrap_or(DEFAULT_SECRET).as_bytes());
        Self { secret, id: NEXT_ID.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the hash of a key under a policy.
    pub(crate) fn hash(&self, policy: &Policy, key: &[u8]) -> [u8; HASH_BYTES] {
        let key_bits = self.digest(policy, Some(key)) & KEY_MASK;
        (self.prefix(policy) | key_bits).to_be_bytes()
    }

    /// Returns the range of the hashes of all keys of a policy.
    pub(crate) fn range(&self, policy: &Policy) -> RangeInclusive<u128> {
        let prefix = self.prefix(policy);
        prefix..=prefix | KEY_MASK
    }

    fn prefix(&self, policy: &Policy) -> u128 {
        let last = LAST_PREFIX.get();
        if last.hasher == self.id && last.policy == policy.digest() {
            return last.bits;
        }
        let bits = self.digest(policy, None) & !KEY_MASK;
        LAST_PREFIX.set(PolicyPrefix { hasher: self.id, policy: policy.digest(), bits });
        bits
    }

    /// Hashes the fields, each preceded by its length so that different fields never yield the same bytes.
    fn digest(&self, policy: &Policy, key: Option<&[u8]>) -> u128 {
        let mut fields = Vec::with_capacity(17 + policy.name().len() + key.map_or(0, <[u8]>::len));
        fields.push(policy.kind());
        for field in [policy.name().as_bytes()].into_iter().chain(key) {
            fields.extend_from_slice(&(field.len() as u64).to_le_bytes());
            fields.extend_from_slice(field);
        }
        let whole = blake3::keyed_hash(&self.secret, &fields);
        let mut half = [0; HASH_BYTES];
        half.copy_from_slice(&whole.as_bytes()[..HASH_BYTES]);
        u128::from_be_bytes(half)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hashes_of_a_policy_form_a_range_and_spread_within_it() {
        let (plain, keyed) = (KeyHasher::new(None), KeyHasher::new(Some("hush")));
        let policies: Vec<Policy> =
            (0..100).map(|number| Policy::parse(&format!("p{number}"), ["1/s"]).unwrap()).collect();
        let (mut hashes, mut last_bytes) = (HashSet::new(), HashSet::new());
        for hasher in [&plain, &keyed] {
            for key in 0..100_u32 {
                for policy in &policies {
                    let hash = hasher.hash(policy, &key.to_be_bytes());
                    let number = u128::from_be_bytes(hash);
                    assert!(hasher.range(policy).contains(&number));
                    assert!(hashes.insert(number), "two keys have the same hash");
                    last_bytes.insert((policy.name(), hash[15]));
                }
            }
        }
        for (index, policy) in policies.iter().enumerate() {
            let other = &policies[(index + 1) % policies.len()];
            assert!(!plain.range(policy).contains(plain.range(other).start()));
            assert_ne!(plain.range(policy), keyed.range(policy));
            // Distinct values of the last byte among 200 hashes.
            let used = last_bytes.iter().filter(|(name, _)| *name == policy.name()).count();
            assert!((100..200).contains(&used), "{used}");
        }
    }

    #[test]
    fn policy_kinds_with_the_same_text_have_distinct_ranges() {
        let hasher = KeyHasher::new(None);
        let quotas = || ["1/1m".parse().unwrap()];
        let ranges = [
            Policy::new("1/1m", quotas()).unwrap(),
            Policy::anonymous(quotas()).unwrap(),
            Policy::candidate_for("1/1m", quotas()).unwrap(),
        ]
        .map(|policy| hasher.range(&policy));
        assert!(ranges[0] != ranges[1] && ranges[1] != ranges[2] && ranges[0] != ranges[2]);
    }
}
