//! Reload of the configuration file at runtime.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use metrics::{counter, gauge};
use slidegate::{Clock, SystemClock};
use slidegate_config::{Config, Problem, Problems, TlsFiles};
use slidegate_engine::Authenticator;
use slidegate_engine::changes::{Base, ChangeController};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::net::tls::Tls;

/// Poll interval. A poll costs a few microseconds, and detects changes that file system notifications miss: on network file
/// systems, and where a link is switched to another folder, as Kubernetes does.
const POLL_INTERVAL_MS: u64 = 400;
/// Delay of a reload while the file changes at every poll, from the poll that first sees a change. With that poll it is 1.6 s,
/// so that the reload begins within the promised two seconds even if each poll is late.
const MAX_SETTLE_MS: u64 = 3 * POLL_INTERVAL_MS;
/// Number of consecutive polls without the file that count as a change. An editor may remove the file briefly when it
/// replaces it.
const DELETED_AFTER_POLLS: u32 = 4;

/// Reloads the file, its certificates and its tokens when one of them changes or on a signal. A reload replaces policies,
/// switches and tokens. An invalid file has no effect.
pub(crate) struct Reload {
    pub(crate) path: PathBuf,
    pub(crate) controller: Arc<ChangeController>,
    /// Tokens of clients.
    pub(crate) clients: Arc<Authenticator>,
    /// Authenticator of the admin API. That of the other listeners belongs to the app.
    pub(crate) admins: Arc<Authenticator>,
    /// Configuration at startup, which is compared with the fields that a reload cannot change.
    pub(crate) initial: Config,
    /// Certificates, which are reloaded too.
    pub(crate) tls: Option<Tls>,
    /// Fingerprints of the file and of the files that it names, taken before the first read.
    pub(crate) fingerprints: Vec<Option<FileFingerprint>>,
    /// Notified by a signal to reload.
    pub(crate) trigger: Arc<Notify>,
}

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

impl Reload {
    /// Watches and reloads the files until it is dropped.
    pub(crate) async fn run(self) {
        gauge!("slidegate_config_is_current").set(1.0);
        let clock = SystemClock::default();
        let mut watcher = Watcher::new("the configuration", clock, self.fingerprints.clone());
        let mut paths = self.paths(&self.initial);
        // The file and the certificates must exist. Token files may disappear when a token is revoked.
        let required = paths.len() - self.initial.token_files.len();
        loop {
            let watched = paths.clone();
            let fingerprint =
                move || watched.iter().map(|path| FileFingerprint::of(path)).collect::<Vec<_>>();
            let is_complete =
                |files: &Vec<Option<FileFingerprint>>| files[..required].iter().all(Option::is_some);
            // A failed reload may succeed without a change of the watched files, for example when a token file appears.
            let retries = self.controller.readiness().config_error().is_some();
            let reason = watcher.changed(&self.trigger, fingerprint, is_complete, retries).await;
            // If the file names other token files, the fingerprint differs and the next poll reloads once more.
            paths = self.reload(reason).await.unwrap_or(paths);
        }
    }

    /// Returns the paths of the file, of the certificates, which cannot change, and of the token files.
    fn paths(&self, config: &Config) -> Vec<PathBuf> {
        let certificates = self.initial.tls.iter().flat_map(TlsFiles::paths);
        iter::once(&self.path).chain(certificates).chain(&config.token_files).cloned().collect()
    }

    /// Reloads the files. Returns the paths to watch, or `None` if the reload failed.
    async fn reload(&self, reason: ReloadReason) -> Option<Vec<PathBuf>> {
        let (path, tls) = (self.path.clone(), self.tls.clone());
        let loaded = run_blocking(move || load(&path, tls.as_ref())).await?;
        match loaded.and_then(|config| self.accept(config)) {
            Ok(config) => {
                let paths = self.paths(&config);
                self.apply(config);
                self.controller.readiness().set_config_error(None);
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_config_is_current").set(1.0);
                Some(paths)
            }
            // Logs the same error only once.
            Err(problems)
                if reason == ReloadReason::Retry
                    && self.controller.readiness().config_error() == Some(problems.to_string()) =>
            {
                None
            }
            Err(problems) => {
                self.controller.readiness().set_config_error(Some(problems.to_string()));
                counter!("slidegate_reloads_total", "result" => "refused").increment(1);
                gauge!("slidegate_config_is_current").set(0.0);
                error!(
                    "the configuration file is invalid; the previous configuration stays in force:\n{problems}"
                );
                None
            }
        }
    }

    /// Rejects configurations that are valid at startup but not in a reload.
    fn accept(&self, config: Config) -> Result<Config, Problems> {
        let mut problems = Vec::new();
        if config.policies.names().len() == 0 && self.controller.engine().policies().names().len() > 0 {
            problems.push(
                "the file has no policies, but the running configuration has; is the file complete?"
                    .to_owned(),
            );
        }
        for name in config.new_policies_with_overrides(&self.initial) {
            problems.push(format!(
                "{name:?} is new and has its own rules for store failures; restart the service to use it"
            ));
        }
        if problems.is_empty() {
            return Ok(config);
        }
        let problems = problems.into_iter().map(|message| Problem::without_line("policies", message));
        Err(Problems::new(&self.path.display().to_string(), problems.collect()))
    }

    fn apply(&self, config: Config) {
        let restart_only = config.restart_only_differences(&self.initial);
        self.admins.replace(&config.admin.tokens);
        self.clients.replace(&config.tokens);
        let (policies, switches) = (config.policies, config.degrade.switches);
        self.controller.set_base(Base { policies, switches });
        info!(file = %self.path.display(), "reloaded the configuration");
        if !restart_only.is_empty() {
            warn!("a restart is required to change: {}", restart_only.join("; "));
        }
    }
}

/// Loads the file and the certificates. Certificates are renewed even if the file is invalid, because they expire.
fn load(path: &Path, tls: Option<&Tls>) -> Result<Config, Problems> {
    let renewed = tls.map_or(Ok(()), Tls::reload);
    let config = Config::load(path)?;
    renewed.map_err(|message| {
        Problems::new(&path.display().to_string(), vec![Problem::without_line("tls", message)])
    })?;
    Ok(config)
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
