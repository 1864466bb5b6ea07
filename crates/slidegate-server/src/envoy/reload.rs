//! Files of envoyproxy/ratelimit, read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics::{counter, gauge};
use slidegate::Store;
use tokio::sync::Notify;
use tracing::{error, info};

use super::{Domains, Settings, files};
use crate::app::App;
use crate::config::Problems;
use crate::reload::{Looks, Watch, off_thread};

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
pub(crate) struct FolderLooks(Vec<(PathBuf, Option<Looks>)>);

impl FolderLooks {
    pub(crate) fn of(path: &Path) -> Self {
        let files = files(path).unwrap_or_default();
        Self(files.into_iter().map(|file| (file.clone(), Looks::of(&file))).collect())
    }
}

impl<S: Store> Reload<S> {
    /// Looks, for as long as it is polled.
    pub(crate) async fn run(self) {
        gauge!("slidegate_envoy_config_is_current").set(1.0);
        let mut watch = Watch::new(self.looks.clone());
        let path = self.path.clone();
        let look = move || FolderLooks::of(&path);
        loop {
            watch.changed(&self.asked, look.clone(), |_| true, false).await;
            self.reload().await;
        }
    }

    async fn reload(&self) {
        let (path, settings) = (self.path.clone(), self.settings);
        let Some(loaded) = off_thread(move || Domains::load(&path, settings)).await else { return };
        match loaded {
            Ok(domains) => {
                self.app.set_envoy(domains);
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_envoy_config_is_current").set(1.0);
                info!(folder = %self.path.display(), "the limits for Envoy were read again");
            }
            Err(refused) => {
                counter!("slidegate_reloads_total", "result" => "refused").increment(1);
                gauge!("slidegate_envoy_config_is_current").set(0.0);
                let problems = refused.iter().map(Problems::to_string).collect::<Vec<_>>().join("\n");
                error!("the limits for Envoy are left as they were, because of mistakes:\n{problems}");
            }
        }
    }
}
