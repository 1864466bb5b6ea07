//! Who asks most and who is denied most, in fixed memory however many keys there are.
//!
//! *Space-saving*: a fixed number of keys is counted. A key that is not among them takes the place of the one with the
//! least, and its count with it, which is then known to be too high by that much at the most. Whoever makes up more than
//! one part in [`PLACES`] of all that are looked at is among them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many keys are counted.
const PLACES: usize = 128;
/// What is told is of the last one to two of these.
const SPAN_MS: u64 = 60_000;
/// So many are looked at in one span. Of those beyond, every other one is and counts for two, and so on: however many ask,
/// what it takes to tell who does hardly grows.
const ALL_UP_TO: u64 = 20_000;
const MAX_STRIDE: u64 = 1024;
/// Denials are rarer and of more interest.
const MAX_STRIDE_OF_DENIALS: u64 = 64;
/// A key that is longer is cut where it is told.
const MAX_TOLD_BYTES: usize = 256;

/// A key that stands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct HeavyHitter {
    /// The policy's name; none if the quotas came with the requests.
    pub(crate) policy: Option<String>,
    /// The key, cut after 256 bytes.
    pub(crate) key: String,
    /// How often, at the most; about so often where only some of many were looked at.
    pub(crate) count: u64,
    /// By how much that may be too high.
    pub(crate) error: u64,
}

/// Counts who asks and who is denied.
#[derive(Debug)]
pub(crate) struct HeavyHitters {
    hasher: RandomState,
    stride: AtomicU64,
    /// When the span is over, as it is in the course.
    ends_ms: AtomicU64,
    course: Mutex<Course>,
}

#[derive(Debug, Default)]
struct Course {
    since_ms: u64,
    looked_at: u64,
    now: Span,
    before: Span,
}

/// What happened in one span.
#[derive(Debug, Default)]
struct Span {
    asked: Sketch,
    denied: Sketch,
}

/// Whom a decision was about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit<'a> {
    pub(crate) policy: Option<&'a str>,
    pub(crate) key: &'a [u8],
    pub(crate) is_denied: bool,
}

impl Default for HeavyHitters {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            stride: AtomicU64::new(1),
            ends_ms: AtomicU64::new(0),
            course: Mutex::default(),
        }
    }
}

impl HeavyHitters {
    /// Counts a decision. While somebody else does, it is left out: nobody waits for this.
    pub(crate) fn count(&self, hit: &Hit<'_>, now_ms: u64) {
        // Another span begins with all of them.
        let is_over = now_ms >= self.ends_ms.load(Ordering::Relaxed);
        let usual = if is_over { 1 } else { self.stride.load(Ordering::Relaxed) };
        let stride = if hit.is_denied { usual.min(MAX_STRIDE_OF_DENIALS) } else { usual };
        if stride > 1 && fastrand::u64(..stride) > 0 {
            return;
        }
        let mut course = match self.course.try_lock() {
            Ok(course) => course,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.turn(&mut course, now_ms);
        course.looked_at += 1;
        if course.looked_at.is_multiple_of(ALL_UP_TO) {
            self.stride.store((2 * usual).min(MAX_STRIDE), Ordering::Relaxed);
        }
        let hash = self.hasher.hash_one((hit.policy, hit.key));
        course.now.asked.add(hash, stride, hit);
        if hit.is_denied {
            course.now.denied.add(hash, stride, hit);
        }
    }

    /// Who asked most of late, most first.
    pub(crate) fn busiest(&self, most: usize, now_ms: u64) -> Vec<HeavyHitter> {
        let course = self.look(now_ms);
        merged([&course.now.asked, &course.before.asked], most)
    }

    /// Who was denied most of late, most first.
    pub(crate) fn most_denied(&self, most: usize, now_ms: u64) -> Vec<HeavyHitter> {
        let course = self.look(now_ms);
        merged([&course.now.denied, &course.before.denied], most)
    }

    fn look(&self, now_ms: u64) -> MutexGuard<'_, Course> {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn(&mut course, now_ms);
        course
    }

    /// Begins another span when this one is over. A clock that steps back is waited for.
    fn turn(&self, course: &mut Course, now_ms: u64) {
        let spans = now_ms.saturating_sub(course.since_ms) / SPAN_MS;
        if spans == 0 {
            return;
        }
        let over = std::mem::take(&mut course.now);
        course.before = if spans == 1 { over } else { Span::default() };
        (course.since_ms, course.looked_at) = (now_ms - now_ms % SPAN_MS, 0);
        self.stride.store(1, Ordering::Relaxed);
        self.ends_ms.store(course.since_ms + SPAN_MS, Ordering::Relaxed);
    }
}

/// The keys that are counted. What is compared each time stands by itself, close together.
#[derive(Debug, Default)]
struct Sketch {
    hashes: Vec<u64>,
    counts: Vec<u64>,
    names: Vec<Name>,
}

#[derive(Clone, Debug)]
struct Name {
    policy: Option<Box<str>>,
    key: Box<str>,
    error: u64,
}

impl Name {
    fn new(hit: &Hit<'_>, error: u64) -> Self {
        let told = &hit.key[..hit.key.len().min(MAX_TOLD_BYTES)];
        Self { policy: hit.policy.map(Box::from), key: String::from_utf8_lossy(told).into(), error }
    }
}

impl Sketch {
    fn add(&mut self, hash: u64, weight: u64, hit: &Hit<'_>) {
        if let Some(place) = self.hashes.iter().position(|known| *known == hash) {
            self.counts[place] += weight;
            self.names[place].error += weight - 1;
            return;
        }
        if self.hashes.len() < PLACES {
            self.hashes.push(hash);
            self.counts.push(weight);
            self.names.push(Name::new(hit, weight - 1));
            return;
        }
        let least = self.counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let Some((place, count)) = least.map(|(place, count)| (place, *count)) else { return };
        self.hashes[place] = hash;
        self.counts[place] = count + weight;
        self.names[place] = Name::new(hit, count + weight - 1);
    }

    /// What a key may have that is not among those counted.
    fn most_unseen(&self) -> u64 {
        if self.hashes.len() < PLACES { 0 } else { self.counts.iter().min().copied().unwrap_or(0) }
    }

    fn told(&self) -> impl Iterator<Item = (u64, u64, &Name)> {
        self.hashes
            .iter()
            .zip(&self.counts)
            .zip(&self.names)
            .map(|((hash, count), name)| (*hash, *count, name))
    }
}

fn merged(sketches: [&Sketch; 2], most: usize) -> Vec<HeavyHitter> {
    let mut all: Vec<(u64, HeavyHitter)> = Vec::with_capacity(2 * PLACES);
    for (sketch, other) in [(sketches[0], sketches[1]), (sketches[1], sketches[0])] {
        for (hash, count, name) in sketch.told() {
            if let Some((_, hitter)) = all.iter_mut().find(|(known, _)| *known == hash) {
                hitter.count += count;
                hitter.error += name.error;
                continue;
            }
            // In the other span it may have been among those that went.
            let unseen = if other.hashes.contains(&hash) { 0 } else { other.most_unseen() };
            let Name { policy, key, error } = name.clone();
            let (policy, key) = (policy.map(String::from), String::from(key));
            all.push((hash, HeavyHitter { policy, key, count: count + unseen, error: error + unseen }));
        }
    }
    let mut all: Vec<HeavyHitter> = all.into_iter().map(|(_, hitter)| hitter).collect();
    // Of equals, the one that is surer; then by name, so that a list that is looked at does not flicker.
    all.sort_by(|a, b| (b.count, a.error, &a.key).cmp(&(a.count, b.error, &b.key)));
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn hit(key: &str, is_denied: bool) -> Hit<'_> {
        Hit { policy: Some("api"), key: key.as_bytes(), is_denied }
    }

    #[test]
    fn whoever_makes_up_more_than_their_share_is_told_with_bounds_that_hold() {
        let hitters = HeavyHitters::default();
        let mut truth: HashMap<String, u64> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..ALL_UP_TO {
            // A tenth for each of five, the rest for ten thousand.
            let key = if random.bool() { random.u32(..5) } else { 5 + random.u32(..10_000) };
            let key = key.to_string();
            hitters.count(&hit(&key, false), SPAN_MS);
            *truth.entry(key).or_default() += 1;
        }
        let told = hitters.busiest(5, SPAN_MS);
        let mut keys: Vec<&str> = told.iter().map(|hitter| hitter.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["0", "1", "2", "3", "4"]);
        for hitter in hitters.busiest(PLACES, SPAN_MS) {
            let true_count = truth[&hitter.key];
            assert!((hitter.count - hitter.error..=hitter.count).contains(&true_count), "{hitter:?}");
        }
    }

    #[test]
    fn memory_is_fixed_and_keys_are_cut() {
        let hitters = HeavyHitters::default();
        for number in 0..10 * PLACES {
            hitters.count(&hit(&format!("{number}{}", "x".repeat(5000)), true), SPAN_MS);
        }
        let course = hitters.course.lock().unwrap();
        for sketch in [&course.now.asked, &course.now.denied] {
            assert_eq!(
                (sketch.hashes.len(), sketch.counts.len(), sketch.names.len()),
                (PLACES, PLACES, PLACES)
            );
            assert!(sketch.names.iter().all(|name| name.key.len() <= MAX_TOLD_BYTES));
        }
    }

    #[test]
    fn only_of_late_and_denied_apart() {
        let hitters = HeavyHitters::default();
        hitters.count(&hit("old", true), SPAN_MS);
        hitters.count(&hit("new", false), 2 * SPAN_MS);
        let keys = |told: Vec<HeavyHitter>| told.into_iter().map(|hitter| hitter.key).collect::<Vec<_>>();
        assert_eq!(keys(hitters.busiest(9, 2 * SPAN_MS)), ["new", "old"]);
        assert_eq!(keys(hitters.most_denied(9, 2 * SPAN_MS)), ["old"]);
        assert_eq!(keys(hitters.busiest(9, 3 * SPAN_MS)), ["new"]);
        assert_eq!(keys(hitters.busiest(9, 5 * SPAN_MS)), [""; 0]);
    }

    /// Whoever comes after many is not taken for one of them.
    #[test]
    fn another_span_begins_with_all() {
        let hitters = HeavyHitters::default();
        for _ in 0..ALL_UP_TO * 20 {
            hitters.count(&hit("many", false), SPAN_MS);
        }
        for _ in 0..3 {
            hitters.count(&hit("few", true), 2 * SPAN_MS);
        }
        assert_eq!(hitters.most_denied(1, 2 * SPAN_MS)[0].count, 3);
    }

    #[test]
    fn a_sample_counts_for_those_that_it_stands_for() {
        let hitters = HeavyHitters::default();
        let asked = ALL_UP_TO * 100;
        for number in 0..asked {
            hitters.count(&hit(if number % 4 == 0 { "a" } else { "b" }, false), SPAN_MS);
        }
        let looked_at = hitters.course.lock().unwrap().looked_at;
        assert!(looked_at < ALL_UP_TO * 8, "{looked_at} of {asked}");
        for (hitter, share) in hitters.busiest(2, SPAN_MS).iter().zip([asked * 3 / 4, asked / 4]) {
            // Far beyond what chance can do.
            assert!(hitter.count.abs_diff(share) < share / 10, "{hitter:?} of {share}");
        }
    }
}
