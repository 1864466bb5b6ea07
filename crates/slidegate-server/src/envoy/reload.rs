//! Files of envoyproxy/ratelimit, read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics::{counter, gauge};
use slidegate::{Store, SystemClock};
use tokio::sync::Notify;
use tracing::{error, info};

use super::{Domains, Settings, files};
use crate::app::App;
use crate::config::Problems;
use crate::reload::{FileFingerprint, Reason, Watcher, run_blocking};

/// Reads the folder again when a file in it has changed, or when asked to. Files with a mistake change nothing.
pub(crate) struct Reload<S> {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) app: Arc<App<S>>,
    /// How the files looked before they were read.
    pub(crate) looks: FolderLooks,
    /// When somebody asks.
    pub(crate) asked: Arc<Notify>,
}

/// What tells a folder's files from those before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FolderLooks(Vec<(PathBuf, Option<FileFingerprint>)>);

impl FolderLooks {
    pub(crate) fn of(path: &Path) -> Self {
        let files = files(path).unwrap_or_default();
        Self(files.into_iter().map(|file| (file.clone(), FileFingerprint::of(&file))).collect())
    }
}

impl<S: Store> Reload<S> {
    /// Looks, for as long as it is polled.
    pub(crate) async fn run(self) {
        gauge!("slidegate_envoy_config_is_current").set(1.0);
        let name = "the folder with limits for Envoy";
        let mut watch = Watcher::new(name, SystemClock::default(), self.looks.clone());
        let path = self.path.clone();
        let look = move || FolderLooks::of(&path);
        let mut mistakes = None;
        loop {
            let reason = watch.changed(&self.asked, look.clone(), |_| true, mistakes.is_some()).await;
            mistakes = self.reload(reason, mistakes).await;
        }
    }

    /// Returns what is wrong with the files, after `mistakes` of the last time.
    async fn reload(&self, reason: Reason, mistakes: Option<String>) -> Option<String> {
        let (path, settings) = (self.path.clone(), self.settings);
        let Some(loaded) = run_blocking(move || Domains::load(&path, settings)).await else {
            return mistakes;
        };
        match loaded {
            Ok(domains) => {
                self.app.set_envoy(domains);
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_envoy_config_is_current").set(1.0);
                info!(folder = %self.path.display(), "the limits for Envoy were read again");
                None
            }
            Err(refused) => {
                let problems = refused.iter().map(Problems::to_string).collect::<Vec<_>>().join("\n");
                // To say so once is enough.
                if reason != Reason::Retry || mistakes.as_ref() != Some(&problems) {
                    counter!("slidegate_reloads_total", "result" => "refused").increment(1);
                    gauge!("slidegate_envoy_config_is_current").set(0.0);
                    error!("the limits for Envoy are left as they were, because of mistakes:\n{problems}");
                }
                Some(problems)
            }
        }
    }
}
