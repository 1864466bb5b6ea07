//! What `slidegate serve` is told about configuration of envoyproxy/ratelimit.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use slidegate::{Algorithm, Store};
use tokio::sync::Notify;
use tracing::info;

use super::Failure;
use crate::app::App;
use crate::envoy_reload::{FolderSnapshot, Reload};
use slidegate_config::EnvoyConfig;
use slidegate_config::envoy::{DenialBody, Domains, HeaderMode, Settings};

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are called like the flags")]
pub(super) struct EnvoyArguments {
    /// A folder of configuration of envoyproxy/ratelimit, one file for each domain
    #[arg(long, value_name = "DIR", env = "SLIDEGATE_ENVOY_CONFIG")]
    envoy_config: Option<PathBuf>,

    /// How its limits are counted: fixed-window as they were, or sliding-window, or any other algorithm
    /// [default: fixed-window]
    #[arg(long, value_name = "NAME", env = "SLIDEGATE_ENVOY_ALGORITHM")]
    envoy_algorithm: Option<Algorithm>,

    /// Which responses of Envoy get rate-limit headers [default: denied]
    #[arg(long, value_name = "WHICH", env = "SLIDEGATE_ENVOY_HEADERS")]
    envoy_headers: Option<HeaderMode>,

    /// The body of a denial [default: text]
    #[arg(long, value_name = "FORM", env = "SLIDEGATE_ENVOY_BODY")]
    envoy_body: Option<DenialBody>,
}

/// A folder that was read.
pub(super) struct Loaded {
    path: PathBuf,
    settings: Settings,
    snapshot: FolderSnapshot,
    domains: Domains,
}

impl EnvoyArguments {
    /// Whether a folder is named here.
    pub(super) fn is_given(&self) -> bool {
        self.envoy_config.is_some()
    }

    /// Reads the folder, if there is any: what is said here goes over what the file says.
    pub(super) fn load(&self, file: Option<&EnvoyConfig>) -> Result<Option<Loaded>, Failure> {
        let Some(path) = self.envoy_config.clone().or_else(|| file.map(|file| file.folder.clone())) else {
            return self.says_nothing_of_a_folder().map(|()| None);
        };
        let usual = file.map(|file| file.settings).unwrap_or_default();
        let settings = Settings {
            algorithm: self.envoy_algorithm.unwrap_or(usual.algorithm),
            headers: self.envoy_headers.unwrap_or(usual.headers),
            body: self.envoy_body.unwrap_or(usual.body),
        };
        // Before they are read, lest a change in between be missed.
        let snapshot = FolderSnapshot::of(&path);
        let domains = Domains::load(&path, settings).map_err(Failure::Files)?;
        Ok(Some(Loaded { path, settings, snapshot, domains }))
    }
}

impl EnvoyArguments {
    /// Whoever says how a folder is to be read means that there is one.
    fn says_nothing_of_a_folder(&self) -> Result<(), Failure> {
        let given = [
            ("--envoy-algorithm", self.envoy_algorithm.is_some()),
            ("--envoy-headers", self.envoy_headers.is_some()),
            ("--envoy-body", self.envoy_body.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(Failure::new(format!(
                "{flag}: there is no folder of limits for Envoy; name one with --envoy-config, or as `envoy: config:` in the file"
            ))),
            None => Ok(()),
        }
    }
}

/// What there is for Envoy, in a few words.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.domains.names();
        let noun = if names.len() == 1 { "domain" } else { "domains" };
        write!(f, "{noun} {} from {}", names.join(", "), self.path.display())
    }
}

impl Loaded {
    /// Puts it in force; whoever runs what comes back keeps it up to date.
    pub(super) fn keep<S: Store>(self, app: &Arc<App<S>>, asked: Arc<Notify>) -> Reload<S> {
        let domains = self.domains.names().join(", ");
        info!(folder = %self.path.display(), domains, "the limits for Envoy were read");
        app.set_envoy(self.domains.into());
        Reload {
            path: self.path,
            settings: self.settings,
            app: Arc::clone(app),
            snapshot: self.snapshot,
            reload_requested: asked,
        }
    }
}
