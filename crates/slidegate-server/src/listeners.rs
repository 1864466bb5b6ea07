//! The listeners of the service: accept connections, let their protocol serve them, and drain them at a stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use futures_util::future::join_all;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::store::Store;
use slidegate_config::Limits;
use slidegate_engine::{Authenticator, Engine, StatusSource};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, info, warn};

use crate::metrics::Metrics;
use crate::net::cork::Cork;
use crate::net::hyper_connection::{ConnectionState, serve_connection};
use crate::net::io_timeout::{Activity, IoTimeout};
use crate::net::stop::{Stop, StopPhase};
use crate::net::tls::Tls;
use crate::protocols::http::Routes;
use crate::protocols::http::fast_path::{self, FastPathEnd};
use crate::protocols::resp;
use crate::protocols::router::router;

/// Time limit of a drain.
const DRAIN_MS: u64 = 10_000;
/// Part of the drain during which an idle connection stays open, so that its next response can announce the end.
const GRACE_MS: u64 = 1000;
/// Maximum number of connections that a stop accepts from the kernel's queue; the default queue length of Linux.
const MAX_QUEUED: usize = 4096;
/// Pause after a failed accept. The most likely cause is too many open files.
const ACCEPT_BACKOFF_MS: u64 = 50;

/// Settings of all listeners.
#[derive(Clone, Debug, Default)]
pub struct ListenerSettings {
    /// Limits of connections.
    pub limits: Limits,
    /// TLS; `None` for plain TCP.
    pub tls: Option<Tls>,
    /// Metrics for `GET /metrics`.
    pub metrics: Option<Metrics>,
}

/// A bound listener and its protocol.
#[derive(Debug)]
pub struct ProtocolListener<S> {
    listener: TcpListener,
    protocol: Protocol<S>,
}

#[derive(Debug)]
enum Protocol<S> {
    /// The HTTP API, with the fast path for plain requests.
    Decisions(Arc<Routes<S>>),
    /// A router over HTTP.
    Routed(TowerToHyperService<Router>),
    Resp(Arc<resp::RespState>),
}

impl<S> Clone for Protocol<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Decisions(routes) => Self::Decisions(Arc::clone(routes)),
            Self::Routed(router) => Self::Routed(router.clone()),
            Self::Resp(shared) => Self::Resp(Arc::clone(shared)),
        }
    }
}

impl<S: Store + StatusSource + 'static> ProtocolListener<S> {
    /// Returns a listener for the HTTP API of decisions.
    pub fn decisions(listener: TcpListener, engine: &Arc<Engine<S>>, settings: &ListenerSettings) -> Self {
        let router = router(Arc::clone(engine), settings.limits, settings.metrics.clone());
        let routes = Routes::new(Arc::clone(engine), settings.limits, router);
        Self { listener, protocol: Protocol::Decisions(Arc::new(routes)) }
    }

    /// Returns an HTTP listener for the routes of `router`.
    pub fn routed(listener: TcpListener, router: Router) -> Self {
        Self { listener, protocol: Protocol::Routed(TowerToHyperService::new(router)) }
    }

    /// Returns a listener for RESP. With `passwords`, clients must authenticate.
    pub fn resp(listener: TcpListener, passwords: Option<Arc<Authenticator>>) -> Self {
        Self { listener, protocol: Protocol::Resp(Arc::new(resp::RespState::new(passwords))) }
    }
}

/// Serves all `listeners` until `shutdown` completes, and then drains their connections for at most ten seconds.
///
/// Any connection may have a request in transit, so a drain closes none at once: the next response announces the end of its
/// connection. A connection without a request is closed after the grace period.
pub async fn run<S: Store + StatusSource + 'static>(
    listeners: Vec<ProtocolListener<S>>,
    engine: Arc<Engine<S>>,
    settings: ListenerSettings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let (stop, receiver) = watch::channel(StopPhase::Running);
    let acceptors: Vec<_> = listeners
        .into_iter()
        .map(|listener| Acceptor::new(listener, &engine, &settings, &receiver))
        .collect();
    drop(receiver);
    tokio::select! {
        _ = join_all(acceptors.iter().map(Acceptor::accept)) => {}
        () = shutdown => info!(
            "stopping: no new connections are accepted; requests in progress have {} s to finish",
            DRAIN_MS / 1000
        ),
    }
    engine.readiness().drain();
    stop.send_replace(StopPhase::Draining);
    acceptors.into_iter().for_each(Acceptor::close);
    let clock = engine.clock();
    let close_idle = async {
        clock.sleep(GRACE_MS).await;
        stop.send_replace(StopPhase::Closing);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.closed() => {}
        () = close_idle => {}
        () = clock.sleep(DRAIN_MS) => {
            warn!("closed connections with requests in progress after {DRAIN_MS} ms");
        }
    }
}

/// Accepts the connections of one listener.
struct Acceptor<S> {
    listener: TcpListener,
    spawner: ConnectionSpawner<S>,
}

/// Spawns a task for each connection of one listener. Each listener has its own connection limit, so that the clients of one
/// cannot exhaust the limit of another.
struct ConnectionSpawner<S> {
    protocol: Protocol<S>,
    engine: Arc<Engine<S>>,
    settings: ListenerSettings,
    stop: watch::Receiver<StopPhase>,
    permits: Arc<Semaphore>,
    is_full: AtomicBool,
}

impl<S: Store + StatusSource + 'static> Acceptor<S> {
    fn new(
        ProtocolListener { listener, protocol }: ProtocolListener<S>,
        engine: &Arc<Engine<S>>,
        settings: &ListenerSettings,
        stop: &watch::Receiver<StopPhase>,
    ) -> Self {
        let spawner = ConnectionSpawner {
            protocol,
            engine: Arc::clone(engine),
            settings: settings.clone(),
            stop: stop.clone(),
            permits: Arc::new(Semaphore::new(settings.limits.connections)),
            is_full: AtomicBool::new(false),
        };
        Self { listener, spawner }
    }

    /// Accepts connections until the future is dropped.
    async fn accept(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => self.spawner.spawn(stream, peer),
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    self.spawner.engine.clock().sleep(ACCEPT_BACKOFF_MS).await;
                }
            }
        }
    }

    /// Accepts the connections in the kernel's queue, which may have sent requests, and closes the listener. A close
    /// without this resets them. The number is limited, so that clients that keep connecting cannot delay the end.
    fn close(self) {
        let accepted = || -> io::Result<_> {
            let listener = self.listener.into_std()?;
            let accept = move |_| match listener.accept() {
                Ok(accepted) => Some(Some(accepted)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                // The client has closed the connection, or too many files are open.
                Err(_) => Some(None),
            };
            Ok((0..MAX_QUEUED).map_while(accept).flatten())
        };
        let streams = accepted().inspect_err(|error| debug!(%error, "cannot accept the queued connections"));
        for (stream, peer) in streams.into_iter().flatten() {
            match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                Ok(stream) => self.spawner.spawn(stream, peer),
                Err(error) => debug!(%error, "cannot accept a connection"),
            }
        }
    }
}

impl<S: Store + StatusSource + 'static> ConnectionSpawner<S> {
    fn spawn(&self, stream: TcpStream, peer: SocketAddr) {
        let limits = self.settings.limits;
        // Above the limit, a connection is closed at once, so that the client can retry elsewhere instead of waiting.
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if !self.is_full.swap(true, Ordering::Relaxed) {
                warn!(
                    connections = limits.connections,
                    "connection limit reached; new connections are closed"
                );
            }
            return;
        };
        self.is_full.store(false, Ordering::Relaxed);
        let connection = Connection {
            peer,
            protocol: self.protocol.clone(),
            engine: Arc::clone(&self.engine),
            limits,
            stop: self.stop.clone(),
        };
        let tls = self.settings.tls.clone();
        tokio::spawn(async move {
            connection.serve(stream, tls).await;
            drop(permit);
        });
    }
}

/// An accepted connection, without its stream.
struct Connection<S> {
    peer: SocketAddr,
    protocol: Protocol<S>,
    engine: Arc<Engine<S>>,
    limits: Limits,
    stop: watch::Receiver<StopPhase>,
}

impl<S: Store + StatusSource + 'static> Connection<S> {
    async fn serve(self, stream: TcpStream, tls: Option<Tls>) {
        // Responses are small; Nagle's algorithm would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let result = match tls {
            None => self.serve_protocol(stream).await,
            Some(tls) => match tls.accept(stream, self.limits.head_timeout).await {
                Ok(stream) => self.serve_protocol(stream).await,
                Err(error) => Err(error),
            },
        };
        if let Err(error) = result {
            debug!(error, "connection failed");
        }
    }

    async fn serve_protocol<I: AsyncRead + AsyncWrite + Cork + Unpin + Send + 'static>(
        self,
        stream: I,
    ) -> Result<(), String> {
        let activity = Arc::new(Activity::new());
        match self.protocol {
            Protocol::Decisions(routes) => {
                let stream = IoTimeout::new(stream, self.limits.head_timeout, Arc::clone(&activity));
                let stop = Stop::new(self.stop.clone());
                let end = fast_path::serve(stream, &routes, &activity, stop).await;
                let (stream, unread, may_be_http2) = match end.map_err(|error| error.to_string())? {
                    FastPathEnd::Closed => return Ok(()),
                    FastPathEnd::HandedOver { stream, unread, may_be_http2 } => {
                        (stream, unread, may_be_http2)
                    }
                };
                let handler = move |request| {
                    let routes = Arc::clone(&routes);
                    async move { routes.respond(request, self.peer).await }
                };
                let stop = Stop::new(self.stop);
                let state = ConnectionState { limits: &self.limits, activity, may_be_http2, unread, stop };
                serve_connection(stream, state, handler).await
            }
            Protocol::Routed(router) => {
                let handler = move |request| {
                    let response = router.call(request);
                    async move {
                        let Ok(response) = response.await;
                        response
                    }
                };
                let stream = IoTimeout::new(stream, self.limits.head_timeout, Arc::clone(&activity));
                let stop = Stop::new(self.stop);
                let state = ConnectionState {
                    limits: &self.limits,
                    activity,
                    may_be_http2: true,
                    unread: Vec::new(),
                    stop,
                };
                serve_connection(stream, state, handler).await
            }
            Protocol::Resp(shared) => {
                resp::serve_connection(stream, &self.engine, &shared, &self.limits, Stop::new(self.stop))
                    .await
            }
        }
    }
}
