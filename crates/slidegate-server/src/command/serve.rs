//! `slidegate serve`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Notify;
use tracing::warn;
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::app::App;
use crate::config::{Address, Config, StoreUrl};
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::reload::{Looks, Reload};
use crate::serve::{Door, Tls};
use crate::served::Served;

/// How many connections may wait to be let in. If everybody connects at the same moment and this is full, the next one
/// tries again after a second.
const BACKLOG: u32 = 4096;

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
}

#[tokio::main]
pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    log_to_stderr();
    let reload = Arc::new(Notify::new());
    // Before anything is waited for: whoever starts it may send a signal at once.
    let has_file = arguments.config.is_some();
    let stop = signals(has_file.then(|| Arc::clone(&reload)))
        .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    // Before there is anything to count.
    let metrics = Metrics::install().inspect_err(|error| warn!(%error, "nothing is counted")).ok();
    // Before it is read, lest a change in between be missed.
    let looks = arguments.config.as_deref().and_then(Looks::of);
    let config = match &arguments.config {
        Some(file) => Config::load(file).map_err(|problems| Failure::Files(vec![problems]))?,
        None => Config::sample(),
    };
    let store_url = match &arguments.store {
        Some(url) => super::parse_store(url)?,
        None => config.store.clone().unwrap_or_default(),
    };
    let tls = config.tls.as_ref().map(Tls::load).transpose().map_err(Failure::new)?;
    let door = Door { limits: config.limits, tls, metrics };
    let opened = Served::open(&store_url, config.memory, &config.degrade).await;
    let store = opened.map_err(Failure::new)?;
    let listener = bind(&arguments.http.or(config.http.clone()).unwrap_or_default()).await?;
    let address = listener.local_addr().map_err(|error| Failure::new(error.to_string()))?;
    // Somebody who does not read it is no reason not to serve.
    let _ = io::stdout()
        .write_all(greeting(address, door.tls.is_some(), &store_url, &config.policies).as_bytes());
    let app = Arc::new(App::new(store, config.policies.clone()).logging(config.log));
    if let Some(file) = arguments.config {
        let app = Arc::clone(&app);
        tokio::spawn(Reload { path: file, app, first: config, looks, asked: reload }.run());
    }
    let served = crate::serve::run(listener, app, door, stop).await;
    served.map_err(|error| Failure::new(format!("cannot serve: {error}")))?;
    Ok(ExitCode::SUCCESS)
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

async fn bind(address: &Address) -> Result<TcpListener, Failure> {
    listen(address.as_str()).await.map_err(|error| {
        Failure::new(format!("cannot listen on {address}: {error}; choose another address with --http"))
    })
}

/// On the first of its addresses that can be had.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::other("it has no address");
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Else a server that has just ended keeps its port for a minute.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What is served, where, and a line to paste into a shell.
fn greeting(address: SocketAddr, is_tls: bool, store: &StoreUrl, policies: &Policies) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    let mut text = format!("slidegate serves {scheme}://{address}\nstore: {store}\n");
    for policy in policies.iter() {
        let quotas: Vec<_> = policy.quotas().iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "policy {}: {}", policy.name(), quotas.join(", "));
    }
    let subject = match policies.names().next() {
        Some(name) => format!(r#""policy": {}"#, serde_json::json!(name)),
        None => r#""quotas": ["100/1m"]"#.to_owned(),
    };
    let body = format!(r#"{{{subject}, "key": "user:1"}}"#).replace('\'', r"'\''");
    let _ = writeln!(text, "try: curl -si {scheme}://{}/v1/check -d '{body}'", reachable(address));
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
fn signals(reload: Option<Arc<Notify>>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = hang_up.recv() => match &reload {
                    Some(reload) => reload.notify_one(),
                    None => warn!("there is no file to read again; start with --config FILE"),
                },
            }
        }
    })
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature everywhere")]
fn signals(_: Option<Arc<Notify>>) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
