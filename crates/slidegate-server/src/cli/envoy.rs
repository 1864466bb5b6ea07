//! Options of `slidegate serve` for limits of envoyproxy/ratelimit.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use slidegate::Algorithm;
use slidegate::store::Store;
use slidegate_config::EnvoyConfig;
use slidegate_config::envoy::{DenialBody, Domains, EnvoySettings, HeaderMode};
use slidegate_engine::Engine;
use tokio::sync::Notify;
use tracing::info;

use super::Failure;
use crate::envoy_reload::{FolderSnapshot, Reload};

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "named like the flags")]
pub(super) struct EnvoyArguments {
    /// Folder with limits of envoyproxy/ratelimit, one file for each domain
    #[arg(long, value_name = "DIR", env = "SLIDEGATE_ENVOY_CONFIG")]
    envoy_config: Option<PathBuf>,

    /// Algorithm of the limits for Envoy: fixed-window as in envoyproxy/ratelimit, or any other [default: fixed-window]
    #[arg(long, value_name = "NAME", env = "SLIDEGATE_ENVOY_ALGORITHM")]
    envoy_algorithm: Option<Algorithm>,

    /// Responses of Envoy that get rate-limit headers [default: denied]
    #[arg(long, value_name = "WHICH", env = "SLIDEGATE_ENVOY_HEADERS")]
    envoy_headers: Option<HeaderMode>,

    /// Body of Envoy's response to a denied request [default: text]
    #[arg(long, value_name = "FORM", env = "SLIDEGATE_ENVOY_BODY")]
    envoy_body: Option<DenialBody>,
}

/// Limits for Envoy, loaded from a folder.
pub(super) struct LoadedEnvoyLimits {
    path: PathBuf,
    settings: EnvoySettings,
    snapshot: FolderSnapshot,
    domains: Domains,
}

impl EnvoyArguments {
    /// Returns whether an option names a folder.
    pub(super) fn is_given(&self) -> bool {
        self.envoy_config.is_some()
    }

    /// Loads the folder, if the options or the file name one. The options override the file.
    pub(super) fn load(&self, file: Option<&EnvoyConfig>) -> Result<Option<LoadedEnvoyLimits>, Failure> {
        let Some(path) = self.envoy_config.clone().or_else(|| file.map(|file| file.folder.clone())) else {
            return self.reject_settings_without_folder().map(|()| None);
        };
        let from_file = file.map(|file| file.settings).unwrap_or_default();
        let settings = EnvoySettings {
            algorithm: self.envoy_algorithm.unwrap_or(from_file.algorithm),
            headers: self.envoy_headers.unwrap_or(from_file.headers),
            body: self.envoy_body.unwrap_or(from_file.body),
        };
        // Taken before the files are read, so that no change in between is missed.
        let snapshot = FolderSnapshot::of(&path);
        let domains = Domains::load(&path, settings).map_err(Failure::Files)?;
        Ok(Some(LoadedEnvoyLimits { path, settings, snapshot, domains }))
    }

    /// Returns an error if there are settings, which have no effect without a folder.
    fn reject_settings_without_folder(&self) -> Result<(), Failure> {
        let given = [
            ("--envoy-algorithm", self.envoy_algorithm.is_some()),
            ("--envoy-headers", self.envoy_headers.is_some()),
            ("--envoy-body", self.envoy_body.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::new(format!(
                "{flag} needs a folder of limits for Envoy; name it with --envoy-config, or with `envoy: config:` in the file"
            ))),
            None => Ok(()),
        }
    }
}

/// Formats the domains and the folder.
impl fmt::Display for LoadedEnvoyLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.domains.names();
        let noun = if names.len() == 1 { "domain" } else { "domains" };
        write!(f, "{noun} {} from {}", names.join(", "), self.path.display())
    }
}

impl LoadedEnvoyLimits {
    /// Puts the limits in force. Returns the task that reloads them.
    pub(super) fn apply<S: Store>(self, engine: &Arc<Engine<S>>, trigger: Arc<Notify>) -> Reload<S> {
        let domains = self.domains.names().join(", ");
        info!(folder = %self.path.display(), domains, "loaded the limits for Envoy");
        engine.set_envoy(self.domains.into());
        Reload {
            path: self.path,
            settings: self.settings,
            engine: Arc::clone(engine),
            snapshot: self.snapshot,
            reload_requested: trigger,
        }
    }
}
