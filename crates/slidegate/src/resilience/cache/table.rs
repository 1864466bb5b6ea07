//! Table of cached denials with a fixed number of slots.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slidegate_core::{Check, Decision, Policy};

use super::denial::Denial;
use super::metrics::{DropReason, count_dropped};

/// Each shard has a lock of its own, so that concurrent callers rarely contend.
const MAX_SHARDS: usize = 64;
/// Number of adjacent slots in which the denial of a key may lie.
const MAX_PROBES: usize = 8;

/// 128-bit hash of a policy and a key. The seeds are drawn when the table is created and never leave it, so no client
/// can construct colliding keys. Long keys take no more memory than short ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyHash([u64; 2]);

/// Number of invalidations in a shard. A denial requested in an earlier epoch is not stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u64);

/// Result of a lookup, as of an epoch.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) denial: Option<Decision>,
    pub(super) epoch: Epoch,
}

#[derive(Debug)]
pub(super) struct Table {
    seeds: [RandomState; 2],
    shards: Box<[Mutex<Shard>]>,
}

impl Table {
    pub(super) fn new(capacity: usize) -> Self {
        let shards = capacity.min(MAX_SHARDS);
        // The shard sizes differ by at most one slot and add up to the capacity.
        let shard = |index: usize| Mutex::new(Shard::new((capacity + index) / shards));
        Self { seeds: [RandomState::new(), RandomState::new()], shards: (0..shards).map(shard).collect() }
    }

    pub(super) fn hash(&self, check: &Check<'_>) -> KeyHash {
        KeyHash(self.seeds.each_ref().map(|seed| seed.hash_one((check.policy.digest(), check.key))))
    }

    /// Finds the denial of a request at `now_ms`. Drops it if it has expired or belongs to other quotas.
    pub(super) fn find(&self, key_hash: KeyHash, check: &Check<'_>, now_ms: u64) -> Found {
        let mut shard = self.shard(key_hash);
        let nothing = Found { denial: None, epoch: shard.epoch };
        let Some(slot) = shard.slot_of(key_hash) else { return nothing };
        let Some(Entry { denial, .. }) = slot else { return nothing };
        if !denial.is_live(now_ms) {
            *slot = None;
            return nothing;
        }
        if !denial.has_quotas_of(check.policy) {
            *slot = None;
            drop(shard);
            count_dropped(DropReason::Limits);
            return nothing;
        }
        let decision = denial.denies(check.cost).then(|| denial.decision_for(check.cost, now_ms));
        Found { denial: decision, ..nothing }
    }

    /// Stores a denial that was requested in `epoch`. Returns `false` if the shard has had an invalidation since.
    pub(super) fn insert(&self, key_hash: KeyHash, epoch: Epoch, denial: Denial, now_ms: u64) -> bool {
        let mut shard = self.shard(key_hash);
        if shard.epoch != epoch {
            return false;
        }
        *shard.slot_for_insert(key_hash, now_ms) = Some(Entry { key_hash, denial: Box::new(denial) });
        true
    }

    /// Drops the denial of a key if `reason` returns a reason for it.
    pub(super) fn drop_if(&self, key_hash: KeyHash, reason: impl FnOnce(&Denial) -> Option<DropReason>) {
        let mut shard = self.shard(key_hash);
        let Some(slot) = shard.slot_of(key_hash) else { return };
        if let Some(reason) = slot.as_ref().and_then(|entry| reason(&entry.denial)) {
            *slot = None;
            drop(shard);
            count_dropped(reason);
        }
    }

    /// Drops the denial of a key and prevents that a response which is in flight is stored.
    pub(super) fn invalidate(&self, key_hash: KeyHash, reason: DropReason) {
        let mut shard = self.shard(key_hash);
        shard.epoch.0 += 1;
        let dropped = shard.slot_of(key_hash).and_then(Option::take);
        drop(shard);
        if dropped.is_some() {
            count_dropped(reason);
        }
    }

    /// Drops the denials of a policy and prevents that responses which are in flight, of any policy, are stored.
    pub(super) fn invalidate_policy(&self, policy: &Policy) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.epoch.0 += 1;
            let has_policy =
                |slot: &Option<Entry>| slot.as_ref().is_some_and(|entry| entry.denial.belongs_to(policy));
            let mut dropped = 0;
            for slot in shard.slots.iter_mut().filter(|slot| has_policy(slot)) {
                *slot = None;
                dropped += 1;
            }
            drop(shard);
            (0..dropped).for_each(|_| count_dropped(DropReason::Forget));
        }
    }

    /// Returns the number of denials, including expired ones that have not been replaced.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).slots.iter().flatten().count()).sum()
    }

    pub(super) fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).slots.len()).sum()
    }

    fn shard(&self, key_hash: KeyHash) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(key_hash.0[0] % self.shards.len() as u64) as usize])
    }
}

/// Locks a shard. A poisoned lock is safe to use: no critical section leaves a shard half changed.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shard {
    epoch: Epoch,
    slots: Box<[Option<Entry>]>,
}

/// Occupied slot. The denial is boxed, so that an empty slot is small.
#[derive(Debug)]
struct Entry {
    key_hash: KeyHash,
    denial: Box<Denial>,
}

impl Shard {
    fn new(slots: usize) -> Self {
        Self { epoch: Epoch::default(), slots: (0..slots).map(|_| None).collect() }
    }

    /// Returns the indices of the slots in which the denial of a key may lie.
    fn probes(&self, key_hash: KeyHash) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots.len();
        let first = (key_hash.0[1] % slots as u64) as usize;
        (0..MAX_PROBES.min(slots)).map(move |step| (first + step) % slots)
    }

    /// Returns the slot that holds the denial of a key.
    fn slot_of(&mut self, key_hash: KeyHash) -> Option<&mut Option<Entry>> {
        let holds_key =
            |index: &usize| self.slots[*index].as_ref().is_some_and(|entry| entry.key_hash == key_hash);
        let index = self.probes(key_hash).find(holds_key)?;
        Some(&mut self.slots[index])
    }

    /// Returns the slot for a new denial of a key. In order of preference: the slot of the key's previous denial, an
    /// empty slot, an expired denial, the denial that expires first.
    fn slot_for_insert(&mut self, key_hash: KeyHash, now_ms: u64) -> &mut Option<Entry> {
        let preference = |index: &usize| match &self.slots[*index] {
            Some(entry) if entry.key_hash == key_hash => (0, 0),
            None => (1, 0),
            Some(entry) if !entry.denial.is_live(now_ms) => (2, 0),
            Some(entry) => (3, entry.denial.expires_at_ms()),
        };
        let index = self.probes(key_hash).min_by_key(preference).unwrap_or(0);
        &mut self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those in the documentation of `DeniedCacheBuilder::capacity`.
    #[test]
    fn denials_have_the_documented_size() {
        assert_eq!(size_of::<Option<Entry>>(), 24);
        assert!(size_of::<Denial>() <= 192, "{}", size_of::<Denial>());
    }
}
