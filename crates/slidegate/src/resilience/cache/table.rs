//! Where denials are kept: so many places and no more, whoever asks.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slidegate_core::{Check, Decision, Policy};

use super::count::{self, Why};
use super::denial::Denial;

/// Each has a lock of its own, so that callers seldom meet.
const MAX_SHARDS: usize = 64;
/// In how many places next to each other a key's denial may be.
const NEIGHBOURS: usize = 8;

/// Who is denied: 128 bits of two hashes whose seeds are drawn when the table is made and never leave it, so that nobody
/// can choose keys that are taken for others, and a long key takes no more room than a short one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity([u64; 2]);

/// How often something was given back in a shard. What was asked before is not remembered after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u64);

/// What is known about a request, as of an epoch.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) denied: Option<Decision>,
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
        // Some have one place more than others, and all together exactly as many as they may.
        let shard = |number: usize| Mutex::new(Shard::new((capacity + number) / shards));
        Self { seeds: [RandomState::new(), RandomState::new()], shards: (0..shards).map(shard).collect() }
    }

    pub(super) fn identity(&self, check: &Check<'_>) -> Identity {
        Identity(self.seeds.each_ref().map(|seed| seed.hash_one((check.policy.digest(), check.key))))
    }

    /// What is known about a request at `now_ms`. What has ended, or was said of another limit, is dropped.
    pub(super) fn find(&self, identity: Identity, check: &Check<'_>, now_ms: u64) -> Found {
        let mut shard = self.shard(identity);
        let nothing = Found { denied: None, epoch: shard.epoch };
        let Some(place) = shard.place_of(identity) else { return nothing };
        let Some(Occupant { denial, .. }) = place else { return nothing };
        if !denial.is_live(now_ms) {
            *place = None;
            return nothing;
        }
        if !denial.is_under(check.policy) {
            *place = None;
            drop(shard);
            count::dropped(Why::Limits);
            return nothing;
        }
        let denied = denial.denies(check.cost).then(|| denial.tell(check.cost, now_ms));
        Found { denied, ..nothing }
    }

    /// Remembers a denial that was asked for in `epoch`, unless something has been given back since. `false` if not.
    pub(super) fn remember(&self, identity: Identity, epoch: Epoch, denial: Denial, now_ms: u64) -> bool {
        let mut shard = self.shard(identity);
        if shard.epoch != epoch {
            return false;
        }
        *shard.place_for(identity, now_ms) = Some(Occupant { identity, denial: Box::new(denial) });
        true
    }

    /// Drops what is known of a key if it is not true any more, and says why.
    pub(super) fn drop_for(&self, identity: Identity, why: impl FnOnce(&Denial) -> Option<Why>) {
        let mut shard = self.shard(identity);
        let Some(place) = shard.place_of(identity) else { return };
        if let Some(why) = place.as_ref().and_then(|occupant| why(&occupant.denial)) {
            *place = None;
            drop(shard);
            count::dropped(why);
        }
    }

    /// Drops what is known of a key, and sees to it that nothing which is on its way by now will be remembered.
    pub(super) fn forget(&self, identity: Identity, why: Why) {
        let mut shard = self.shard(identity);
        shard.epoch.0 += 1;
        let dropped = shard.place_of(identity).and_then(Option::take);
        drop(shard);
        if dropped.is_some() {
            count::dropped(why);
        }
    }

    /// The same for all keys of a policy. Answers on their way are not remembered, those of other policies neither.
    pub(super) fn forget_policy(&self, policy: &Policy) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.epoch.0 += 1;
            let is_of = |place: &Option<Occupant>| {
                place.as_ref().is_some_and(|occupant| occupant.denial.is_of(policy))
            };
            let mut dropped = 0;
            for place in shard.places.iter_mut().filter(|place| is_of(place)) {
                *place = None;
                dropped += 1;
            }
            drop(shard);
            (0..dropped).for_each(|_| count::dropped(Why::Forget));
        }
    }

    /// How many denials are kept, those included that have ended and have not been replaced yet.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).places.iter().flatten().count()).sum()
    }

    pub(super) fn capacity(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).places.len()).sum()
    }

    fn shard(&self, identity: Identity) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(identity.0[0] % self.shards.len() as u64) as usize])
    }
}

/// Nothing is left half done by a thread that panics, so the others may go on.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shard {
    epoch: Epoch,
    places: Box<[Option<Occupant>]>,
}

/// What is said lies elsewhere, so that a vacant place is small.
#[derive(Debug)]
struct Occupant {
    identity: Identity,
    denial: Box<Denial>,
}

impl Shard {
    fn new(places: usize) -> Self {
        Self { epoch: Epoch::default(), places: (0..places).map(|_| None).collect() }
    }

    /// Where a key's denial may be.
    fn neighbours(&self, identity: Identity) -> impl Iterator<Item = usize> + use<> {
        let places = self.places.len();
        let first = (identity.0[1] % places as u64) as usize;
        (0..NEIGHBOURS.min(places)).map(move |step| (first + step) % places)
    }

    /// Where a key's denial is, if there is one.
    fn place_of(&mut self, identity: Identity) -> Option<&mut Option<Occupant>> {
        let is_its = |index: &usize| {
            self.places[*index].as_ref().is_some_and(|occupant| occupant.identity == identity)
        };
        let index = self.neighbours(identity).find(is_its)?;
        Some(&mut self.places[index])
    }

    /// Where to put a key's denial: in the place of the one before, or a vacant one, or that of one that has ended, or
    /// else of the one that ends soonest.
    fn place_for(&mut self, identity: Identity, now_ms: u64) -> &mut Option<Occupant> {
        let first_to_go = |index: &usize| match &self.places[*index] {
            Some(occupant) if occupant.identity == identity => (0, 0),
            None => (1, 0),
            Some(occupant) if !occupant.denial.is_live(now_ms) => (2, 0),
            Some(occupant) => (3, occupant.denial.end_ms()),
        };
        let index = self.neighbours(identity).min_by_key(first_to_go).unwrap_or(0);
        &mut self.places[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the documentation of `capacity` says.
    #[test]
    fn denials_are_as_small_as_promised() {
        assert_eq!(size_of::<Option<Occupant>>(), 24);
        assert!(size_of::<Denial>() <= 192, "{}", size_of::<Denial>());
    }
}
