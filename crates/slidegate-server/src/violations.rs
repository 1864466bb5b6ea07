//! One line in the log for each denial, and never so many that an attack fills the disk.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use slidegate::{Check, Decision};
use slidegate_config::ViolationLog;
use tracing::info;

/// Logs denials.
#[derive(Debug)]
pub(crate) struct Violations {
    log: ViolationLog,
    /// Differs from process to process, so that nobody can try out who it was.
    secret: [u8; 32],
    hasher: RandomState,
    course: Mutex<Course>,
}

/// What has been logged lately.
#[derive(Debug, Default)]
struct Course {
    second: u64,
    logged: u32,
    /// How many of these were about one key, by its hash.
    by_key: HashMap<u64, u32>,
    left_out: u64,
}

impl Course {
    /// How many were left out before this one; `None` if it is left out itself. One key has no more than half of a second's
    /// lines, so that the loudest does not hide all others.
    fn admit(&mut self, now_ms: u64, per_second: u32, key: u64) -> Option<u64> {
        let second = now_ms / 1000;
        if second != self.second {
            (self.second, self.logged) = (second, 0);
            self.by_key.clear();
        }
        let of_key = self.by_key.get(&key).copied().unwrap_or(0);
        if self.logged >= per_second || of_key >= per_second.div_ceil(2) {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        self.by_key.insert(key, of_key + 1);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Violations {
    pub(crate) fn new(log: ViolationLog) -> Self {
        let random = RandomState::new();
        let mut secret = [0; 32];
        for (place, word) in secret.chunks_mut(8).enumerate() {
            word.copy_from_slice(&random.hash_one(place).to_le_bytes());
        }
        Self { log, secret, hasher: random, course: Mutex::default() }
    }

    /// Logs a denial of `check`, which was made at `now_ms`, unless there were too many.
    pub(crate) fn tell(&self, check: &Check<'_>, decision: &Decision, path: Option<&str>, now_ms: u64) {
        if decision.is_allowed() || self.log.per_second == 0 {
            return;
        }
        let admitted = {
            let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
            course.admit(now_ms, self.log.per_second, self.hasher.hash_one(check.key))
        };
        let Some(left_out) = admitted else { return };
        let (policy, place) = (check.policy, decision.violated().next());
        let report = place.map_or_else(|| decision.tightest(), |place| decision.quotas()[place]);
        info!(
            target: "slidegate::violation",
            policy = if policy.is_anonymous() { "(in request)" } else { policy.name() },
            key = self.name(check.key),
            quota = place.map(|place| policy.quota_name(place)),
            used = report.used,
            limit = report.limit,
            cost = check.cost,
            path,
            retry_after_ms = decision.retry_after_ms(),
            source = decision.source().name(),
            left_out,
            "denied"
        );
    }

    /// A key as it may be written into a log.
    pub(crate) fn name(&self, key: &[u8]) -> String {
        if self.log.plain_keys {
            return String::from_utf8_lossy(key).into_owned();
        }
        blake3::keyed_hash(&self.secret, key).to_hex()[..16].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_so_many_in_a_second_and_none_is_forgotten() {
        let mut course = Course::default();
        // Each time another key.
        let mut key = 0;
        let mut admit = |now_ms| {
            key += 1;
            course.admit(now_ms, 2, key)
        };
        assert_eq!([admit(1000), admit(1500), admit(1700), admit(1999)], [Some(0), Some(0), None, None]);
        assert_eq!([admit(2000), admit(2001), admit(2002)], [Some(2), Some(0), None]);
        // A clock that steps back gives nobody more than a second's worth.
        assert_eq!([admit(1000), admit(1000), admit(1000)], [Some(1), Some(0), None]);
    }

    #[test]
    fn one_key_does_not_hide_the_others() {
        let mut course = Course::default();
        let mut admit = |key| course.admit(1000, 4, key).is_some();
        assert_eq!([admit(1), admit(1), admit(1), admit(1)], [true, true, false, false]);
        assert_eq!([admit(2), admit(3), admit(4)], [true, true, false]);
    }

    #[test]
    fn a_hash_is_the_same_for_the_same_key_in_one_process_only() {
        let [one, other] = [(); 2].map(|()| Violations::new(ViolationLog::default()));
        assert_eq!(one.name(b"user:1"), one.name(b"user:1"));
        assert_ne!(one.name(b"user:1"), one.name(b"user:2"));
        assert_ne!(one.name(b"user:1"), other.name(b"user:1"));
        let plain = Violations::new(ViolationLog { plain_keys: true, ..ViolationLog::default() });
        assert_eq!(plain.name(b"user:1"), "user:1");
    }
}
