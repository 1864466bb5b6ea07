//! Serving until told to stop.

mod limits;
mod patience;
mod tls;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use futures_util::future::join_all;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use slidegate::{Clock, Store};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

pub use self::limits::Limits;
pub use self::tls::{Tls, TlsFiles};

use self::patience::Patience;
use crate::app::App;
use crate::metrics::Metrics;

/// How long requests that have begun may take after a stop was asked for.
const DRAIN_MS: u64 = 10_000;
/// How long to wait when no connection can be accepted, most likely because too many files are open.
const BREATH_MS: u64 = 50;

/// How connections are let in.
#[derive(Clone, Debug, Default)]
pub struct Door {
    /// What a connection may take.
    pub limits: Limits,
    /// Only with TLS, if there is any.
    pub tls: Option<Tls>,
    /// What is counted, if anything is.
    pub metrics: Option<Metrics>,
}

/// One way in: where it listens, and what is spoken there.
#[derive(Debug)]
pub struct Entrance {
    listener: TcpListener,
    router: Router,
}

impl Entrance {
    /// One where HTTP is spoken.
    pub fn http(listener: TcpListener, router: Router) -> Self {
        Self { listener, router }
    }
}

/// Serves at all `entrances` until `shutdown` is done and the requests that have begun are answered, or have had
/// ten seconds to be.
pub async fn run<S: Store + 'static>(
    entrances: Vec<Entrance>,
    app: Arc<App<S>>,
    door: Door,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let open = GracefulShutdown::new();
    let accepting = entrances.iter().map(|entrance| accept(entrance, &door, &open, app.clock()));
    tokio::select! {
        _ = join_all(accepting) => {}
        () = shutdown => info!("draining"),
    }
    app.stop();
    // Nobody new is let in.
    drop(entrances);
    tokio::select! {
        () = open.shutdown() => {}
        () = app.clock().sleep(DRAIN_MS) => {
            warn!("some requests were not over after {DRAIN_MS} ms and are dropped");
        }
    }
}

/// Each entrance has room of its own, so that one is not closed by a crowd at another.
async fn accept(entrance: &Entrance, door: &Door, open: &GracefulShutdown, clock: &dyn Clock) {
    let room = Arc::new(Semaphore::new(door.limits.connections));
    let mut is_full = false;
    loop {
        let stream = match entrance.listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                clock.sleep(BREATH_MS).await;
                continue;
            }
        };
        // Closed at once: whoever is turned away can go elsewhere, and whoever waits cannot.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            if !std::mem::replace(&mut is_full, true) {
                warn!(connections = door.limits.connections, "no more connections are let in");
            }
            continue;
        };
        is_full = false;
        let (router, door, watcher) = (entrance.router.clone(), door.clone(), open.watcher());
        tokio::spawn(async move {
            serve(stream, router, door, watcher).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, router: Router, door: Door, watcher: Watcher) {
    // Answers are small; waiting to fill a packet would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY");
    }
    let served = match &door.tls {
        None => converse(stream, router, &door.limits, watcher).await,
        Some(tls) => match tls.accept(stream, door.limits.head_timeout).await {
            Ok(stream) => converse(stream, router, &door.limits, watcher).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = served {
        debug!(error, "a connection ended");
    }
}

/// Requests and answers on one connection, HTTP/1.1 or 2 as it begins.
async fn converse<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: I,
    router: Router,
    limits: &Limits,
    watcher: Watcher,
) -> Result<(), String> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits::HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits.head_timeout))
        .keep_alive_timeout(limits.head_timeout)
        .max_header_list_size(limits::HEAD_BYTES as u32)
        .max_concurrent_streams(limits::STREAMS);
    let stream = TokioIo::new(Patience::new(stream, limits.head_timeout));
    let connection = builder.serve_connection(stream, TowerToHyperService::new(router)).into_owned();
    watcher.watch(connection).await.map_err(|error| error.to_string())
}
