//! The configuration, read again while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use slidegate::{Clock, SystemClock};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::app::App;
use crate::config::Config;
use crate::served::Switched;

/// How often the file is looked at. Looking costs a few microseconds, and works where nobody tells of changes: over a
/// network, or where a link is changed to another folder, as Kubernetes does.
const LOOK_MS: u64 = 500;

/// Reads the file again when it has changed, or when asked to. Policies and switches change; a file with a mistake
/// changes nothing.
pub(crate) struct Reload {
    path: PathBuf,
    app: Arc<App<Switched>>,
    /// As it was when the service started: what is fixed is compared with this.
    first: Config,
    /// When somebody asks.
    asked: Arc<Notify>,
}

/// What tells a file from the one before.
#[derive(Debug, PartialEq)]
struct Looks {
    modified: Option<SystemTime>,
    bytes: u64,
    number: u64,
}

impl Looks {
    /// `None` while there is no file.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len(), number: number(&metadata) })
    }
}

/// Another file in its place may have the same length and time.
#[cfg(unix)]
fn number(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn number(_: &fs::Metadata) -> u64 {
    0
}

impl Reload {
    pub(crate) fn new(path: PathBuf, app: Arc<App<Switched>>, first: Config, asked: Arc<Notify>) -> Self {
        Self { path, app, first, asked }
    }

    /// Looks, for as long as it is polled.
    pub(crate) async fn run(self) {
        let clock = SystemClock::default();
        let mut read = Looks::of(&self.path);
        let mut seen = None;
        loop {
            let is_asked = tokio::select! {
                () = self.asked.notified() => true,
                () = clock.sleep(LOOK_MS) => false,
            };
            let looks = Looks::of(&self.path);
            let is_new = looks.is_some() && looks != read;
            // Seen twice alike: whoever writes it is done.
            if is_asked || (is_new && looks == seen) {
                read = Looks::of(&self.path);
                self.reload();
            }
            seen = looks;
        }
    }

    fn reload(&self) {
        let config = match Config::load(&self.path) {
            Ok(config) => config,
            Err(problems) => {
                error!("the configuration is left as it was, because the file has mistakes:\n{problems}");
                return;
            }
        };
        let fixed = config.fixed_differences(&self.first);
        self.app.store().replace(config.degrade.switches);
        self.app.set_policies(config.policies);
        info!(file = %self.path.display(), "the configuration was read again");
        if !fixed.is_empty() {
            warn!("read at start only, and so not changed: {}", fixed.join("; "));
        }
    }
}
