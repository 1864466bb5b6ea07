//! Serving until told to stop.

mod activity;
pub(crate) mod buffered_stream;
pub(crate) mod cork;
mod http;
pub(crate) mod http1_fast;
mod io_timeout;
mod limits;
pub(crate) mod lingering_close;
mod paced_body;
mod request_stream;
pub(crate) mod stop;
mod streams;
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use futures_util::future::join_all;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use slidegate::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, info, warn};

pub use self::limits::Limits;
pub(crate) use self::tls::{FileProblem, certificates, private_key, unmatched};
pub use self::tls::{Tls, TlsFiles};

use self::activity::Activity;
use self::cork::Cork;
use self::http::{Talk, converse};
use self::http1_fast::{Lane, Left};
use self::io_timeout::IoTimeout;
use self::stop::{Phase, Stop};
use crate::app::App;
use crate::metrics::Metrics;
use crate::protocols::http::Routes;
use crate::protocols::resp;
use crate::store_status::StatusSource;
use crate::tokens::Authenticator;
use crate::traces;

/// How long requests that have begun may take after a stop was asked for.
const DRAIN_MS: u64 = 10_000;
/// How long of that an idle connection is kept, so that its next response can announce its end.
const GRACE_MS: u64 = 1000;
/// The most connections that a stop accepts from the kernel's queue, as many as Linux keeps unless set otherwise.
const MAX_QUEUED: usize = 4096;
/// How long to wait when no connection can be accepted, most likely because too many files are open.
const BREATH_MS: u64 = 50;

/// How connections are let in.
#[derive(Clone, Debug, Default)]
pub struct ListenerSettings {
    /// What a connection may take.
    pub limits: Limits,
    /// Only with TLS, if there is any.
    pub tls: Option<Tls>,
    /// What is counted, if anything is.
    pub metrics: Option<Metrics>,
}

/// One way in: where it listens, and what is spoken there.
#[derive(Debug)]
pub struct ProtocolListener<S> {
    listener: TcpListener,
    protocol: Protocol<S>,
}

#[derive(Debug)]
enum Protocol<S> {
    /// Decisions over HTTP, which have a short way of their own.
    Decisions(Arc<Routes<S>>),
    /// Anything else over HTTP.
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
    /// One where decisions are asked for over HTTP.
    pub fn decisions(listener: TcpListener, app: &Arc<App<S>>, door: &ListenerSettings) -> Self {
        let routes = Routes::new(Arc::clone(app), door.limits, door.metrics.clone());
        Self { listener, protocol: Protocol::Decisions(Arc::new(routes)) }
    }

    /// One where something else is asked for over HTTP.
    pub fn routed(listener: TcpListener, router: Router) -> Self {
        Self { listener, protocol: Protocol::Routed(TowerToHyperService::new(router)) }
    }

    /// One where the protocol of Redis is spoken, by those who know one of the passwords if there are any.
    pub fn resp(listener: TcpListener, passwords: Option<Arc<Authenticator>>) -> Self {
        Self { listener, protocol: Protocol::Resp(Arc::new(resp::RespState::new(passwords))) }
    }
}

/// Serves at all `entrances` until `shutdown` is done and the requests that have begun are answered, or have had
/// ten seconds to be.
///
/// A request may be on its way on any connection, so none is closed at once: its next response announces the end. Where no
/// request comes within the grace period, it is closed without one.
pub async fn run<S: Store + StatusSource + 'static>(
    entrances: Vec<ProtocolListener<S>>,
    app: Arc<App<S>>,
    door: ListenerSettings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let (stop, stopped) = watch::channel(Phase::Open);
    let gates: Vec<_> =
        entrances.into_iter().map(|entrance| Gate::new(entrance, &app, &door, &stopped)).collect();
    drop(stopped);
    tokio::select! {
        _ = join_all(gates.iter().map(Gate::accept)) => {}
        () = shutdown => info!(
            "told to stop: nobody new is let in, and requests that have begun may take {} s",
            DRAIN_MS / 1000
        ),
    }
    app.stop();
    stop.send_replace(Phase::Draining);
    // No new connection is accepted.
    gates.into_iter().for_each(Gate::close);
    let clock = app.clock();
    let close_idle = async {
        clock.sleep(GRACE_MS).await;
        stop.send_replace(Phase::Closing);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.closed() => {}
        () = close_idle => {}
        () = clock.sleep(DRAIN_MS) => {
            warn!("some requests were not over after {DRAIN_MS} ms and are dropped");
        }
    }
}

/// An entrance that is open.
struct Gate<S> {
    listener: TcpListener,
    hall: Hall<S>,
}

/// What an entrance leads to. Each has room of its own, so that one is not closed by a crowd at another.
struct Hall<S> {
    protocol: Protocol<S>,
    app: Arc<App<S>>,
    door: ListenerSettings,
    stop: watch::Receiver<Phase>,
    room: Arc<Semaphore>,
    is_full: AtomicBool,
}

impl<S: Store + StatusSource + 'static> Gate<S> {
    fn new(
        ProtocolListener { listener, protocol }: ProtocolListener<S>,
        app: &Arc<App<S>>,
        door: &ListenerSettings,
        stop: &watch::Receiver<Phase>,
    ) -> Self {
        let hall = Hall {
            protocol,
            app: Arc::clone(app),
            door: door.clone(),
            stop: stop.clone(),
            room: Arc::new(Semaphore::new(door.limits.connections)),
            is_full: AtomicBool::new(false),
        };
        Self { listener, hall }
    }

    /// Lets connections in, for as long as it is polled.
    async fn accept(&self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => self.hall.let_in(stream, peer),
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    self.hall.app.clock().sleep(BREATH_MS).await;
                }
            }
        }
    }

    /// Accepts the connections that wait in the kernel's queue, with requests that may be there: closing the listener resets
    /// them. Clients that connect faster than this accepts do not keep it from ending.
    fn close(self) {
        let accepted = || -> io::Result<_> {
            let listener = self.listener.into_std()?;
            let accept = move |_| match listener.accept() {
                Ok(accepted) => Some(Some(accepted)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                // The client has hung up, or too many files are open.
                Err(_) => Some(None),
            };
            Ok((0..MAX_QUEUED).map_while(accept).flatten())
        };
        let streams = accepted().inspect_err(|error| debug!(%error, "cannot accept what waits"));
        for (stream, peer) in streams.into_iter().flatten() {
            match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                Ok(stream) => self.hall.let_in(stream, peer),
                Err(error) => debug!(%error, "cannot accept a connection"),
            }
        }
    }
}

impl<S: Store + StatusSource + 'static> Hall<S> {
    fn let_in(&self, stream: TcpStream, peer: SocketAddr) {
        let limits = self.door.limits;
        // Closed at once: whoever is turned away can go elsewhere, and whoever waits cannot.
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            if !self.is_full.swap(true, Ordering::Relaxed) {
                warn!(connections = limits.connections, "no more connections are let in");
            }
            return;
        };
        self.is_full.store(false, Ordering::Relaxed);
        let guest = Guest {
            peer,
            protocol: self.protocol.clone(),
            app: Arc::clone(&self.app),
            limits,
            stop: self.stop.clone(),
        };
        let tls = self.door.tls.clone();
        tokio::spawn(async move {
            guest.serve(stream, tls).await;
            drop(place);
        });
    }
}

/// A connection that was let in, and all that it needs.
struct Guest<S> {
    peer: SocketAddr,
    protocol: Protocol<S>,
    app: Arc<App<S>>,
    limits: Limits,
    stop: watch::Receiver<Phase>,
}

impl<S: Store + StatusSource + 'static> Guest<S> {
    async fn serve(self, stream: TcpStream, tls: Option<Tls>) {
        // Answers are small; waiting to fill a packet would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let served = match tls {
            None => self.converse(stream).await,
            Some(tls) => match tls.accept(stream, self.limits.head_timeout).await {
                Ok(stream) => self.converse(stream).await,
                Err(error) => Err(error),
            },
        };
        if let Err(error) = served {
            debug!(error, "a connection ended");
        }
    }

    async fn converse<I: AsyncRead + AsyncWrite + Cork + Unpin + Send + 'static>(
        self,
        stream: I,
    ) -> Result<(), String> {
        let activity = Arc::new(Activity::new());
        match self.protocol {
            Protocol::Decisions(routes) => {
                let mut stream = IoTimeout::new(stream, self.limits.head_timeout, Arc::clone(&activity));
                let (mut before, mut may_be_http2) = (Vec::new(), true);
                // Only hyper says what a trace needs.
                if !traces::are_sent() {
                    let lane = Lane::new(stream, &routes, &activity, Stop::new(self.stop.clone())).run();
                    match lane.await.map_err(|error| error.to_string())? {
                        Left::Ended => return Ok(()),
                        Left::Other { stream: other, unread, may_be_http2: may_be } => {
                            (stream, before, may_be_http2) = (other, unread, may_be);
                        }
                    }
                }
                let answer = move |request| {
                    let routes = Arc::clone(&routes);
                    async move { routes.answer(request, self.peer).await }
                };
                let talk = Talk {
                    limits: &self.limits,
                    activity,
                    may_be_http2,
                    unread: before,
                    stop: Stop::new(self.stop),
                };
                converse(stream, talk, answer).await
            }
            Protocol::Routed(router) => {
                let answer = move |request| {
                    let answered = router.call(request);
                    async move {
                        let Ok(response) = answered.await;
                        response
                    }
                };
                let stream = IoTimeout::new(stream, self.limits.head_timeout, Arc::clone(&activity));
                let stop = Stop::new(self.stop);
                let talk =
                    Talk { limits: &self.limits, activity, may_be_http2: true, unread: Vec::new(), stop };
                converse(stream, talk, answer).await
            }
            Protocol::Resp(shared) => {
                resp::serve_connection(stream, &self.app, &shared, &self.limits, Stop::new(self.stop)).await
            }
        }
    }
}
