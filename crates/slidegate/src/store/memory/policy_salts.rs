//! Salts that invalidate all keys of a policy at once.
//!
//! The table stores hashes of keys only, so it cannot find the keys of a policy. A new salt changes the hashes of all
//! keys of the policy. Lookups no longer reach the former slots, which are evicted, or swept when their counts expire.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::hash::draw;
use crate::error::StoreError;

/// Largest number of policies with a salt. A salt lasts as long as the store: without it, the former counts would be
/// found again.
pub(super) const MAX_POLICIES: usize = 4096;

/// Salts by policy.
#[derive(Default)]
pub(super) struct PolicySalts {
    /// Number of changes. A binding with another version looks up its salt again.
    version: AtomicU64,
    salts: OnceLock<SaltTable>,
}

/// Open-addressing hash table without removal. Its capacity is twice the largest number of entries.
struct SaltTable {
    entries: Box<[SaltEntry]>,
    policies: Mutex<usize>,
}

#[derive(Default)]
struct SaltEntry {
    /// Identity of a policy, from [`policy_id`]; 0 if the entry is vacant.
    policy: AtomicU64,
    salt: AtomicU64,
}

impl PolicySalts {
    /// Returns the number of changes so far.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        // Relaxed suffices: a check that begins after `forget` has returned sees its change.
        self.version.load(Ordering::Relaxed)
    }

    /// Returns the number of changes such that a later read of the salts sees at least these changes.
    pub(super) fn version_before_salts(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the digest to hash a policy's keys with.
    pub(super) fn salted(&self, digest: [u64; 2]) -> [u64; 2] {
        let Some(salts) = self.salts.get() else { return digest };
        let entry = salts.entry(digest);
        match entry.policy.load(Ordering::Acquire) {
            0 => digest,
            _ => {
                let salt = entry.salt.load(Ordering::Relaxed);
                [digest[0] ^ salt, digest[1] ^ salt.rotate_left(32)]
            }
        }
    }

    /// Gives the policy a new salt. Fails if [`MAX_POLICIES`] other policies have one.
    pub(super) fn forget(&self, digest: [u64; 2]) -> Result<(), StoreError> {
        let salts = self.salts.get_or_init(SaltTable::new);
        {
            let mut policies = salts.policies.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = salts.entry(digest);
            if entry.policy.load(Ordering::Relaxed) == 0 {
                if *policies >= MAX_POLICIES {
                    let message = format!(
                        "memory: the keys of {MAX_POLICIES} policies were reset, which is the maximum; restart to \
                         reset those of another policy"
                    );
                    return Err(StoreError::full(message));
                }
                *policies += 1;
            }
            entry.salt.store(draw(), Ordering::Relaxed);
            entry.policy.store(policy_id(digest), Ordering::Release);
        }
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl SaltTable {
    fn new() -> Self {
        Self {
            entries: (0..2 * MAX_POLICIES).map(|_| SaltEntry::default()).collect(),
            policies: Mutex::new(0),
        }
    }

    /// Returns the entry of a policy, or the vacant one where it would be inserted. At least half of all are vacant.
    fn entry(&self, digest: [u64; 2]) -> &SaltEntry {
        let first = digest[1] as usize % self.entries.len();
        let mut entries = self.entries[first..].iter().chain(&self.entries[..first]);
        let is_match =
            |entry: &&SaltEntry| [0, policy_id(digest)].contains(&entry.policy.load(Ordering::Acquire));
        entries.find(is_match).unwrap_or(&self.entries[first])
    }
}

/// Returns the identity of a policy in the table. Digests are random, so two policies have the same identity with a
/// probability of 2^-63.
fn policy_id(digest: [u64; 2]) -> u64 {
    digest[0] | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_affects_one_policy_and_changes_each_time() {
        let salts = PolicySalts::default();
        let policies = [[2, 7], [4, 7], [6, 8]];
        let salted = || policies.map(|digest| salts.salted(digest));
        assert_eq!(salted(), policies);
        salts.forget(policies[0]).unwrap();
        let once = salted();
        assert!(once[0] != policies[0] && once[1..] == policies[1..]);
        salts.forget(policies[1]).unwrap();
        salts.forget(policies[0]).unwrap();
        let twice = salted();
        assert!(twice[0] != once[0] && twice[0] != policies[0] && twice[1] != policies[1]);
        assert_eq!(twice[2], policies[2]);
        assert_eq!(salts.version(), 3);
    }

    #[test]
    fn the_number_of_salts_is_bounded_and_existing_salts_can_be_renewed() {
        let salts = PolicySalts::default();
        let digest = |number: u64| [number << 1, number.wrapping_mul(0x9E37_79B9_7F4A_7C15)];
        let max = MAX_POLICIES as u64;
        (1..=max).for_each(|number| salts.forget(digest(number)).unwrap());
        assert!(salts.forget(digest(max + 1)).unwrap_err().is_full());
        assert_eq!(salts.salted(digest(max + 1)), digest(max + 1));
        let before = salts.salted(digest(1));
        salts.forget(digest(1)).unwrap();
        assert_ne!(salts.salted(digest(1)), before);
    }
}
