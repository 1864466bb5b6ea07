//! `slidegate serve`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use slidegate::{Clock, SystemClock};
use slidegate_config::{Config, TlsFiles};
use slidegate_engine::changes::{Base, ChangeController, Persistence};
use slidegate_engine::{Authenticator, Engine};
use slidegate_engine::{StoreStack, store_stack};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::Failure;
use super::envoy::EnvoyArguments;
use super::listeners::{Addresses, Listeners};
use crate::environment;
use crate::file_watcher::FileFingerprint;
use crate::listeners::ListenerSettings;
use crate::metrics::Metrics;
use crate::net::tls::Tls;
use crate::reload::Reload;
use crate::traces::{self, LogFormat, Tracing};

/// Serve decisions over HTTP, gRPC and the protocol of Redis; without options, a sample policy on the memory store
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CONFIG")]
    config: Option<PathBuf>,

    /// URL of the store: memory:, `redis://HOST:PORT` or another form for Redis, `postgres://HOST:PORT/DATABASE`
    /// [default: memory:]
    // Parsed later and hidden, so that neither an error of clap nor the help shows a password.
    #[arg(long, value_name = "URL", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "SLIDEGATE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,

    #[command(flatten)]
    addresses: Addresses,

    #[command(flatten)]
    envoy: EnvoyArguments,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let runtime = Runtime::new().map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    let outcome = runtime.block_on(serve_until_stopped(arguments));
    // Does not wait for blocking tasks.
    runtime.shutdown_background();
    outcome
}

/// Serves until a signal drains the service. A second signal stops it without draining.
async fn serve_until_stopped(arguments: Arguments) -> Result<ExitCode, Failure> {
    let filter = environment::text("RUST_LOG").map(|text| log_filter(&text)).transpose();
    let filter_error = filter.as_ref().err().cloned();
    let filter = filter.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    let tracing = Tracing::start(filter, arguments.log_format);
    if let Some(error) = filter_error {
        warn!("RUST_LOG is invalid and ignored: {error}; write info, or slidegate=debug,warn");
    }
    let reload_triggers = ReloadTriggers::default();
    // Before anything else, because a supervisor may send a signal at once.
    let [drain, stop_now] = listen_for_signals(reload_triggers.for_sighup(&arguments))
        .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    tokio::select! {
        outcome = serve(arguments, reload_triggers, tracing, drain) => outcome,
        () = stop_now.notified() => {
            warn!("second signal: stopping without waiting for requests in progress");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Parses a log filter. Rejects a misspelled level, which `EnvFilter` would take for the name of a module and then log nothing
/// else.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    const CRATE_PREFIX: &str = "slidegate";
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_known = |word: &str| word.contains(['=', '[']) || is_level(word) || word.starts_with(CRATE_PREFIX);
    if !text.split(',').map(str::trim).any(is_known) {
        return Err(format!("{text:?} has none of error, warn, info, debug, trace and off"));
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}

async fn serve(
    arguments: Arguments,
    reload_triggers: ReloadTriggers,
    tracing: Tracing,
    drain: Arc<Notify>,
) -> Result<ExitCode, Failure> {
    // Before the first measurement.
    let metrics = Metrics::install().inspect_err(|error| warn!(%error, "metrics are off")).ok();
    // Taken before the files are read, so that no change in between is missed.
    let mut fingerprints = vec![arguments.config.as_deref().and_then(FileFingerprint::of)];
    let load = || match &arguments.config {
        Some(file) => Config::load(file).map_err(|problems| Failure::Files(vec![problems])),
        None => Ok(Config::sample()),
    };
    let first = load()?;
    let certificates = first.tls.iter().flat_map(TlsFiles::paths);
    fingerprints.extend(certificates.chain(&first.token_files).map(|path| FileFingerprint::of(path)));
    // Loads again if there are token files, because their fingerprints were taken after they were read.
    let config = if first.token_files.is_empty() { first } else { load()? };
    let envoy = arguments.envoy.load(config.envoy.as_ref())?;
    let store_url = match &arguments.store {
        Some(url) => super::parse_store(url)?,
        None => config.store.clone().unwrap_or_default(),
    };
    let tls = config.tls.as_ref().map(Tls::load).transpose().map_err(Failure::new)?;
    let settings = ListenerSettings { limits: config.limits, tls: tls.clone(), metrics };
    let store = store_stack::open(&store_url, config.memory, &config.degrade).await;
    let engine = Engine::new(store.map_err(Failure::new)?, &config.policies)
        .with_tokens(config.tokens.clone())
        .with_violation_log(config.log)
        .with_store_span(traces::store_span);
    let engine = Arc::new(engine);
    let listeners = Listeners::open(arguments.addresses.clone(), &config, envoy.is_some()).await?;
    let persistence = persistence(&engine, state_file(arguments.config.as_deref(), &config));
    if listeners.has_admin() {
        persistence.warn_if_not_writable();
    }
    let controller = controller(&engine, &config, persistence);
    controller.load().await;
    let greeting = listeners.greeting(&settings, &store_url, &config, &controller, envoy.as_ref())?;
    // A closed standard output does not prevent the service from running.
    let _ = io::stdout().write_all(greeting.as_bytes());
    let admins = Arc::new(Authenticator::new(config.admin.tokens.clone()));
    let protocol_listeners = listeners.into_protocol_listeners(&engine, &controller, &settings, &admins)?;
    tokio::spawn(Arc::clone(&controller).run());
    if let Some(envoy) = envoy {
        tokio::spawn(envoy.apply(&engine, reload_triggers.envoy).run());
    }
    let clients = Arc::clone(engine.tokens());
    if let Some(path) = arguments.config {
        tokio::spawn(
            Reload {
                path,
                controller,
                clients,
                admins,
                initial: config,
                tls,
                fingerprints,
                trigger: reload_triggers.file,
            }
            .run(),
        );
    }
    crate::listeners::run(protocol_listeners, engine, settings, async move { drain.notified().await }).await;
    info!("stopped");
    // Sends the remaining spans, which blocks.
    let _ = tokio::task::spawn_blocking(|| tracing.finish()).await;
    Ok(ExitCode::SUCCESS)
}

/// Triggers of the tasks that reload files.
#[derive(Default)]
struct ReloadTriggers {
    file: Arc<Notify>,
    envoy: Arc<Notify>,
}

impl ReloadTriggers {
    /// Returns the triggers that SIGHUP notifies.
    fn for_sighup(&self, arguments: &Arguments) -> Vec<Arc<Notify>> {
        let file = arguments.config.is_some().then(|| Arc::clone(&self.file));
        // The configuration file may name a folder of limits for Envoy.
        let may_have_envoy = arguments.config.is_some() || arguments.envoy.is_given();
        let envoy = may_have_envoy.then(|| Arc::clone(&self.envoy));
        file.into_iter().chain(envoy).collect()
    }
}

/// Returns the path of the state file, which stores changes of operators if the counts are in memory. Without a path in the
/// configuration, the file is in systemd's state directory, or else beside the configuration file.
fn state_file(config_file: Option<&Path>, config: &Config) -> PathBuf {
    const NAME: &str = "slidegate.state.json";
    let in_state_directory =
        || environment::variable("STATE_DIRECTORY").map(|folder| PathBuf::from(folder).join(NAME));
    let beside_config =
        || config_file.map_or_else(|| PathBuf::from(NAME), |file| file.with_extension("state.json"));
    config.admin.state.clone().or_else(in_state_directory).unwrap_or_else(beside_config)
}

fn persistence(engine: &Arc<Engine<StoreStack>>, state_file: PathBuf) -> Persistence {
    match engine.store().base().memory() {
        Some(_) => Persistence::File(state_file),
        None => Persistence::Store(Arc::clone(engine)),
    }
}

fn controller(
    engine: &Arc<Engine<StoreStack>>,
    config: &Config,
    persistence: Persistence,
) -> Arc<ChangeController> {
    let base = Base { policies: config.policies.clone(), switches: config.degrade.switches.clone() };
    Arc::new(ChangeController::new(Arc::clone(engine), persistence, base))
}

/// Time in which another signal counts as a repetition of the first. A shell signals a whole process group, and the parent
/// process may forward the signal as well.
const SAME_SIGNAL_MS: u64 = 500;

/// Installs the signal handlers. The first SIGTERM or Ctrl-C notifies the first element of the result, a later one the
/// second. SIGHUP notifies all of `reload`.
#[cfg(unix)]
fn listen_for_signals(reload: Vec<Arc<Notify>>) -> io::Result<[Arc<Notify>; 2]> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    let notifiers = <[Arc<Notify>; 2]>::default();
    let mut stop_signals = StopSignals::new(&notifiers);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => stop_signals.receive(),
                _ = interrupt.recv() => stop_signals.receive(),
                _ = hang_up.recv() => {
                    if reload.is_empty() {
                        warn!("SIGHUP ignored: there is no file to reload; start with --config FILE");
                    }
                    for trigger in &reload {
                        trigger.notify_one();
                    }
                }
            }
        }
    });
    Ok(notifiers)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature on all platforms")]
fn listen_for_signals(_: Vec<Arc<Notify>>) -> io::Result<[Arc<Notify>; 2]> {
    let notifiers = <[Arc<Notify>; 2]>::default();
    let mut stop_signals = StopSignals::new(&notifiers);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            stop_signals.receive();
        }
    });
    Ok(notifiers)
}

/// Distinguishes the first signal to stop, its repetitions and a second signal.
struct StopSignals {
    notifiers: [Arc<Notify>; 2],
    clock: SystemClock,
    first_ms: Option<u64>,
}

impl StopSignals {
    fn new(notifiers: &[Arc<Notify>; 2]) -> Self {
        Self { notifiers: notifiers.clone(), clock: SystemClock::default(), first_ms: None }
    }

    fn receive(&mut self) {
        let now_ms = self.clock.now_ms();
        let [drain, stop_now] = &self.notifiers;
        match self.first_ms {
            None => {
                self.first_ms = Some(now_ms);
                drain.notify_one();
            }
            Some(first_ms) if now_ms.saturating_sub(first_ms) >= SAME_SIGNAL_MS => stop_now.notify_one(),
            Some(_) => {}
        }
    }
}
