//! Detection of changed files by polling.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use slidegate::{Clock, SystemClock};
use tokio::sync::Notify;
use tracing::{error, warn};

/// Poll interval. A poll costs a few microseconds, and detects changes that file system notifications miss: on network file
/// systems, and where a link is switched to another folder, as Kubernetes does.
const POLL_INTERVAL_MS: u64 = 400;
/// Delay of a reload while the file changes at every poll, from the poll that first sees a change. With that poll it is 1.6 s,
/// so that the reload begins within the promised two seconds even if each poll is late.
const MAX_SETTLE_MS: u64 = 3 * POLL_INTERVAL_MS;
/// Number of consecutive polls without the file that count as a change. An editor may remove the file briefly when it
/// replaces it.
const DELETED_AFTER_POLLS: u32 = 4;

/// Metadata that change when a file changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileFingerprint {
    modified: Option<SystemTime>,
    bytes: u64,
    inode_and_ctime: [i64; 3],
}

impl FileFingerprint {
    /// Returns the fingerprint, or `None` if the file does not exist.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let (modified, bytes) = (metadata.modified().ok(), metadata.len());
        Some(Self { modified, bytes, inode_and_ctime: inode_and_ctime(&metadata) })
    }
}

/// Returns the inode and the change time. The inode detects a replacement with the same length and time, the change time
/// detects new permissions.
#[cfg(unix)]
fn inode_and_ctime(metadata: &fs::Metadata) -> [i64; 3] {
    use std::os::unix::fs::MetadataExt;
    [metadata.ino().cast_signed(), metadata.ctime(), metadata.ctime_nsec()]
}

#[cfg(not(unix))]
fn inode_and_ctime(_: &fs::Metadata) -> [i64; 3] {
    [0; 3]
}

/// Reason of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadReason {
    /// The file has changed, or a signal requests the reload.
    Changed,
    /// The file has changed at every poll for [`MAX_SETTLE_MS`].
    Unsettled,
    /// The last reload failed.
    Retry,
}

/// Polls the fingerprint of files for changes.
pub(crate) struct Watcher<F, C = SystemClock> {
    /// Name of the files for the log.
    name: &'static str,
    clock: C,
    /// Fingerprint at the last reload.
    loaded: F,
    /// Fingerprint at the last poll.
    last: F,
    /// First poll whose fingerprint differed from `loaded`.
    differs_since_ms: Option<u64>,
    /// Number of consecutive polls in which the files were incomplete.
    missing_polls: u32,
}

impl<F: Clone + PartialEq + Send + 'static, C: Clock> Watcher<F, C> {
    /// Starts with a fingerprint that was taken before the files were read.
    pub(crate) fn new(name: &'static str, clock: C, fingerprint: F) -> Self {
        Self {
            name,
            clock,
            loaded: fingerprint.clone(),
            last: fingerprint,
            differs_since_ms: None,
            missing_polls: 0,
        }
    }

    /// Waits until the files must be reloaded: immediately on `trigger`, otherwise when the fingerprint has changed and two
    /// polls agree, or after [`MAX_SETTLE_MS`] of changes. Incomplete files count as changed only after
    /// [`DELETED_AFTER_POLLS`]. With `retries`, each poll with an unchanged fingerprint is a reason too.
    pub(crate) async fn changed(
        &mut self,
        trigger: &Notify,
        fingerprint: impl Fn() -> F + Clone + Send + 'static,
        is_complete: impl Fn(&F) -> bool,
        retries: bool,
    ) -> ReloadReason {
        let mut is_triggered = false;
        loop {
            tokio::select! {
                () = trigger.notified() => is_triggered = true,
                () = self.clock.sleep(POLL_INTERVAL_MS) => {}
            }
            // A file system that hangs must block no thread of the runtime.
            let Some(current) = run_blocking(fingerprint.clone()).await else { continue };
            let is_complete = is_complete(&current);
            let reason = self.evaluate(current, is_complete, is_triggered, retries);
            if reason == Some(ReloadReason::Unsettled) {
                warn!("reloading {} although it keeps changing", self.name);
            }
            if let Some(reason) = reason {
                return reason;
            }
        }
    }

    /// Returns the reason to reload at this poll, if there is one.
    fn evaluate(
        &mut self,
        current: F,
        is_complete: bool,
        is_triggered: bool,
        retries: bool,
    ) -> Option<ReloadReason> {
        let now_ms = self.clock.now_ms();
        // Unchanged between two polls, so the file is written completely.
        let is_settled = current == self.last;
        self.last.clone_from(&current);
        self.missing_polls = if is_complete { 0 } else { self.missing_polls.saturating_add(1) };
        let differs = current != self.loaded;
        let since_ms = if differs { *self.differs_since_ms.get_or_insert(now_ms) } else { now_ms };
        let is_overdue = now_ms.saturating_sub(since_ms) >= MAX_SETTLE_MS;
        let is_missing_briefly = (1..DELETED_AFTER_POLLS).contains(&self.missing_polls);
        let is_due = differs && !is_missing_briefly && (is_settled || is_overdue);
        if is_due || is_triggered {
            (self.loaded, self.differs_since_ms) = (current, None);
            return Some(if is_settled || is_triggered {
                ReloadReason::Changed
            } else {
                ReloadReason::Unsettled
            });
        }
        if !differs {
            self.differs_since_ms = None;
        }
        (retries && is_settled).then_some(ReloadReason::Retry)
    }
}

/// Runs `work` on a thread for blocking operations. Logs an error and returns `None` if it panics.
pub(crate) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(output) => Some(output),
        Err(error) => {
            error!(%error, "cannot read the configuration");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use slidegate::ManualClock;

    use super::*;

    /// Returns the reasons for a sequence of fingerprints, one for each poll; 0 is a missing file.
    fn evaluate(fingerprints: &[u64]) -> Vec<Option<ReloadReason>> {
        let clock = ManualClock::at(0);
        let mut watcher = Watcher::new("it", clock.clone(), 1);
        let evaluate = |fingerprint: &u64| {
            clock.advance(POLL_INTERVAL_MS);
            watcher.evaluate(*fingerprint, *fingerprint != 0, false, false)
        };
        fingerprints.iter().map(evaluate).collect()
    }

    /// The first change comes right after a poll, and each poll is late.
    #[test]
    fn a_file_that_keeps_changing_is_read_within_two_seconds_of_the_first_change() {
        const PROMISED_MS: u64 = 2000;
        for late_ms in [0, 1, 10, 100] {
            let clock = ManualClock::at(0);
            let mut watcher = Watcher::new("it", clock.clone(), 1);
            let mut poll = |fingerprint| {
                clock.advance(POLL_INTERVAL_MS + late_ms);
                watcher.evaluate(fingerprint, true, false, false)
            };
            let reason = (2..).find_map(&mut poll);
            assert_eq!(reason, Some(ReloadReason::Unsettled));
            assert!(clock.now_ms() <= PROMISED_MS, "{late_ms} ms late: {} ms", clock.now_ms());
        }
    }

    #[test]
    fn a_change_is_read_when_it_has_settled_or_after_two_seconds() {
        const CHANGED: Option<ReloadReason> = Some(ReloadReason::Changed);
        const UNSETTLED: Option<ReloadReason> = Some(ReloadReason::Unsettled);
        for (fingerprints, expected) in [
            (&[1, 1, 1][..], &[None, None, None][..]),
            (&[2, 2, 2], &[None, CHANGED, None]),
            (&[2, 3, 3, 3], &[None, None, CHANGED, None]),
            (&[2, 1, 1], &[None, None, None]),
            // An editor that replaces the file may remove it first.
            (&[0, 2, 2], &[None, None, CHANGED]),
            (&[0, 0, 0, 0, 0], &[None, None, None, CHANGED, None]),
            // The fourth poll is less than two seconds after the change.
            (&[2, 3, 4, 5, 6, 7], &[None, None, None, UNSETTLED, None, None]),
            (&[2, 3, 4, 5, 6, 6], &[None, None, None, UNSETTLED, None, CHANGED]),
            (&[2, 0, 3, 0, 4, 5], &[None, None, None, None, UNSETTLED, None]),
            (&[2, 0, 3, 0, 0, 5], &[None, None, None, None, None, UNSETTLED]),
            // After a reload the delay starts again.
            (
                &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
                &[None, None, None, UNSETTLED, None, None, None, UNSETTLED, None, None],
            ),
            (&[2, 3, 4, 1, 5, 6, 7, 8, 9], &[None, None, None, None, None, None, None, UNSETTLED, None]),
        ] {
            assert_eq!(evaluate(fingerprints), expected, "{fingerprints:?}");
        }
    }

    #[tokio::test]
    async fn a_trigger_reloads_immediately() {
        let clock = ManualClock::at(0);
        let (trigger, count) = (Notify::new(), Arc::new(AtomicU64::new(0)));
        // Changes at every poll.
        let fingerprint = move || count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut watcher = Watcher::new("it", clock.clone(), 0);
        for _ in 0..3 {
            trigger.notify_one();
            let reason = watcher.changed(&trigger, fingerprint.clone(), |_| true, false).await;
            assert_eq!((reason, clock.now_ms()), (ReloadReason::Changed, 0));
        }
    }
}
