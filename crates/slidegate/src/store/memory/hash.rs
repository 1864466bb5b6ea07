//! Hash of a policy and a key to 128 bits that are unpredictable outside this process.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::hint::cold_path;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// Tags of slots without an owner: one never used, and one whose key was removed.
pub(super) const EMPTY: u64 = 0;
pub(super) const REMOVED: u64 = 1;
/// Bit that is set in every key's tag, which distinguishes it from those two.
const KEY: u64 = 2;

/// Odd multiplier without a pattern: the fraction of the golden ratio.
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hash of a key: its place, which determines the home line, and its tag, which identifies it.
///
/// The two halves use independent seeds, so keys of neighbouring places have independent tags. A tag has 63 random bits,
/// and a lookup compares it with at most 256 others. A new key therefore shares another's counter with a probability of at
/// most 256 / 2^63 = 2^-55: once in a thousand years at a million *new* keys per second. This assumes, as usual, that the
/// hash behaves like a random function. Seeds are drawn per table, policy digests per process, and neither they nor the
/// hashes leave the process, so collisions cannot be provoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash {
    pub(super) tag: u64,
    pub(super) place: u64,
}

/// Longest key of the short hash.
const SHORT: usize = 16;

/// Hasher of keys. Keys of up to 16 bytes, the most common, are hashed in both halves at once: two words of the key are each
/// combined with a secret and multiplied, and the upper half of the product is folded into the lower one. Foldhash does
/// the same, but two calls would branch on the length twice. Longer keys are hashed by foldhash.
#[derive(Clone)]
pub(super) struct KeyHasher {
    tag: Seed,
    place: Seed,
}

#[derive(Clone)]
struct Seed {
    /// Secrets of the first word, one per length: words that overlap differently then differ in an unpredictable way.
    /// Longer keys use the first of them.
    first: [u64; SHORT + 1],
    last: u64,
    shared: SharedSeed,
}

/// Draws a random number. The standard library seeds hashers from the operating system, each one differently.
pub(super) fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Seed {
    fn random() -> Self {
        Self { first: std::array::from_fn(|_| draw()), last: draw(), shared: SharedSeed::from_u64(draw()) }
    }

    /// Hashes a key of up to 16 bytes.
    #[inline(always)]
    fn hash_short(&self, policy: u64, len: usize, [first, last]: [u64; 2]) -> u64 {
        fold(first ^ self.first[len] ^ policy, last ^ self.last)
    }

    fn hash_long(&self, policy: u64, key: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.first[0] ^ policy, &self.shared);
        hasher.write(key);
        hasher.finish()
    }
}

impl KeyHasher {
    pub(super) fn random() -> Self {
        Self { tag: Seed::random(), place: Seed::random() }
    }

    /// Returns a hasher that hashes without a policy as this one does with `policy`.
    pub(super) fn bind(&self, policy: [u64; 2]) -> Self {
        let mut bound = self.clone();
        bound.tag.first.iter_mut().for_each(|secret| *secret ^= policy[0]);
        bound.place.first.iter_mut().for_each(|secret| *secret ^= policy[1]);
        bound
    }

    /// Hashes a key. The policy changes the seeds instead of being part of the input, so policy `a` with key `bc` and policy
    /// `ab` with key `c` have unrelated hashes.
    #[inline(always)]
    pub(super) fn hash(&self, policy: [u64; 2], key: &[u8]) -> KeyHash {
        match words(key) {
            Some(words) => KeyHash {
                tag: self.tag.hash_short(policy[0], key.len(), words) | KEY,
                // Without this multiplication, keys that differ in a digit or two would cluster in some pages.
                place: self.place.hash_short(policy[1], key.len(), words).wrapping_mul(MIXER),
            },
            None => self.hash_long(policy[0], policy[1], key),
        }
    }

    /// Hashes a key of more than 16 bytes. Not inlined, so that short keys need not save registers for a call.
    #[inline(never)]
    fn hash_long(&self, tag_policy: u64, place_policy: u64, key: &[u8]) -> KeyHash {
        let place = self.place.hash_long(place_policy, key);
        KeyHash { tag: self.tag.hash_long(tag_policy, key) | KEY, place }
    }
}

/// Returns the first and the last word of a key of up to 16 bytes. They overlap in keys of fewer bytes.
#[inline(always)]
fn words(key: &[u8]) -> Option<[u64; 2]> {
    if let 8..=16 = key.len()
        && let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk())
    {
        return Some([u64::from_le_bytes(*first), u64::from_le_bytes(*last)]);
    }
    // Not rare, but marked cold to keep the code for the most common lengths contiguous.
    cold_path();
    if let 4..8 = key.len()
        && let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk())
    {
        return Some([first, last].map(|word| u64::from(u32::from_le_bytes(*word))));
    }
    match *key {
        [] => Some([0, 0]),
        [a] => Some([u64::from(a), 0]),
        [a, b] => Some([u64::from(a), u64::from(b)]),
        [a, b, c] => Some([u64::from(a), u64::from(b) << 8 | u64::from(c)]),
        _ => None,
    }
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const POLICY: [u64; 2] = [7, 8];

    /// Returns similar keys of all lengths.
    fn keys() -> impl Iterator<Item = Vec<u8>> {
        let repeated = (0..64).flat_map(|len| [b'a', 0, 255].map(|byte| vec![byte; len])).skip(2);
        let counted = (0..100_000).map(|number| format!("user:{number}").into_bytes());
        let padded = (0..100_000).map(|number| format!("{number:020}").into_bytes());
        let bits = (0..128).map(|bit| (1_u128 << bit).to_le_bytes().to_vec());
        repeated.chain(counted).chain(padded).chain(bits)
    }

    #[test]
    fn no_two_of_many_similar_keys_share_either_half() {
        let hasher = KeyHasher::random();
        let distinct: HashSet<Vec<u8>> = keys().collect();
        let ids: Vec<KeyHash> = distinct.iter().map(|key| hasher.hash(POLICY, key)).collect();
        let halves = |half: fn(&KeyHash) -> u64| ids.iter().map(half).collect::<HashSet<_>>().len();
        assert_eq!(halves(|id| id.tag), distinct.len());
        assert_eq!(halves(|id| id.place), distinct.len());
        assert!(ids.iter().all(|id| id.tag != EMPTY && id.tag != REMOVED));
    }

    #[test]
    fn places_are_spread_evenly_by_their_high_and_by_their_low_bits() {
        let hasher = KeyHasher::random();
        let (mut high, mut low) = ([0_i64; 64], [0_i64; 64]);
        for number in 0..64_000 {
            let place = hasher.hash(POLICY, format!("user:{number:07}").as_bytes()).place;
            high[(place >> 58) as usize] += 1;
            low[(place & 63) as usize] += 1;
        }
        // 1000 each is expected, with a standard deviation of 31: a deviation of ten of those is no chance.
        assert!(high.iter().chain(&low).all(|count| (count - 1000).abs() < 320), "{high:?} {low:?}");
    }

    /// Without the last multiplication, some seeds put so many of these keys into one page that it overflowed.
    #[test]
    fn similar_keys_do_not_cluster_in_a_page_under_any_seed() {
        const PAGES: usize = 100;
        for _ in 0..100 {
            let hasher = KeyHasher::random();
            let mut pages = [0; PAGES];
            for number in 0..175 * PAGES {
                let place = hasher.hash(POLICY, format!("key {number}").as_bytes()).place;
                pages[((u128::from(place) * PAGES as u128) >> 64) as usize] += 1;
            }
            assert!(pages.iter().all(|keys| *keys < 256), "{pages:?}");
        }
    }

    /// If the length only rotated the policy's part of a secret, a key of another length could compensate for it and have
    /// the same tag under every seed.
    #[test]
    fn a_key_cannot_compensate_for_a_difference_in_length() {
        let policy: [u64; 2] = [0x0123_4567_89AB_CDEF, 0x0F1E_2D3C_4B5A_6978];
        for _ in 0..100 {
            let hasher = KeyHasher::random();
            for half in policy {
                // Both keys have the same last word, and first words that differ by the effect of the lengths.
                let last = *b"87654321";
                let delta = half.rotate_right(16) ^ half.rotate_right(15);
                let shared = u64::from(last[0]) << 56;
                let first_of_short = 0x0031_3131_3131_3131 | shared;
                let short = [&first_of_short.to_le_bytes()[..7], &last].concat();
                let long = [(first_of_short ^ delta).to_le_bytes(), last].concat();
                assert_eq!((short.len(), long.len()), (15, 16));
                let (short, long) = (hasher.hash(policy, &short), hasher.hash(policy, &long));
                assert!(long.tag != short.tag && long.place != short.place);
            }
        }
    }

    #[test]
    fn seeds_and_policies_change_everything() {
        let (one, other) = (KeyHasher::random(), KeyHasher::random());
        for key in [&b""[..], b"a", b"user:1", b"user:0000001", b"a key of more than sixteen bytes"] {
            let ids = [one.hash([1, 2], key), one.hash([3, 4], key), other.hash([1, 2], key)];
            assert_eq!(one.bind([1, 2]).hash([0, 0], key), ids[0], "{key:?}");
            assert!(ids[0].tag != ids[1].tag && ids[0].tag != ids[2].tag, "{key:?}");
            assert!(ids[0].place != ids[1].place && ids[0].place != ids[2].place, "{key:?}");
        }
    }
}
