//! Policies whose keys were forgotten: their keys are hashed with a salt from then on.
//!
//! The table knows keys by their hashes alone, so it cannot find those of a policy. With another salt the same keys have
//! other hashes, and the slots of before are found by no check: they are evicted or removed as soon as they count nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::hash::draw;
use crate::error::StoreError;

/// The most policies whose keys can be forgotten. A salt lasts as long as the store: without it, the counts of before
/// would be found again.
pub(super) const MOST_POLICIES: usize = 4096;

/// The salts, by policy.
#[derive(Default)]
pub(super) struct Forgotten {
    /// How many times anything was forgotten. Each time, bound policies have to look for their salt again.
    times: AtomicU64,
    salts: OnceLock<Salts>,
}

/// An open hash table of pairs that are only ever added, twice as large as it may become full.
struct Salts {
    pairs: Box<[Pair]>,
    policies: Mutex<usize>,
}

#[derive(Default)]
struct Pair {
    /// Half of a policy's digest; 0 if the pair is vacant.
    policy: AtomicU64,
    salt: AtomicU64,
}

impl Forgotten {
    /// How many times anything was forgotten.
    #[inline(always)]
    pub(super) fn times(&self) -> u64 {
        // A check that begins after a forget has returned sees it.
        self.times.load(Ordering::Relaxed)
    }

    /// The same; salts that are looked at afterwards are those of that time or later ones.
    pub(super) fn times_before_salts(&self) -> u64 {
        self.times.load(Ordering::Acquire)
    }

    /// The digest by which a policy's keys are hashed.
    pub(super) fn salted(&self, digest: [u64; 2]) -> [u64; 2] {
        let Some(salts) = self.salts.get() else { return digest };
        let pair = salts.pair(digest);
        match pair.policy.load(Ordering::Acquire) {
            0 => digest,
            _ => {
                let salt = pair.salt.load(Ordering::Relaxed);
                [digest[0] ^ salt, digest[1] ^ salt.rotate_left(32)]
            }
        }
    }

    /// Gives the policy's keys another salt.
    pub(super) fn forget(&self, digest: [u64; 2]) -> Result<(), StoreError> {
        let salts = self.salts.get_or_init(Salts::new);
        {
            let mut policies = salts.policies.lock().unwrap_or_else(PoisonError::into_inner);
            let pair = salts.pair(digest);
            if pair.policy.load(Ordering::Relaxed) == 0 {
                if *policies >= MOST_POLICIES {
                    let message = format!(
                        "memory: the keys of {MOST_POLICIES} policies were forgotten; no more can be"
                    );
                    return Err(StoreError::full(message));
                }
                *policies += 1;
            }
            pair.salt.store(draw(), Ordering::Relaxed);
            pair.policy.store(half(digest), Ordering::Release);
        }
        self.times.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Salts {
    fn new() -> Self {
        Self { pairs: (0..2 * MOST_POLICIES).map(|_| Pair::default()).collect(), policies: Mutex::new(0) }
    }

    /// The pair of a policy, or the vacant one where it would be. At least half of all are vacant.
    fn pair(&self, digest: [u64; 2]) -> &Pair {
        let first = digest[1] as usize % self.pairs.len();
        let mut pairs = self.pairs[first..].iter().chain(&self.pairs[..first]);
        let is_its = |pair: &&Pair| [0, half(digest)].contains(&pair.policy.load(Ordering::Acquire));
        pairs.find(is_its).unwrap_or(&self.pairs[first])
    }
}

/// What tells policies apart here. Digests are random, so that two of all policies agree with a probability of 2^-63 for
/// each pair of them.
fn half(digest: [u64; 2]) -> u64 {
    digest[0] | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_concerns_one_policy_and_changes_each_time() {
        let forgotten = Forgotten::default();
        let policies = [[2, 7], [4, 7], [6, 8]];
        let salted = || policies.map(|digest| forgotten.salted(digest));
        assert_eq!(salted(), policies);
        forgotten.forget(policies[0]).unwrap();
        let once = salted();
        assert!(once[0] != policies[0] && once[1..] == policies[1..]);
        forgotten.forget(policies[1]).unwrap();
        forgotten.forget(policies[0]).unwrap();
        let twice = salted();
        assert!(twice[0] != once[0] && twice[0] != policies[0] && twice[1] != policies[1]);
        assert_eq!(twice[2], policies[2]);
        assert_eq!(forgotten.times(), 3);
    }

    #[test]
    fn salts_are_bounded_and_those_that_there_are_can_be_renewed() {
        let forgotten = Forgotten::default();
        let digest = |number: u64| [number << 1, number.wrapping_mul(0x9E37_79B9_7F4A_7C15)];
        let most = MOST_POLICIES as u64;
        (1..=most).for_each(|number| forgotten.forget(digest(number)).unwrap());
        assert!(forgotten.forget(digest(most + 1)).unwrap_err().is_full());
        assert_eq!(forgotten.salted(digest(most + 1)), digest(most + 1));
        let before = forgotten.salted(digest(1));
        forgotten.forget(digest(1)).unwrap();
        assert_ne!(forgotten.salted(digest(1)), before);
    }
}
