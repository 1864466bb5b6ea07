//! Heavy hitters: the keys with the most requests and the most denials, in fixed memory.
//!
//! The *space-saving* algorithm counts a fixed number of keys. A new key replaces the key with the lowest count and inherits
//! that count, which is then the maximum error of the new count. A sketch contains every key with more than one in
//! [`SKETCH_CAPACITY`] of the counted decisions.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Number of keys in a sketch.
const SKETCH_CAPACITY: usize = 128;
/// Length of an interval. Reports cover the current and the previous interval.
const INTERVAL_MS: u64 = 60_000;
/// Number of samples after which the stride doubles. The first decisions of an interval are all counted, then one in two
/// with a weight of 2, and so on. The work thus grows only with the logarithm of the number of decisions.
const SAMPLES_PER_STRIDE: u64 = 20_000;
const MAX_STRIDE: u64 = 1024;
/// Maximum stride of denials, which are rarer and more interesting.
const MAX_DENIAL_STRIDE: u64 = 64;
/// Maximum length of a reported key. Longer keys are truncated.
const MAX_REPORTED_KEY_BYTES: usize = 256;

/// A key with many requests or denials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeavyHitter {
    /// Name of the policy; null if the quotas came with the requests.
    pub policy: Option<String>,
    /// Key, truncated to 256 bytes.
    pub key: String,
    /// Upper bound of the number of decisions; an estimate if only a sample of them was counted.
    pub count: u64,
    /// Maximum excess of the count over the true number.
    pub error: u64,
}

/// Counts requests and denials by key.
#[derive(Debug)]
pub struct HeavyHitters {
    hasher: RandomState,
    /// One in this many decisions is counted.
    stride: AtomicU64,
    /// End of the current interval, readable without the lock.
    interval_end_ms: AtomicU64,
    intervals: Mutex<Intervals>,
}

#[derive(Debug, Default)]
struct Intervals {
    /// Start of the current interval.
    start_ms: u64,
    /// Number of decisions counted in the current interval.
    samples: u64,
    current: Interval,
    previous: Interval,
}

/// Counts of one interval.
#[derive(Debug, Default)]
struct Interval {
    requests: Sketch,
    denials: Sketch,
}

/// A decision to count.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    pub policy: Option<&'a str>,
    pub key: &'a [u8],
    pub is_denied: bool,
}

impl Default for HeavyHitters {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            stride: AtomicU64::new(1),
            interval_end_ms: AtomicU64::new(0),
            intervals: Mutex::default(),
        }
    }
}

impl HeavyHitters {
    /// Counts a decision, or skips it while another thread holds the lock.
    pub fn count(&self, hit: &Hit<'_>, now_ms: u64) {
        // A new interval starts without sampling.
        let is_over = now_ms >= self.interval_end_ms.load(Ordering::Relaxed);
        let base_stride = if is_over { 1 } else { self.stride.load(Ordering::Relaxed) };
        let stride = if hit.is_denied { base_stride.min(MAX_DENIAL_STRIDE) } else { base_stride };
        if stride > 1 && fastrand::u64(..stride) > 0 {
            return;
        }
        let mut intervals = match self.intervals.try_lock() {
            Ok(intervals) => intervals,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.rotate(&mut intervals, now_ms);
        intervals.samples += 1;
        if intervals.samples.is_multiple_of(SAMPLES_PER_STRIDE) {
            self.stride.store((2 * base_stride).min(MAX_STRIDE), Ordering::Relaxed);
        }
        let hash = self.hasher.hash_one((hit.policy, hit.key));
        intervals.current.requests.add(hash, stride, hit);
        if hit.is_denied {
            intervals.current.denials.add(hash, stride, hit);
        }
    }

    /// Returns up to `max` keys with the most requests, highest count first.
    pub fn busiest(&self, max: usize, now_ms: u64) -> Vec<HeavyHitter> {
        let intervals = self.lock(now_ms);
        merged([&intervals.current.requests, &intervals.previous.requests], max)
    }

    /// Returns up to `max` keys with the most denials, highest count first.
    pub fn most_denied(&self, max: usize, now_ms: u64) -> Vec<HeavyHitter> {
        let intervals = self.lock(now_ms);
        merged([&intervals.current.denials, &intervals.previous.denials], max)
    }

    /// Locks the intervals and drops expired ones.
    fn lock(&self, now_ms: u64) -> MutexGuard<'_, Intervals> {
        let mut intervals = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        self.rotate(&mut intervals, now_ms);
        intervals
    }

    /// Starts a new interval if the current one is over. After a clock steps back, the current interval continues.
    fn rotate(&self, intervals: &mut Intervals, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(intervals.start_ms) / INTERVAL_MS;
        if elapsed == 0 {
            return;
        }
        let ended = std::mem::take(&mut intervals.current);
        intervals.previous = if elapsed == 1 { ended } else { Interval::default() };
        (intervals.start_ms, intervals.samples) = (now_ms - now_ms % INTERVAL_MS, 0);
        self.stride.store(1, Ordering::Relaxed);
        self.interval_end_ms.store(intervals.start_ms + INTERVAL_MS, Ordering::Relaxed);
    }
}

/// Counts of a fixed number of keys. The hashes are stored apart from the names, so that a search reads little memory.
#[derive(Debug, Default)]
struct Sketch {
    hashes: Vec<u64>,
    counts: Vec<u64>,
    keys: Vec<SketchKey>,
}

#[derive(Clone, Debug)]
struct SketchKey {
    policy: Option<Box<str>>,
    key: Box<str>,
    error: u64,
}

impl SketchKey {
    fn new(hit: &Hit<'_>, error: u64) -> Self {
        let truncated = &hit.key[..hit.key.len().min(MAX_REPORTED_KEY_BYTES)];
        Self { policy: hit.policy.map(Box::from), key: String::from_utf8_lossy(truncated).into(), error }
    }
}

impl Sketch {
    fn add(&mut self, hash: u64, weight: u64, hit: &Hit<'_>) {
        if let Some(index) = self.hashes.iter().position(|known| *known == hash) {
            self.counts[index] += weight;
            self.keys[index].error += weight - 1;
            return;
        }
        if self.hashes.len() < SKETCH_CAPACITY {
            self.hashes.push(hash);
            self.counts.push(weight);
            self.keys.push(SketchKey::new(hit, weight - 1));
            return;
        }
        let lowest = self.counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let Some((index, count)) = lowest.map(|(index, count)| (index, *count)) else { return };
        self.hashes[index] = hash;
        self.counts[index] = count + weight;
        self.keys[index] = SketchKey::new(hit, count + weight - 1);
    }

    /// Returns the maximum count of a key that is not in the sketch.
    fn max_absent_count(&self) -> u64 {
        let is_full = self.hashes.len() == SKETCH_CAPACITY;
        if is_full { self.counts.iter().min().copied().unwrap_or(0) } else { 0 }
    }

    /// Returns the hash, the count and the key of each entry.
    fn entries(&self) -> impl Iterator<Item = (u64, u64, &SketchKey)> {
        self.hashes.iter().zip(&self.counts).zip(&self.keys).map(|((hash, count), key)| (*hash, *count, key))
    }
}

/// Adds up two sketches and returns the `max` keys with the highest counts.
fn merged(sketches: [&Sketch; 2], max: usize) -> Vec<HeavyHitter> {
    let mut all: Vec<(u64, HeavyHitter)> = Vec::with_capacity(2 * SKETCH_CAPACITY);
    for (sketch, other) in [(sketches[0], sketches[1]), (sketches[1], sketches[0])] {
        for (hash, count, key) in sketch.entries() {
            if let Some((_, hitter)) = all.iter_mut().find(|(known, _)| *known == hash) {
                hitter.count += count;
                hitter.error += key.error;
                continue;
            }
            // The other sketch may have replaced the key.
            let absent = if other.hashes.contains(&hash) { 0 } else { other.max_absent_count() };
            let SketchKey { policy, key, error } = key.clone();
            let (policy, key) = (policy.map(String::from), String::from(key));
            all.push((hash, HeavyHitter { policy, key, count: count + absent, error: error + absent }));
        }
    }
    let mut all: Vec<HeavyHitter> = all.into_iter().map(|(_, hitter)| hitter).collect();
    // Of equal counts, the one with the smaller error is first. The order by key keeps repeated reports stable.
    all.sort_by(|a, b| (b.count, a.error, &a.key).cmp(&(a.count, b.error, &b.key)));
    all.truncate(max);
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
    fn the_busiest_keys_are_reported_with_valid_error_bounds() {
        let hitters = HeavyHitters::default();
        let mut true_counts: HashMap<String, u64> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..SAMPLES_PER_STRIDE {
            // A tenth for each of five keys, the rest for ten thousand keys.
            let key = if random.bool() { random.u32(..5) } else { 5 + random.u32(..10_000) };
            let key = key.to_string();
            hitters.count(&hit(&key, false), INTERVAL_MS);
            *true_counts.entry(key).or_default() += 1;
        }
        let busiest = hitters.busiest(5, INTERVAL_MS);
        let mut keys: Vec<&str> = busiest.iter().map(|hitter| hitter.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["0", "1", "2", "3", "4"]);
        for hitter in hitters.busiest(SKETCH_CAPACITY, INTERVAL_MS) {
            let true_count = true_counts[&hitter.key];
            assert!((hitter.count - hitter.error..=hitter.count).contains(&true_count), "{hitter:?}");
        }
    }

    #[test]
    fn memory_is_fixed_and_keys_are_truncated() {
        let hitters = HeavyHitters::default();
        for number in 0..10 * SKETCH_CAPACITY {
            hitters.count(&hit(&format!("{number}{}", "x".repeat(5000)), true), INTERVAL_MS);
        }
        let intervals = hitters.intervals.lock().unwrap();
        for sketch in [&intervals.current.requests, &intervals.current.denials] {
            assert_eq!(
                (sketch.hashes.len(), sketch.counts.len(), sketch.keys.len()),
                (SKETCH_CAPACITY, SKETCH_CAPACITY, SKETCH_CAPACITY)
            );
            assert!(sketch.keys.iter().all(|entry| entry.key.len() <= MAX_REPORTED_KEY_BYTES));
        }
    }

    #[test]
    fn reports_cover_two_intervals_and_separate_denials() {
        let hitters = HeavyHitters::default();
        hitters.count(&hit("old", true), INTERVAL_MS);
        hitters.count(&hit("new", false), 2 * INTERVAL_MS);
        let keys = |report: Vec<HeavyHitter>| report.into_iter().map(|hitter| hitter.key).collect::<Vec<_>>();
        assert_eq!(keys(hitters.busiest(9, 2 * INTERVAL_MS)), ["new", "old"]);
        assert_eq!(keys(hitters.most_denied(9, 2 * INTERVAL_MS)), ["old"]);
        assert_eq!(keys(hitters.busiest(9, 3 * INTERVAL_MS)), ["new"]);
        assert_eq!(keys(hitters.busiest(9, 5 * INTERVAL_MS)), [""; 0]);
    }

    #[test]
    fn a_new_interval_starts_without_sampling() {
        let hitters = HeavyHitters::default();
        for _ in 0..SAMPLES_PER_STRIDE * 20 {
            hitters.count(&hit("many", false), INTERVAL_MS);
        }
        for _ in 0..3 {
            hitters.count(&hit("few", true), 2 * INTERVAL_MS);
        }
        assert_eq!(hitters.most_denied(1, 2 * INTERVAL_MS)[0].count, 3);
    }

    #[test]
    fn a_sample_is_weighted_by_the_stride() {
        let hitters = HeavyHitters::default();
        let requests = SAMPLES_PER_STRIDE * 100;
        for number in 0..requests {
            hitters.count(&hit(if number % 4 == 0 { "a" } else { "b" }, false), INTERVAL_MS);
        }
        let samples = hitters.intervals.lock().unwrap().samples;
        assert!(samples < SAMPLES_PER_STRIDE * 8, "{samples} of {requests}");
        for (hitter, expected) in hitters.busiest(2, INTERVAL_MS).iter().zip([requests * 3 / 4, requests / 4])
        {
            // The tolerance is far above the standard deviation.
            assert!(hitter.count.abs_diff(expected) < expected / 10, "{hitter:?}, expected {expected}");
        }
    }
}
