//! Reload of the files of envoyproxy/ratelimit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics::{counter, gauge};
use slidegate::SystemClock;
use slidegate::store::Store;
use slidegate_config::Problems;
use slidegate_config::envoy::{Domains, EnvoySettings, files};
use slidegate_engine::Engine;
use tokio::sync::Notify;
use tracing::{error, info};

use crate::file_watcher::{FileFingerprint, ReloadReason, Watcher, run_blocking};

/// Reloads the folder when one of its files changes, or on request. Files with problems leave the limits unchanged.
pub(crate) struct Reload<S> {
    pub(crate) path: PathBuf,
    pub(crate) settings: EnvoySettings,
    pub(crate) engine: Arc<Engine<S>>,
    /// State of the files before they were read.
    pub(crate) snapshot: FolderSnapshot,
    /// Notified to request a reload.
    pub(crate) reload_requested: Arc<Notify>,
}

/// State of a folder's files, to detect changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FolderSnapshot(Vec<(PathBuf, Option<FileFingerprint>)>);

impl FolderSnapshot {
    pub(crate) fn of(path: &Path) -> Self {
        let files = files(path).unwrap_or_default();
        Self(files.into_iter().map(|file| (file.clone(), FileFingerprint::of(&file))).collect())
    }
}

impl<S: Store> Reload<S> {
    /// Watches the folder and reloads it until the future is dropped.
    pub(crate) async fn run(self) {
        gauge!("slidegate_envoy_config_is_current").set(1.0);
        let name = "the folder with limits for Envoy";
        let mut watcher = Watcher::new(name, SystemClock::default(), self.snapshot.clone());
        let path = self.path.clone();
        let take_snapshot = move || FolderSnapshot::of(&path);
        let mut problems = None;
        loop {
            let changed =
                watcher.changed(&self.reload_requested, take_snapshot.clone(), |_| true, problems.is_some());
            problems = self.reload(changed.await, problems).await;
        }
    }

    /// Reloads the files and returns their problems; `previous` are those of the last attempt.
    async fn reload(&self, reason: ReloadReason, previous: Option<String>) -> Option<String> {
        let (path, settings) = (self.path.clone(), self.settings);
        let Some(loaded) = run_blocking(move || Domains::load(&path, settings)).await else {
            return previous;
        };
        match loaded {
            Ok(domains) => {
                self.engine.set_envoy(domains.into());
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_envoy_config_is_current").set(1.0);
                info!(folder = %self.path.display(), "reloaded the limits for Envoy");
                None
            }
            Err(problems) => {
                let problems = problems.iter().map(Problems::to_string).collect::<Vec<_>>().join("\n");
                // A retry with the same problems is not logged again.
                if reason != ReloadReason::Retry || previous.as_ref() != Some(&problems) {
                    counter!("slidegate_reloads_total", "result" => "refused").increment(1);
                    gauge!("slidegate_envoy_config_is_current").set(0.0);
                    error!(
                        "the limits for Envoy stay unchanged, because the files have problems:\n{problems}"
                    );
                }
                Some(problems)
            }
        }
    }
}
