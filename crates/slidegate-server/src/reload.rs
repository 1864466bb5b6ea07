//! The configuration, read again while it runs.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use metrics::{counter, gauge};
use slidegate::{Clock, SystemClock};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::changes::{Base, Desk};
use crate::config::{Config, Problem, Problems};
use crate::serve::{Tls, TlsFiles};
use crate::tokens::Admission;

/// How often the file is looked at. Looking costs a few microseconds, and works where nobody tells of changes: over a
/// network, or where a link is changed to another folder, as Kubernetes does.
const LOOK_MS: u64 = 500;
/// For how long a file that changes at every look is not read: with the look that sees the change first, two seconds.
const MOST_WAIT_MS: u64 = 1500;
/// How often in a row a file may be missing before that is no longer somebody who is just putting another in its place.
const LOOKS_WITHOUT: u32 = 4;

/// Reads the file, its certificates and its tokens again when one of them has changed, or when asked to. Policies, switches
/// and tokens change; a file with a mistake changes nothing.
pub(crate) struct Reload {
    pub(crate) path: PathBuf,
    pub(crate) desk: Arc<Desk>,
    /// Who may use the admin API. Who may ask for decisions is known to the app.
    pub(crate) admins: Arc<Admission>,
    /// As it was when the service started: what is fixed is compared with this.
    pub(crate) first: Config,
    /// The certificates, which are read again as well.
    pub(crate) tls: Option<Tls>,
    /// How the file looked before that was read, and then those that it names.
    pub(crate) looks: Vec<Option<Looks>>,
    /// When somebody asks.
    pub(crate) asked: Arc<Notify>,
}

/// What tells a file from the one before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Looks {
    modified: Option<SystemTime>,
    bytes: u64,
    numbers: [i64; 3],
}

impl Looks {
    /// `None` while there is no file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let (modified, bytes) = (metadata.modified().ok(), metadata.len());
        Some(Self { modified, bytes, numbers: numbers(&metadata) })
    }
}

/// Another file in its place may have the same length and time; and one that could not be read may be readable now.
#[cfg(unix)]
fn numbers(metadata: &fs::Metadata) -> [i64; 3] {
    use std::os::unix::fs::MetadataExt;
    [metadata.ino().cast_signed(), metadata.ctime(), metadata.ctime_nsec()]
}

#[cfg(not(unix))]
fn numbers(_: &fs::Metadata) -> [i64; 3] {
    [0; 3]
}

/// Why something is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It has changed, or somebody has asked for it.
    News,
    /// It has changed, and changed again at every look since.
    Restless,
    /// It could not be used before.
    Retry,
}

/// Looks again and again at what may change.
pub(crate) struct Watch<L, C = SystemClock> {
    /// For the log.
    name: &'static str,
    clock: C,
    read: L,
    seen: L,
    /// Since when it has looked otherwise than what was read.
    differs_since_ms: Option<u64>,
    /// How often in a row it was not whole.
    without: u32,
}

impl<L: Clone + PartialEq + Send + 'static, C: Clock> Watch<L, C> {
    /// From how it looked before it was read.
    pub(crate) fn new(name: &'static str, clock: C, looks: L) -> Self {
        Self { name, clock, read: looks.clone(), seen: looks, differs_since_ms: None, without: 0 }
    }

    /// Returns when it is to be read again: at once if `asked`, else when it looks otherwise and `is_whole`, or has not been
    /// whole for a while. A file that is being written is left alone until it rests, but not for longer than
    /// [`MOST_WAIT_MS`]. With `retries` it is read again whenever it rests.
    pub(crate) async fn changed(
        &mut self,
        asked: &Notify,
        look: impl Fn() -> L + Clone + Send + 'static,
        is_whole: impl Fn(&L) -> bool,
        retries: bool,
    ) -> Reason {
        let mut is_asked = false;
        loop {
            tokio::select! {
                () = asked.notified() => is_asked = true,
                () = self.clock.sleep(LOOK_MS) => {}
            }
            // A file system that hangs must hold up nobody but this.
            let Some(looks) = off_thread(look.clone()).await else { continue };
            let is_whole = is_whole(&looks);
            let reason = self.judge(looks, is_whole, is_asked, retries);
            if reason == Some(Reason::Restless) {
                warn!("{} is read although it keeps changing", self.name);
            }
            if let Some(reason) = reason {
                return reason;
            }
        }
    }

    /// Whether to read it now that it `looks` so.
    fn judge(&mut self, looks: L, is_whole: bool, is_asked: bool, retries: bool) -> Option<Reason> {
        let now_ms = self.clock.now_ms();
        // Seen twice alike: it is written.
        let is_settled = looks == self.seen;
        self.seen.clone_from(&looks);
        self.without = if is_whole { 0 } else { self.without.saturating_add(1) };
        let differs = looks != self.read;
        let since_ms = if differs { *self.differs_since_ms.get_or_insert(now_ms) } else { now_ms };
        let is_late = now_ms.saturating_sub(since_ms) >= MOST_WAIT_MS;
        let is_due =
            differs && (self.without == 0 || self.without >= LOOKS_WITHOUT) && (is_settled || is_late);
        if is_due || is_asked {
            (self.read, self.differs_since_ms) = (looks, None);
            return Some(if is_settled || is_asked { Reason::News } else { Reason::Restless });
        }
        if !differs {
            self.differs_since_ms = None;
        }
        (retries && is_settled).then_some(Reason::Retry)
    }
}

impl Reload {
    /// Looks, for as long as it is polled.
    pub(crate) async fn run(self) {
        gauge!("slidegate_config_is_current").set(1.0);
        let mut watch = Watch::new("the configuration", SystemClock::default(), self.looks.clone());
        let mut paths = self.paths(&self.first);
        // The file itself and the certificates. Whoever takes a token back may remove its file as well.
        let lasting = paths.len() - self.first.token_files.len();
        loop {
            let looked_at = paths.clone();
            let look = move || looked_at.iter().map(|path| Looks::of(path)).collect::<Vec<_>>();
            let is_whole = |looks: &Vec<Option<Looks>>| looks[..lasting].iter().all(Option::is_some);
            // What is wrong may be put right elsewhere: by a file that it names and that is not there yet.
            let retries = self.desk.app().config_error().is_some();
            let reason = watch.changed(&self.asked, look, is_whole, retries).await;
            // If it names others than before, these look new and it is read once more, which does no harm.
            paths = self.reload(reason).await.unwrap_or(paths);
        }
    }

    /// The file itself, the certificates, which are the same for good, and the tokens that it names now.
    fn paths(&self, config: &Config) -> Vec<PathBuf> {
        let certificates = self.first.tls.iter().flat_map(TlsFiles::paths);
        iter::once(&self.path).chain(certificates).chain(&config.token_files).cloned().collect()
    }

    /// Returns what is to be looked at from now on, if it was read.
    async fn reload(&self, reason: Reason) -> Option<Vec<PathBuf>> {
        let (path, tls) = (self.path.clone(), self.tls.clone());
        let loaded = off_thread(move || load(&path, tls.as_ref())).await?;
        match loaded.and_then(|config| self.accept(config)) {
            Ok(config) => {
                let paths = self.paths(&config);
                self.apply(config);
                self.desk.app().set_config_error(None);
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_config_is_current").set(1.0);
                Some(paths)
            }
            // To say so once is enough.
            Err(problems)
                if reason == Reason::Retry
                    && self.desk.app().config_error() == Some(problems.to_string()) =>
            {
                None
            }
            Err(problems) => {
                self.desk.app().set_config_error(Some(problems.to_string()));
                counter!("slidegate_reloads_total", "result" => "refused").increment(1);
                gauge!("slidegate_config_is_current").set(0.0);
                error!("the configuration is left as it was, because the file has mistakes:\n{problems}");
                None
            }
        }
    }

    /// What is valid at a start may still be a mistake while it runs.
    fn accept(&self, config: Config) -> Result<Config, Problems> {
        let mut problems = Vec::new();
        if config.policies.names().len() == 0 && self.desk.app().has_policies() {
            problems.push("there are none any more: is the file complete?".to_owned());
        }
        for name in config.rules_beyond(&self.first) {
            problems
                .push(format!("{name:?} is new and has rules of its own for a store that fails: restart"));
        }
        if problems.is_empty() {
            return Ok(config);
        }
        let problems = problems.into_iter().map(|message| Problem::without_line("policies", message));
        Err(Problems::new(&self.path.display().to_string(), problems.collect()))
    }

    fn apply(&self, config: Config) {
        let fixed = config.fixed_differences(&self.first);
        self.admins.replace(&config.admin.tokens);
        self.desk.app().tokens().replace(&config.tokens);
        let (policies, switches) = (config.policies, config.degrade.switches);
        self.desk.set_base(Base { policies, switches });
        info!(file = %self.path.display(), "the configuration was read again");
        if !fixed.is_empty() {
            warn!("read at start only, and so not changed: {}", fixed.join("; "));
        }
    }
}

/// The file, and the certificates. They are renewed whatever else is wrong, because they end at their time.
fn load(path: &Path, tls: Option<&Tls>) -> Result<Config, Problems> {
    let renewed = tls.map_or(Ok(()), Tls::renew);
    let config = Config::load(path)?;
    renewed.map_err(|message| {
        Problems::new(&path.display().to_string(), vec![Problem::without_line("tls", message)])
    })?;
    Ok(config)
}

/// What `work` makes, where it may take its time.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(made) => Some(made),
        Err(error) => {
            error!(%error, "the configuration could not be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use slidegate::ManualClock;

    use super::*;

    /// What is decided when it looks like each of `looks`, half a second apart; 0 is a file that is missing.
    fn judged(looks: &[u64]) -> Vec<Option<Reason>> {
        let clock = ManualClock::at(0);
        let mut watch = Watch::new("it", clock.clone(), 1);
        let judge = |look: &u64| {
            clock.advance(LOOK_MS);
            watch.judge(*look, *look != 0, false, false)
        };
        looks.iter().map(judge).collect()
    }

    #[test]
    fn a_change_is_read_when_it_rests_or_after_two_seconds() {
        const NEWS: Option<Reason> = Some(Reason::News);
        const RESTLESS: Option<Reason> = Some(Reason::Restless);
        for (looks, expected) in [
            (&[1, 1, 1][..], &[None, None, None][..]),
            (&[2, 2, 2], &[None, NEWS, None]),
            (&[2, 3, 3, 3], &[None, None, NEWS, None]),
            (&[2, 1, 1], &[None, None, None]),
            // An editor that puts another file in its place may take it away first.
            (&[0, 2, 2], &[None, None, NEWS]),
            (&[0, 0, 0, 0, 0], &[None, None, None, NEWS, None]),
            // The fourth look is two seconds after the change at the latest.
            (&[2, 3, 4, 5, 6, 7], &[None, None, None, RESTLESS, None, None]),
            (&[2, 3, 4, 5, 6, 6], &[None, None, None, RESTLESS, None, NEWS]),
            (&[2, 0, 3, 0, 4, 5], &[None, None, None, None, RESTLESS, None]),
            (&[2, 0, 3, 0, 0, 5], &[None, None, None, None, None, RESTLESS]),
            // And then it counts anew.
            (
                &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
                &[None, None, None, RESTLESS, None, None, None, RESTLESS, None, None],
            ),
            (&[2, 3, 4, 1, 5, 6, 7, 8, 9], &[None, None, None, None, None, None, None, RESTLESS, None]),
        ] {
            assert_eq!(judged(looks), expected, "{looks:?}");
        }
    }

    #[tokio::test]
    async fn what_is_asked_for_is_read_at_once() {
        let clock = ManualClock::at(0);
        let (asked, count) = (Notify::new(), Arc::new(AtomicU64::new(0)));
        // Changes at every look.
        let look = move || count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut watch = Watch::new("it", clock.clone(), 0);
        for _ in 0..3 {
            asked.notify_one();
            let reason = watch.changed(&asked, look.clone(), |_| true, false).await;
            assert_eq!((reason, clock.now_ms()), (Reason::News, 0));
        }
    }
}
