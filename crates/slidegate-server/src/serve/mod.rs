//! Serving until told to stop.

mod lane;
mod limits;
mod linger;
mod paced;
mod patience;
mod pulse;
mod rewound;
pub(crate) mod stop;
mod streams;
mod tls;
pub(crate) mod wire;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, Response, Version};
use futures_util::future::join_all;
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use slidegate::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, info, warn};

pub use self::limits::Limits;
pub(crate) use self::tls::{FileProblem, certificates, private_key, unmatched};
pub use self::tls::{Tls, TlsFiles};

use self::lane::{Lane, Left};
use self::paced::Paced;
use self::patience::Patience;
use self::pulse::Pulse;
use self::rewound::Rewound;
use self::stop::Stop;
use crate::app::App;
use crate::http::Routes;
use crate::metrics::Metrics;
use crate::report::Reporting;
use crate::resp;
use crate::tokens::Admission;
use crate::traces;

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
pub struct Entrance<S> {
    listener: TcpListener,
    protocol: Protocol<S>,
}

#[derive(Debug)]
enum Protocol<S> {
    /// Decisions over HTTP, which have a short way of their own.
    Decisions(Arc<Routes<S>>),
    /// Anything else over HTTP.
    Routed(TowerToHyperService<Router>),
    Resp(Arc<resp::Shared>),
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

impl<S: Store + Reporting + 'static> Entrance<S> {
    /// One where decisions are asked for over HTTP.
    pub fn decisions(listener: TcpListener, app: &Arc<App<S>>, door: &Door) -> Self {
        let routes = Routes::new(Arc::clone(app), door.limits, door.metrics.clone());
        Self { listener, protocol: Protocol::Decisions(Arc::new(routes)) }
    }

    /// One where something else is asked for over HTTP.
    pub fn routed(listener: TcpListener, router: Router) -> Self {
        Self { listener, protocol: Protocol::Routed(TowerToHyperService::new(router)) }
    }

    /// One where the protocol of Redis is spoken, by those who know one of the passwords if there are any.
    pub fn resp(listener: TcpListener, passwords: Option<Arc<Admission>>) -> Self {
        Self { listener, protocol: Protocol::Resp(Arc::new(resp::Shared::new(passwords))) }
    }
}

/// Serves at all `entrances` until `shutdown` is done and the requests that have begun are answered, or have had
/// ten seconds to be.
pub async fn run<S: Store + Reporting + 'static>(
    entrances: Vec<Entrance<S>>,
    app: Arc<App<S>>,
    door: Door,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let open = GracefulShutdown::new();
    let (stop, stopped) = watch::channel(());
    let house = House { app: &app, door: &door, open: &open, stop: &stopped };
    let accepting = entrances.iter().map(|entrance| accept(entrance, &house));
    tokio::select! {
        _ = join_all(accepting) => {}
        () = shutdown => info!(
            "told to stop: nobody new is let in, and requests that have begun may take {} s",
            DRAIN_MS / 1000
        ),
    }
    app.stop();
    drop(stop);
    // Nobody new is let in.
    drop(entrances);
    tokio::select! {
        () = open.shutdown() => {}
        () = app.clock().sleep(DRAIN_MS) => {
            warn!("some requests were not over after {DRAIN_MS} ms and are dropped");
        }
    }
}

/// What all entrances lead to.
struct House<'a, S> {
    app: &'a Arc<App<S>>,
    door: &'a Door,
    open: &'a GracefulShutdown,
    stop: &'a watch::Receiver<()>,
}

/// Each entrance has room of its own, so that one is not closed by a crowd at another.
async fn accept<S: Store + Reporting + 'static>(entrance: &Entrance<S>, house: &House<'_, S>) {
    let limits = &house.door.limits;
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut is_full = false;
    loop {
        let (stream, peer) = match entrance.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                house.app.clock().sleep(BREATH_MS).await;
                continue;
            }
        };
        // Closed at once: whoever is turned away can go elsewhere, and whoever waits cannot.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            if !std::mem::replace(&mut is_full, true) {
                warn!(connections = limits.connections, "no more connections are let in");
            }
            continue;
        };
        is_full = false;
        let guest = Guest {
            peer,
            protocol: entrance.protocol.clone(),
            app: Arc::clone(house.app),
            limits: *limits,
            watcher: house.open.watcher(),
            stop: house.stop.clone(),
        };
        let tls = house.door.tls.clone();
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
    watcher: Watcher,
    stop: watch::Receiver<()>,
}

impl<S: Store + Reporting + 'static> Guest<S> {
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

    async fn converse<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: I,
    ) -> Result<(), String> {
        let pulse = Arc::new(Pulse::new());
        match self.protocol {
            Protocol::Decisions(routes) => {
                let mut stream = Patience::new(stream, self.limits.head_timeout, Arc::clone(&pulse));
                let (mut before, mut may_be_http2) = (Vec::new(), true);
                // Only hyper says what a trace needs.
                if !traces::are_sent() {
                    let lane = Lane::new(stream, &routes, &pulse, Stop::new(self.stop.clone())).run();
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
                let is_last = !matches!(self.stop.has_changed(), Ok(false));
                let talk = Talk { limits: &self.limits, pulse, may_be_http2, is_last };
                converse(Rewound::new(stream, before), talk, self.watcher, answer).await
            }
            Protocol::Routed(router) => {
                let answer = move |request| {
                    let answered = router.call(request);
                    async move {
                        let Ok(response) = answered.await;
                        response
                    }
                };
                let stream = Patience::new(stream, self.limits.head_timeout, Arc::clone(&pulse));
                let talk = Talk { limits: &self.limits, pulse, may_be_http2: true, is_last: false };
                converse(stream, talk, self.watcher, answer).await
            }
            Protocol::Resp(shared) => {
                let ended =
                    resp::converse(stream, &self.app, &shared, &self.limits, Stop::new(self.stop)).await;
                // Until then a stop waits for it.
                drop(self.watcher);
                ended
            }
        }
    }
}

/// How a connection is talked on.
struct Talk<'a> {
    limits: &'a Limits,
    pulse: Arc<Pulse>,
    may_be_http2: bool,
    /// Whether a request has begun when there was a stop, and no other is to follow. hyper, told of a stop before it has
    /// read anything, would close.
    is_last: bool,
}

/// Requests and answers on one connection, HTTP/1.1 or 2 as it begins.
async fn converse<I, A, F, B>(
    stream: I,
    Talk { limits, pulse, may_be_http2, is_last }: Talk<'_>,
    watcher: Watcher,
    answer: A,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `Patience` looks after the time for the head: hyper would set a timer for each.
    builder.http1().header_read_timeout(None).max_buf_size(limits::HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits.head_timeout))
        .keep_alive_timeout(limits.head_timeout)
        .max_header_list_size(limits::HEAD_BYTES as u32)
        .max_send_buf_size(limits::PIECE_BYTES)
        .max_concurrent_streams(limits::STREAMS);
    builder.http1().keep_alive(!is_last);
    if !may_be_http2 {
        builder = builder.http1_only();
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let is_one_of_many = request.version() == Version::HTTP_2;
        let (answered, pulse) = (answer(request), Arc::clone(&pulse));
        async move {
            let work = if is_one_of_many { Some(pulse.streams().begin().await) } else { None };
            pulse.begin();
            let response = answered.await;
            pulse.end();
            Ok::<_, Infallible>(response.map(|body| match work {
                None => Paced::whole(body, &pulse),
                Some(work) => Paced::in_pieces(body, work.streams()),
            }))
        }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let ended = if is_last {
        let ended = connection.await;
        // Until then a stop waits for it.
        drop(watcher);
        ended
    } else {
        watcher.watch(connection).await
    };
    ended.map_err(|error| error.to_string())
}
