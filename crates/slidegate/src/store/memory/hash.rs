//! From a policy's name and a key to 128 bits that only this process can know.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::hint::cold_path;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// Tags that no key has: a place never used, and one whose key is gone.
pub(super) const EMPTY: u64 = 0;
pub(super) const REMOVED: u64 = 1;
/// A bit that every key's tag has, which tells it from those two.
const KEY: u64 = 2;

/// An odd number without a pattern: the fraction of the golden ratio.
const MIXER: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a key is hashed to: where it looks, and the tag by which it knows itself.
///
/// The two halves are hashed with independent seeds, so being neighbours says nothing about having the same tag.
/// A tag has 63 random bits, and a key that is looked up compares it with at most 256 others; hence a new key meets
/// the counter of another one by accident with a probability of at most 256 / 2^63 = 2^-55: with a million *new* keys
/// each second, once in a thousand years. That takes the hash for a random function, as one does. Seeds are drawn per
/// table, digests of policies per process, and neither they nor hashes leave it, so nobody can aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyHash {
    pub(super) tag: u64,
    pub(super) place: u64,
}

/// The longest key that is hashed here.
const SHORT: usize = 16;

/// Keys of up to 16 bytes, which are most, are hashed here in both halves at once: two words of the key, each
/// combined with a secret, multiplied, the upper half of the product folded into the lower one. That is what
/// foldhash does with them too, but twice it would look at the length twice; it hashes all longer keys.
#[derive(Clone)]
pub(super) struct KeyHasher {
    tag: Seed,
    place: Seed,
}

#[derive(Clone)]
struct Seed {
    /// For the first word, another one for each length, so that words which overlap differently make a difference that
    /// nobody can work out; and for longer keys, the first of them.
    first: [u64; SHORT + 1],
    last: u64,
    shared: SharedSeed,
}

/// The standard library's hasher keys are drawn from the operating system and differ for each state.
pub(super) fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Seed {
    fn random() -> Self {
        Self { first: std::array::from_fn(|_| draw()), last: draw(), shared: SharedSeed::from_u64(draw()) }
    }

    /// The hash of a key of up to 16 bytes.
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

    /// The hasher that hashes with no policy as this one does with `policy`.
    pub(super) fn bind(&self, policy: [u64; 2]) -> Self {
        let mut bound = self.clone();
        bound.tag.first.iter_mut().for_each(|secret| *secret ^= policy[0]);
        bound.place.first.iter_mut().for_each(|secret| *secret ^= policy[1]);
        bound
    }

    /// The policy changes the seeds and is no part of what is hashed, so the two cannot run into each other: `a` and
    /// `bc` is not `ab` and `c`.
    #[inline(always)]
    pub(super) fn hash(&self, policy: [u64; 2], key: &[u8]) -> KeyHash {
        match words(key) {
            Some(words) => KeyHash {
                tag: self.tag.hash_short(policy[0], key.len(), words) | KEY,
                // Multiplied once more: keys that differ in a digit or two would otherwise crowd into some pages.
                place: self.place.hash_short(policy[1], key.len(), words).wrapping_mul(MIXER),
            },
            None => self.hash_long(policy[0], policy[1], key),
        }
    }

    /// Apart, so that whoever has a short key need not be prepared for a call.
    #[inline(never)]
    fn hash_long(&self, tag_policy: u64, place_policy: u64, key: &[u8]) -> KeyHash {
        let place = self.place.hash_long(place_policy, key);
        KeyHash { tag: self.tag.hash_long(tag_policy, key) | KEY, place }
    }
}

/// The first and the last word of a key of up to 16 bytes; they overlap where it is shorter.
#[inline(always)]
fn words(key: &[u8]) -> Option<[u64; 2]> {
    if let 8..=16 = key.len()
        && let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk())
    {
        return Some([u64::from_le_bytes(*first), u64::from_le_bytes(*last)]);
    }
    // Not that rare, but the code for the most usual keys is to be in one piece.
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

    /// Keys of all lengths that differ little.
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
        // A thousand each, with a standard deviation of 31: ten of those away is no accident.
        assert!(high.iter().chain(&low).all(|count| (count - 1000).abs() < 320), "{high:?} {low:?}");
    }

    /// Once wrong: without the last multiplication, some seeds put so many of such keys into one page that it overflowed.
    #[test]
    fn similar_keys_do_not_crowd_into_a_page_under_any_seed() {
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

    /// Once wrong: the length turned but the policy's part of a secret, so that a key of another length with the difference worked
    /// in had the same tag under every seed.
    #[test]
    fn a_difference_in_length_cannot_be_worked_into_a_key() {
        let policy: [u64; 2] = [0x0123_4567_89AB_CDEF, 0x0F1E_2D3C_4B5A_6978];
        for _ in 0..100 {
            let hasher = KeyHasher::random();
            for half in policy {
                // Both keys have the same last word, and their first words differ by just what the lengths make.
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
