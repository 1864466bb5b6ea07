//! The name of a key in stores that others can look into.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate_core::Policy;

/// The key of the hash where none is set.
const NO_SECRET: &str = "";
/// Separates what is derived here from other uses of the same secret.
const CONTEXT: &str = "slidegate 2026-11 key names";
/// Bytes of a name. The first [`POLICY_BITS`] are a hash of the policy, so that the names of a policy are a range, the other
/// 86 bits are one of policy and key: two of a billion keys of a policy agree with a probability of less than 10^-8.
const NAME_BYTES: usize = 16;
/// Two of a thousand policies agree in these with a probability of 10^-7. All counts are still apart then, but to forget the
/// keys of one of the two is to forget those of the other. The first seven letters of a name in base 64 are as many bits.
const POLICY_BITS: u32 = 42;
const KEY_BITS: u32 = u128::BITS - POLICY_BITS;
const KEY_MASK: u128 = (1 << KEY_BITS) - 1;

/// Turns a policy and a key into 128 bits that cannot be guessed without the secret.
#[derive(Clone)]
pub(crate) struct Identities {
    secret: [u8; 32],
    /// Tells apart the secrets of one process.
    number: u64,
}

/// The part of all names of one policy, and for which secret and policy it was worked out.
#[derive(Clone, Copy, Default)]
struct Part {
    secret: u64,
    policy: [u64; 2],
    bits: u128,
}

thread_local! {
    /// That of the last name: most names that a thread makes are of the same few policies.
    static LAST: Cell<Part> = const { Cell::new(Part { secret: 0, policy: [0; 2], bits: 0 }) };
}

impl Identities {
    pub(crate) fn new(secret: Option<&str>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let secret = blake3::derive_key(CONTEXT, secret.unwrap_or(NO_SECRET).as_bytes());
        Self { secret, number: COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The name of a key.
    pub(crate) fn of(&self, policy: &Policy, key: &[u8]) -> [u8; NAME_BYTES] {
        let own = self.hash(policy, Some(key)) & KEY_MASK;
        (self.part(policy) | own).to_be_bytes()
    }

    /// All names that keys of the policy may have.
    pub(crate) fn range(&self, policy: &Policy) -> RangeInclusive<u128> {
        let part = self.part(policy);
        part..=part | KEY_MASK
    }

    fn part(&self, policy: &Policy) -> u128 {
        let last = LAST.get();
        if last.secret == self.number && last.policy == policy.digest() {
            return last.bits;
        }
        let bits = self.hash(policy, None) & !KEY_MASK;
        LAST.set(Part { secret: self.number, policy: policy.digest(), bits });
        bits
    }

    /// Each field with its length before it, so that no two different pairs make the same bytes.
    fn hash(&self, policy: &Policy, key: Option<&[u8]>) -> u128 {
        let mut fields = Vec::with_capacity(17 + policy.name().len() + key.map_or(0, <[u8]>::len));
        fields.push(policy.kind());
        for field in [policy.name().as_bytes()].into_iter().chain(key) {
            fields.extend_from_slice(&(field.len() as u64).to_le_bytes());
            fields.extend_from_slice(field);
        }
        let whole = blake3::keyed_hash(&self.secret, &fields);
        let mut half = [0; NAME_BYTES];
        half.copy_from_slice(&whole.as_bytes()[..NAME_BYTES]);
        u128::from_be_bytes(half)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_a_policy_are_a_range_and_spread_within_it() {
        let (plain, keyed) = (Identities::new(None), Identities::new(Some("hush")));
        let policies: Vec<Policy> =
            (0..100).map(|number| Policy::parse(&format!("p{number}"), ["1/s"]).unwrap()).collect();
        let (mut names, mut last_bytes) = (HashSet::new(), HashSet::new());
        for identities in [&plain, &keyed] {
            for key in 0..100_u32 {
                for policy in &policies {
                    let name = identities.of(policy, &key.to_be_bytes());
                    let number = u128::from_be_bytes(name);
                    assert!(identities.range(policy).contains(&number));
                    assert!(names.insert(number), "two keys have one name");
                    last_bytes.insert((policy.name(), name[15]));
                }
            }
        }
        for (place, policy) in policies.iter().enumerate() {
            let other = &policies[(place + 1) % policies.len()];
            assert!(!plain.range(policy).contains(plain.range(other).start()));
            assert_ne!(plain.range(policy), keyed.range(policy));
            // Of 256, after 200 draws.
            let used = last_bytes.iter().filter(|(name, _)| *name == policy.name()).count();
            assert!((100..200).contains(&used), "{used}");
        }
    }

    #[test]
    fn kinds_of_policies_with_one_text_have_ranges_of_their_own() {
        let identities = Identities::new(None);
        let quotas = || ["1/1m".parse().unwrap()];
        let ranges = [
            Policy::new("1/1m", quotas()).unwrap(),
            Policy::anonymous(quotas()).unwrap(),
            Policy::candidate_for("1/1m", quotas()).unwrap(),
        ]
        .map(|policy| identities.range(&policy));
        assert!(ranges[0] != ranges[1] && ranges[1] != ranges[2] && ranges[0] != ranges[2]);
    }
}
