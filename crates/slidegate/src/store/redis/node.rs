//! One server: gathers what waits for it into calls, and keeps a connection to it.
//!
//! Whatever waits while calls are under way goes together in the next one. Nobody waits for company: a lone request
//! leaves at once.

use std::future::{poll_fn, ready};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc, watch};

use super::call::{Gathered, MAX_WEIGHT, Request};
use super::cluster::Cluster;
use super::endpoint::{Access, Link, Target};
use super::exchange::{Exchange, Origin, Outcome, exchange, measure_skew};
use super::skew::Skew;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::supervise::supervise;

/// Two, so that one call is prepared and its answers are read while the server is busy with the other.
const MAX_CALLS: usize = 2;
/// As long as no more requests than this are under way the server has little to do, and nobody waits for others.
const MAX_SINGLE: usize = 8;

/// What the connections of a store share.
pub(super) struct Shared {
    pub(super) access: Access,
    pub(super) budget: Duration,
    pub(super) max_waiting: usize,
    pub(super) given_time: Option<Arc<dyn Clock>>,
}

/// How a server is doing.
#[derive(Clone, Debug)]
pub(super) enum Health {
    Connecting,
    Up,
    Down(StoreError),
}

/// The way to a node.
#[derive(Clone)]
pub(super) struct NodeHandle {
    queue: mpsc::Sender<Request>,
    health: watch::Receiver<Health>,
    pub(super) skew: Arc<Skew>,
}

impl NodeHandle {
    /// Puts a request into the queue, or fails if that is full.
    pub(super) fn send_now(&self, request: Request) {
        match self.queue.try_send(request) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(request)) => {
                let waiting = self.queue.max_capacity();
                request.answer(Err(StoreError::transient(format!("redis: {waiting} calls wait already"))));
            }
            Err(mpsc::error::TrySendError::Closed(request)) => request.answer(Err(gone())),
        }
    }

    /// Puts requests into the queue as soon as there is room for all of them, so that they leave together. There are not
    /// more than may wait.
    pub(super) async fn send_together(&self, requests: Vec<Request>) {
        match self.queue.reserve_many(requests.len()).await {
            Ok(places) => {
                let mut left = requests.len();
                for (place, mut request) in places.zip(requests) {
                    left -= 1;
                    request.is_followed = left > 0;
                    place.send(request);
                }
            }
            Err(_) => requests.into_iter().for_each(|request| request.answer(Err(gone()))),
        }
    }

    /// Whether both lead to the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.queue.same_channel(&other.queue)
    }

    /// Waits until it is known whether the server can be reached.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut health = self.health.clone();
        match health.wait_for(|health| !matches!(health, Health::Connecting)).await.as_deref() {
            Ok(Health::Down(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(gone()),
        }
    }
}

fn gone() -> StoreError {
    StoreError::transient("redis: the connection's task is gone")
}

/// Starts the task that serves a server, for as long as somebody holds its handle.
pub(super) fn start(target: Target, shared: Arc<Shared>, cluster: Weak<Cluster>) -> NodeHandle {
    let (queue, waiting) = mpsc::channel(shared.max_waiting);
    let (health, watched) = watch::channel(Health::Connecting);
    let skew = Arc::new(Skew::default());
    let origin = Origin { cluster, host: target.host(), skew: Arc::clone(&skew) };
    let node = Arc::new(Mutex::new(Node { waiting, target, shared, origin, health }));
    supervise("the task of a redis server", move || {
        let node = Arc::clone(&node);
        async move { node.lock().await.run().await }
    });
    NodeHandle { queue, health: watched, skew }
}

/// Polls a call once and lets the connection's task run, so that it is on its way before anything else is done.
async fn set_out<F: Future<Output = Exchange>>(call: F) -> impl Future<Output = Exchange> {
    let mut call = Box::pin(call);
    let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    tokio::task::yield_now().await;
    match polled {
        // The connection was gone already.
        Poll::Ready(exchange) => Either::Left(ready(exchange)),
        Poll::Pending => Either::Right(call),
    }
}

struct Node {
    waiting: mpsc::Receiver<Request>,
    target: Target,
    shared: Arc<Shared>,
    origin: Origin,
    health: watch::Sender<Health>,
}

/// Nobody holds the handle any more.
struct Closed;

/// Why a connection is given up.
enum End {
    /// It ended, as connections do.
    HungUp,
    /// It cannot be had, or whoever is at its other end cannot serve.
    Useless(StoreError),
}

impl Node {
    async fn run(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let end = match self.connect().await {
                Ok(Ok(link)) => {
                    if matches!(self.health.send_replace(Health::Up), Health::Down(_)) {
                        tracing::info!(server = link.place, "redis is back");
                    }
                    self.serve(link, &mut backoff).await
                }
                Ok(Err(error)) => Ok(End::Useless(error)),
                Err(Closed) => return,
            };
            let paused = match end {
                Ok(End::HungUp) => Ok(()),
                Ok(End::Useless(error)) => self.stay_away(error, backoff.next_ms()).await,
                Err(Closed) => return,
            };
            if paused.is_err() {
                return;
            }
        }
    }

    /// Leaves a server alone for a while, and callers know.
    async fn stay_away(&mut self, error: StoreError, pause_ms: u64) -> Result<(), Closed> {
        // Once for each outage, however many attempts it takes.
        if matches!(self.health.send_replace(Health::Down(error.clone())), Health::Down(_)) {
            tracing::debug!(%error, pause_ms, "redis is still away");
        } else {
            tracing::warn!(%error, "redis is away");
        }
        if let Some(cluster) = self.origin.cluster.upgrade() {
            cluster.refresh();
        }
        self.refuse_until(SystemClock::default().sleep(pause_ms)).await
    }

    /// Connects. After a connection that worked, callers wait for this as long as they can; after an attempt that
    /// failed they are told at once.
    async fn connect(&mut self) -> Result<Result<Link, StoreError>, Closed> {
        let (target, shared) = (self.target.clone(), Arc::clone(&self.shared));
        let skew = Arc::clone(&self.origin.skew);
        let attempt = async move {
            let mut link = target.connect(&shared.access).await?;
            measure_skew(&mut link, &shared, &skew).await?;
            Ok(link)
        };
        if matches!(*self.health.borrow(), Health::Down(_)) {
            self.refuse_until(attempt).await
        } else {
            Ok(attempt.await)
        }
    }

    /// Tells callers why they get no answer, until `done`.
    async fn refuse_until<T>(&mut self, done: impl Future<Output = T>) -> Result<T, Closed> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                biased;
                result = &mut done => return Ok(result),
                request = self.waiting.recv() => match (request, &*self.health.borrow()) {
                    (Some(request), Health::Down(error)) => request.answer(Err(error.clone())),
                    (Some(request), _) => request.answer(Err(gone())),
                    (None, _) => return Err(Closed),
                },
            }
        }
    }

    /// Serves callers until the connection breaks, or the server turns out to be of no use.
    async fn serve(&mut self, mut link: Link, backoff: &mut Backoff) -> Result<End, Closed> {
        let _listening = self.shared.access.ears().listen(link.connection.clone());
        let mut in_flight = FuturesUnordered::new();
        let (mut sent, mut was_useful, mut is_closed, mut end) = (0, false, false, None);
        loop {
            let may_send = in_flight.len() < MAX_CALLS || sent < MAX_SINGLE;
            tokio::select! {
                biased;
                // Before the next answers are read, or two calls that were answered together would go out together
                // again, and server and caller would take turns at being idle.
                request = self.waiting.recv(), if may_send && end.is_none() && !is_closed => match request {
                    None => is_closed = true,
                    Some(request) => {
                        let calls = self.gather(request, sent).await;
                        if calls.requests > 0 {
                            sent += calls.requests;
                            let given_ms = self.shared.given_time.as_ref().map(|clock| clock.now_ms());
                            let call = exchange(link.connection.clone(), calls, given_ms, self.shared.budget);
                            in_flight.push(set_out(call).await);
                        }
                    }
                },
                Some(exchange) = in_flight.next() => {
                    let exchange: Exchange = exchange;
                    sent -= exchange.requests;
                    match exchange.settle(&self.shared, &self.origin) {
                        Outcome::Fine => {
                            was_useful = true;
                            *backoff = Backoff::default();
                        }
                        // One that has worked is worth another attempt at once.
                        Outcome::Broken(_) if was_useful => end = end.or(Some(End::HungUp)),
                        Outcome::Broken(error) | Outcome::WrongServer(error) => end = Some(End::Useless(error)),
                    }
                    // Let those who were just answered ask again, so that they go together.
                    tokio::task::yield_now().await;
                }
                // With calls under way their own ends tell more.
                _ = link.is_over.changed(), if in_flight.is_empty() => {
                    let error = || StoreError::transient(format!("redis at {}: it hangs up at once", link.place));
                    return Ok(if was_useful { End::HungUp } else { End::Useless(error()) });
                }
            }
            // Whoever is under way is heard out first.
            if in_flight.is_empty() {
                if is_closed {
                    return Err(Closed);
                }
                if let Some(end) = end.take() {
                    return Ok(end);
                }
            }
        }
    }

    /// Takes half of all that is waiting or under way, so that both calls in flight are of one size and neither
    /// side idles; and whatever was asked for together, so that it is decided in one round trip.
    async fn gather(&mut self, first: Request, sent: usize) -> Gathered {
        let share = (self.waiting.len() + 1 + sent).div_ceil(MAX_CALLS);
        let mut calls = Gathered::default();
        let mut next = Some(first);
        while let Some(mut request) = next {
            // Not any more, should it be sent elsewhere.
            let is_followed = std::mem::take(&mut request.is_followed);
            if request.reply.leave() {
                calls.add(request);
            }
            next = if is_followed {
                // It has its place in the queue already.
                self.waiting.recv().await
            } else if calls.requests >= share || calls.weight >= MAX_WEIGHT {
                None
            } else {
                self.waiting.try_recv().ok()
            };
        }
        calls
    }
}
