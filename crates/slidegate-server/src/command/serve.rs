//! `slidegate serve`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tracing::warn;
use tracing_subscriber::EnvFilter;

use super::Failure;
use super::envoy::EnvoyArguments;
use super::listening::{bind, bind_or_leave};
use crate::admin;
use crate::app::App;
use crate::changes::{Base, Desk, Keeper};
use crate::config::{Address, Config, Listen, StoreUrl};
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::reload::{Looks, Reload};
use crate::resp::Passwords;
use crate::rls;
use crate::serve::{Door, Entrance, Tls};
use crate::served::{Innermost, Served, Switched};
use crate::store::AnyStore;
use crate::tokens::Tokens;

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

    /// Where to serve HTTP; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_HTTP")]
    http: Option<Address>,

    /// Where to serve Envoy's rate limit service over gRPC, or off [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_GRPC")]
    grpc: Option<Listen>,

    #[command(flatten)]
    envoy: EnvoyArguments,

    /// Where to serve the protocol of Redis, or off [default: off]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_RESP")]
    resp: Option<Listen>,

    /// Where to serve the admin API, or off [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDR", env = "SLIDEGATE_ADMIN")]
    admin: Option<Listen>,
}

#[tokio::main]
pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    log_to_stderr();
    let (reload, reload_envoy) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    // Before anything is waited for: whoever starts it may send a signal at once.
    let mut asked = Vec::new();
    asked.extend(arguments.config.is_some().then(|| Arc::clone(&reload)));
    asked.extend(arguments.envoy.folder().is_some().then(|| Arc::clone(&reload_envoy)));
    let stop = signals(asked).map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    // Before there is anything to count.
    let metrics = Metrics::install().inspect_err(|error| warn!(%error, "nothing is counted")).ok();
    // Before it is read, lest a change in between be missed.
    let looks = arguments.config.as_deref().and_then(Looks::of);
    let config = match &arguments.config {
        Some(file) => Config::load(file).map_err(|problems| Failure::Files(vec![problems]))?,
        None => Config::sample(),
    };
    let envoy = arguments.envoy.load()?;
    let store_url = match &arguments.store {
        Some(url) => super::parse_store(url)?,
        None => config.store.clone().unwrap_or_default(),
    };
    let tls = config.tls.as_ref().map(Tls::load).transpose().map_err(Failure::new)?;
    let door = Door { limits: config.limits, tls, metrics };
    let opened = Served::open(&store_url, config.memory, &config.degrade).await;
    let store = opened.map_err(Failure::new)?;
    let listener = bind("http", &arguments.http.or(config.http.clone()).unwrap_or_default()).await?;
    let admin = admin_listener(arguments.admin, &config).await?;
    let grpc = bind_or_leave("grpc", arguments.grpc.or(config.grpc.clone()), "127.0.0.1:8081").await?;
    let resp = match arguments.resp.or(config.resp.clone()) {
        Some(Listen::At(address)) => Some(bind("resp", &address).await?),
        Some(Listen::Off) | None => None,
    };
    let places = Places {
        http: address_of(&listener)?,
        grpc: grpc.as_ref().map(address_of).transpose()?,
        resp: resp.as_ref().map(address_of).transpose()?,
        admin: admin.as_ref().map(address_of).transpose()?,
    };
    // Somebody who does not read it is no reason not to serve.
    let _ = io::stdout()
        .write_all(greeting(&places, door.tls.is_some(), &store_url, &config.policies).as_bytes());
    let app = Arc::new(
        App::new(store, config.policies.clone()).logging(config.log).admitting(config.tokens.clone()),
    );
    let desk = desk(&app, &config, state_file(arguments.config.as_deref(), &config));
    desk.open().await;
    tokio::spawn({
        let desk = Arc::clone(&desk);
        async move { desk.follow().await }
    });
    let tokens = config.admin.tokens.clone();
    let passwords = passwords(&config.tokens);
    if let Some(envoy) = envoy {
        tokio::spawn(envoy.keep(&app, reload_envoy).run());
    }
    if let Some(file) = arguments.config {
        let desk = Arc::clone(&desk);
        tokio::spawn(Reload { path: file, desk, first: config, looks, asked: reload }.run());
    }
    let mut entrances = vec![Entrance::decisions(listener, &app, &door)];
    if let Some(listener) = grpc {
        let router = rls::router(Arc::clone(&app), door.limits.body_timeout).map_err(Failure::new)?;
        entrances.push(Entrance::routed(listener, router));
    }
    entrances.extend(admin.map(|listener| Entrance::routed(listener, admin::router(desk, tokens))));
    entrances.extend(resp.map(|listener| Entrance::resp(listener, passwords)));
    crate::serve::run(entrances, app, door, stop).await;
    Ok(ExitCode::SUCCESS)
}

/// Tokens are the passwords where there is no header to put them into.
fn passwords(tokens: &Tokens) -> Option<Passwords> {
    let tokens = tokens.clone();
    (!tokens.is_empty()).then(|| Passwords::new(move |word| tokens.who_has(word.as_bytes()).is_some()))
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A second subscriber in one process is refused; the first one stays, and that is as good.
    let is_terminal = io::stderr().is_terminal();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(is_terminal)
        .try_init();
}

/// Where changes are kept if the counts are in memory: where the file says, or where systemd has made room, or beside
/// the file.
fn state_file(config_file: Option<&Path>, config: &Config) -> PathBuf {
    const NAME: &str = "slidegate.state.json";
    let of_service = || std::env::var_os("STATE_DIRECTORY").map(|folder| PathBuf::from(folder).join(NAME));
    let beside = || config_file.map_or_else(|| PathBuf::from(NAME), |file| file.with_extension("state.json"));
    config.admin.state.clone().or_else(of_service).unwrap_or_else(beside)
}

fn desk(app: &Arc<App<Switched>>, config: &Config, state_file: PathBuf) -> Arc<Desk> {
    let keeper = match app.store().innermost() {
        AnyStore::Memory(_) => Keeper::File(state_file),
        AnyStore::Redis(_) | AnyStore::Postgres(_) => Keeper::Store(Arc::clone(app)),
    };
    let base = Base { policies: config.policies.clone(), switches: config.degrade.switches.clone() };
    Arc::new(Desk::new(Arc::clone(app), keeper, base))
}

/// Where those who look after it are served, unless whoever is elsewhere could come in without a token.
async fn admin_listener(asked: Option<Listen>, config: &Config) -> Result<Option<TcpListener>, Failure> {
    let asked = asked.or(config.admin.listen.clone());
    config.admin.listen_at(asked.clone()).map_err(|message| Failure::new(format!("admin: {message}")))?;
    bind_or_leave("admin", asked, "127.0.0.1:8082").await
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::new(error.to_string()))
}

/// Where what is served.
struct Places {
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

/// What is served, where, and a line to paste into a shell.
fn greeting(places: &Places, is_tls: bool, store: &StoreUrl, policies: &Policies) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    let mut text = format!("slidegate serves {scheme}://{}\nstore: {store}\n", places.http);
    for policy in policies.iter() {
        let quotas: Vec<_> = policy.quotas().iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "policy {}: {}", policy.name(), quotas.join(", "));
    }
    if let Some(address) = places.grpc {
        let _ = writeln!(text, "grpc: {address}");
    }
    if let Some(address) = places.resp {
        let scheme = if is_tls { "rediss" } else { "redis" };
        let _ = writeln!(text, "resp: {scheme}://{address}");
    }
    if let Some(address) = places.admin {
        let _ = writeln!(text, "admin: {scheme}://{address}");
    }
    let subject = match policies.names().next() {
        Some(name) => format!(r#""policy": {}"#, serde_json::json!(name)),
        None => r#""quotas": ["100/1m"]"#.to_owned(),
    };
    let body = format!(r#"{{{subject}, "key": "user:1"}}"#).replace('\'', r"'\''");
    let _ = writeln!(text, "try: curl -si {scheme}://{}/v1/check -d '{body}'", reachable(places.http));
    text
}

/// An address that listens on all interfaces is not one to connect to.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Done at the first SIGTERM or Ctrl-C; SIGHUP asks for a `reload`. They are caught from the call on, not from the first poll.
#[cfg(unix)]
fn signals(reload: Vec<Arc<Notify>>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
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
    })
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature everywhere")]
fn signals(_: Vec<Arc<Notify>>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
