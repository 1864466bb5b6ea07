//! Log of denials, with a limited rate, so that an attack does not fill the disk.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use slidegate::{Check, Decision};
use slidegate_config::ViolationLog;
use tracing::info;

/// Logs denials.
#[derive(Debug)]
pub struct Violations {
    settings: ViolationLog,
    /// Key of the hash, random for each process: without it, the hashes of guessed keys cannot be compared with the log.
    hash_key: [u8; 32],
    hasher: RandomState,
    limiter: Mutex<LineLimiter>,
}

/// Limits the number of lines per second.
#[derive(Debug, Default)]
struct LineLimiter {
    second: u64,
    /// Number of lines in this second.
    logged: u32,
    /// Number of lines in this second by hash of the key.
    by_key: HashMap<u64, u32>,
    /// Number of denials without a line since the last line.
    omitted: u64,
}

impl LineLimiter {
    /// Admits a line and returns the number of denials omitted before it. Returns `None` if the line itself is omitted. One
    /// key gets at most half of the lines of a second, so that it does not hide other keys.
    fn admit(&mut self, now_ms: u64, per_second: u32, key: u64) -> Option<u64> {
        let second = now_ms / 1000;
        if second != self.second {
            (self.second, self.logged) = (second, 0);
            self.by_key.clear();
        }
        let key_lines = self.by_key.get(&key).copied().unwrap_or(0);
        if self.logged >= per_second || key_lines >= per_second.div_ceil(2) {
            self.omitted += 1;
            return None;
        }
        self.logged += 1;
        self.by_key.insert(key, key_lines + 1);
        Some(std::mem::take(&mut self.omitted))
    }
}

impl Violations {
    pub fn new(settings: ViolationLog) -> Self {
        let random = RandomState::new();
        let mut hash_key = [0; 32];
        for (index, word) in hash_key.chunks_mut(8).enumerate() {
            word.copy_from_slice(&random.hash_one(index).to_le_bytes());
        }
        Self { settings, hash_key, hasher: random, limiter: Mutex::default() }
    }

    /// Logs the decision on `check` at `now_ms` if it is a denial, within the maximum rate.
    pub fn log(&self, check: &Check<'_>, decision: &Decision, path: Option<&str>, now_ms: u64) {
        if decision.is_allowed() || self.settings.per_second == 0 {
            return;
        }
        let admitted = {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter.admit(now_ms, self.settings.per_second, self.hasher.hash_one(check.key))
        };
        let Some(omitted) = admitted else { return };
        let (policy, violated) = (check.policy, decision.violated().next());
        let report = violated.map_or_else(|| decision.tightest(), |index| decision.quotas()[index]);
        info!(
            target: "slidegate::violation",
            policy = if policy.is_anonymous() { "(in request)" } else { policy.name() },
            key = self.key_for_log(check.key),
            quota = violated.map(|index| policy.quota_name(index)),
            used = report.used,
            limit = report.limit,
            cost = check.cost,
            path,
            retry_after_ms = decision.retry_after_ms(),
            source = decision.source().name(),
            left_out = omitted,
            "denied"
        );
    }

    /// Returns a key for the log: its hash, or the key itself if the settings allow it.
    pub fn key_for_log(&self, key: &[u8]) -> String {
        if self.settings.plain_keys {
            return String::from_utf8_lossy(key).into_owned();
        }
        blake3::keyed_hash(&self.hash_key, key).to_hex()[..16].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_second_are_limited_and_omitted_denials_are_counted() {
        let mut limiter = LineLimiter::default();
        // A different key each time.
        let mut key = 0;
        let mut admit = |now_ms| {
            key += 1;
            limiter.admit(now_ms, 2, key)
        };
        assert_eq!([admit(1000), admit(1500), admit(1700), admit(1999)], [Some(0), Some(0), None, None]);
        assert_eq!([admit(2000), admit(2001), admit(2002)], [Some(2), Some(0), None]);
        // A clock that steps back starts a new second, with the same maximum.
        assert_eq!([admit(1000), admit(1000), admit(1000)], [Some(1), Some(0), None]);
    }

    #[test]
    fn a_key_does_not_hide_other_keys() {
        let mut limiter = LineLimiter::default();
        let mut admit = |key| limiter.admit(1000, 4, key).is_some();
        assert_eq!([admit(1), admit(1), admit(1), admit(1)], [true, true, false, false]);
        assert_eq!([admit(2), admit(3), admit(4)], [true, true, false]);
    }

    #[test]
    fn the_hash_of_a_key_is_stable_within_a_process_only() {
        let [one, other] = [(); 2].map(|()| Violations::new(ViolationLog::default()));
        assert_eq!(one.key_for_log(b"user:1"), one.key_for_log(b"user:1"));
        assert_ne!(one.key_for_log(b"user:1"), one.key_for_log(b"user:2"));
        assert_ne!(one.key_for_log(b"user:1"), other.key_for_log(b"user:1"));
        let plain = Violations::new(ViolationLog { plain_keys: true, ..ViolationLog::default() });
        assert_eq!(plain.key_for_log(b"user:1"), "user:1");
    }
}
