//! `slidegate serve`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use slidegate::{Clock, SystemClock};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::Failure;
use super::envoy::EnvoyArguments;
use super::listeners::{Addresses, Listeners};
use crate::app::App;
use crate::authenticator::Authenticator;
use crate::changes::{Base, ChangeController, Persistence};
use crate::environment;
use crate::metrics::Metrics;
use crate::net::{ListenerSettings, Tls};
use crate::reload::{FileFingerprint, Reload};
use crate::store::AnyStore;
use crate::store_stack::{BaseStore, ProtectedStore, StoreStack};
use crate::traces::{LogFormat, Tracing};
use slidegate_config::Config;
use slidegate_config::TlsFiles;

/// Serve decisions over HTTP; without options, on the memory store with a sample policy
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CONFIG")]
    config: Option<PathBuf>,

    /// Where to keep counts: memory:, `redis://HOST:PORT` or one of its relatives, `postgres://HOST:PORT/DATABASE`
    /// [default: memory:]
    // Parsed later, and hidden: an error or the help would otherwise show the passwords in it.
    #[arg(long, value_name = "URL", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// How lines of the log look
    #[arg(long, value_name = "FORMAT", env = "SLIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    #[command(flatten)]
    addresses: Addresses,

    #[command(flatten)]
    envoy: EnvoyArguments,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let runtime =
        Runtime::new().map_err(|error| Failure::new(format!("no threads to work with: {error}")))?;
    let ended = runtime.block_on(until_told(arguments));
    // Nobody waits any more for what blocks.
    runtime.shutdown_background();
    ended
}

/// Serves until it is told to stop, and waits no longer for anything when it is told so again.
async fn until_told(arguments: Arguments) -> Result<ExitCode, Failure> {
    let filter = environment::text("RUST_LOG").map(|text| log_filter(&text)).transpose();
    let misread = filter.as_ref().err().cloned();
    let filter = filter.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    let tracing = Tracing::start(filter, arguments.log_format);
    if let Some(error) = misread {
        warn!("RUST_LOG is not understood and left out: {error}; write info, or slidegate=debug,warn");
    }
    let asked = Asked::default();
    // Before anything is waited for: whoever starts it may send a signal at once.
    let [stop, hurry] = listen_for_signals(asked.those(&arguments))
        .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    tokio::select! {
        served = serve(arguments, asked, tracing, stop) => served,
        () = hurry.notified() => {
            warn!("told to stop once more: what is not over is dropped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Which lines are wanted. A level that is misspelled would be taken for a part of the program, and all others say nothing.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    const OURS: &str = "slidegate";
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_clear = |word: &str| word.contains(['=', '[']) || is_level(word) || word.starts_with(OURS);
    if !text.split(',').map(str::trim).any(is_clear) {
        return Err(format!("{text:?} has none of error, warn, info, debug, trace and off"));
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}

async fn serve(
    arguments: Arguments,
    asked: Asked,
    tracing: Tracing,
    stop: Arc<Notify>,
) -> Result<ExitCode, Failure> {
    // Before there is anything to count.
    let metrics = Metrics::install().inspect_err(|error| warn!(%error, "nothing is counted")).ok();
    // Before it is read, lest a change in between be missed.
    let mut fingerprints = vec![arguments.config.as_deref().and_then(FileFingerprint::of)];
    let load = || match &arguments.config {
        Some(file) => Config::load(file).map_err(|problems| Failure::Files(vec![problems])),
        None => Ok(Config::sample()),
    };
    let named = load()?;
    let certificates = named.tls.iter().flat_map(TlsFiles::paths);
    fingerprints.extend(certificates.chain(&named.token_files).map(|path| FileFingerprint::of(path)));
    // A second time if tokens are stored elsewhere, because they were read before this watch began.
    let config = if named.token_files.is_empty() { named } else { load()? };
    let envoy = arguments.envoy.load(config.envoy.as_ref())?;
    let store_url = match &arguments.store {
        Some(url) => super::parse_store(url)?,
        None => config.store.clone().unwrap_or_default(),
    };
    let tls = config.tls.as_ref().map(Tls::load).transpose().map_err(Failure::new)?;
    let door = ListenerSettings { limits: config.limits, tls: tls.clone(), metrics };
    let opened = ProtectedStore::open(&store_url, config.memory, &config.degrade).await;
    let app = App::new(opened.map_err(Failure::new)?, &config.policies);
    let app = Arc::new(app.logging(config.log).admitting(config.tokens.clone()));
    let listeners = Listeners::open(arguments.addresses.clone(), &config, envoy.is_some()).await?;
    let persistence = persistence(&app, state_file(arguments.config.as_deref(), &config));
    if listeners.has_admin() {
        persistence.warn_if_not_writable();
    }
    let controller = controller(&app, &config, persistence);
    controller.load().await;
    let greeting = listeners.greeting(&door, &store_url, &config, &controller, envoy.as_ref())?;
    // Somebody who does not read it is no reason not to serve.
    let _ = io::stdout().write_all(greeting.as_bytes());
    let admins = Arc::new(Authenticator::new(config.admin.tokens.clone()));
    let entrances = listeners.entrances(&app, &controller, &door, &admins)?;
    tokio::spawn(Arc::clone(&controller).run());
    if let Some(envoy) = envoy {
        tokio::spawn(envoy.keep(&app, asked.for_envoy).run());
    }
    if let Some(path) = arguments.config {
        tokio::spawn(
            Reload { path, controller, admins, initial: config, tls, fingerprints, trigger: asked.for_file }
                .run(),
        );
    }
    crate::net::run(entrances, app, door, async move { stop.notified().await }).await;
    info!("stopped");
    // It may wait, and nobody waits for this any more.
    let _ = tokio::task::spawn_blocking(|| tracing.finish()).await;
    Ok(ExitCode::SUCCESS)
}

/// Who is to read its files again when somebody asks for it.
#[derive(Default)]
struct Asked {
    for_file: Arc<Notify>,
    for_envoy: Arc<Notify>,
}

impl Asked {
    fn those(&self, arguments: &Arguments) -> Vec<Arc<Notify>> {
        let of_file = arguments.config.is_some().then(|| Arc::clone(&self.for_file));
        // The file may name a folder, too.
        let may_be = arguments.config.is_some() || arguments.envoy.is_given();
        let of_envoy = may_be.then(|| Arc::clone(&self.for_envoy));
        of_file.into_iter().chain(of_envoy).collect()
    }
}

/// Where changes are kept if the counts are in memory: where the file says, or where systemd has made room, or beside
/// the file.
fn state_file(config_file: Option<&Path>, config: &Config) -> PathBuf {
    const NAME: &str = "slidegate.state.json";
    let of_service = || environment::said("STATE_DIRECTORY").map(|folder| PathBuf::from(folder).join(NAME));
    let beside = || config_file.map_or_else(|| PathBuf::from(NAME), |file| file.with_extension("state.json"));
    config.admin.state.clone().or_else(of_service).unwrap_or_else(beside)
}

fn persistence(app: &Arc<App<StoreStack>>, state_file: PathBuf) -> Persistence {
    match app.store().base() {
        AnyStore::Memory(_) => Persistence::File(state_file),
        AnyStore::Redis(_) | AnyStore::Postgres(_) => Persistence::Store(Arc::clone(app)),
    }
}

fn controller(
    app: &Arc<App<StoreStack>>,
    config: &Config,
    persistence: Persistence,
) -> Arc<ChangeController> {
    let base = Base { policies: config.policies.clone(), switches: config.degrade.switches.clone() };
    Arc::new(ChangeController::new(Arc::clone(app), persistence, base))
}

/// So soon after the first, a signal to stop is the same one: a shell sends it to all of a group, and whoever started this
/// one may hand it on.
const SAME_SIGNAL_MS: u64 = 500;

/// Tells of the first SIGTERM or Ctrl-C, and of another one; SIGHUP asks for a `reload`. They are caught from the call on.
#[cfg(unix)]
fn listen_for_signals(reload: Vec<Arc<Notify>>) -> io::Result<[Arc<Notify>; 2]> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    let stops = <[Arc<Notify>; 2]>::default();
    let mut told = Told::new(&stops);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => told.stop(),
                _ = interrupt.recv() => told.stop(),
                _ = hang_up.recv() => {
                    if reload.is_empty() {
                        warn!("there is no file to read again; start with --config FILE");
                    }
                    for reload in &reload {
                        reload.notify_one();
                    }
                }
            }
        }
    });
    Ok(stops)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature everywhere")]
fn listen_for_signals(_: Vec<Arc<Notify>>) -> io::Result<[Arc<Notify>; 2]> {
    let stops = <[Arc<Notify>; 2]>::default();
    let mut told = Told::new(&stops);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            told.stop();
        }
    });
    Ok(stops)
}

/// Who is to hear that it is to stop.
struct Told {
    stops: [Arc<Notify>; 2],
    clock: SystemClock,
    first_ms: Option<u64>,
}

impl Told {
    fn new(stops: &[Arc<Notify>; 2]) -> Self {
        Self { stops: stops.clone(), clock: SystemClock::default(), first_ms: None }
    }

    fn stop(&mut self) {
        let now_ms = self.clock.now_ms();
        let [stop, hurry] = &self.stops;
        match self.first_ms {
            None => {
                self.first_ms = Some(now_ms);
                stop.notify_one();
            }
            Some(first_ms) if now_ms.saturating_sub(first_ms) >= SAME_SIGNAL_MS => hurry.notify_one(),
            Some(_) => {}
        }
    }
}
