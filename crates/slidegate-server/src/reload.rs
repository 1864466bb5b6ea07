//! Reload of the configuration file at runtime.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics::{counter, gauge};
use slidegate::SystemClock;
use slidegate_config::{Config, Problem, Problems, TlsFiles};
use slidegate_engine::Authenticator;
use slidegate_engine::changes::{Base, ChangeController};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::file_watcher::{FileFingerprint, ReloadReason, Watcher, run_blocking};
use crate::net::tls::Tls;

/// Reloads the file, its certificates and its tokens when one of them changes or on a signal. A reload replaces policies,
/// switches and tokens. An invalid file has no effect.
pub(crate) struct Reload {
    pub(crate) path: PathBuf,
    pub(crate) controller: Arc<ChangeController>,
    /// Tokens of clients.
    pub(crate) clients: Arc<Authenticator>,
    /// Authenticator of the admin API. That of the other listeners belongs to the engine.
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
            let retries = self.controller.engine().readiness().config_error().is_some();
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
                self.controller.engine().readiness().set_config_error(None);
                counter!("slidegate_reloads_total", "result" => "used").increment(1);
                gauge!("slidegate_config_is_current").set(1.0);
                Some(paths)
            }
            // Logs the same error only once.
            Err(problems)
                if reason == ReloadReason::Retry
                    && self.controller.engine().readiness().config_error() == Some(problems.to_string()) =>
            {
                None
            }
            Err(problems) => {
                self.controller.engine().readiness().set_config_error(Some(problems.to_string()));
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
