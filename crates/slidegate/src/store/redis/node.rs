//! One server: gathers what waits for it into calls, and keeps a connection to it.
//!
//! Whatever waits while calls are under way goes together in the next one. Nobody waits for company: a lone request
//! leaves at once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc, watch};

use super::backoff::Backoff;
use super::call::{Calls, Request};
use super::cluster::Cluster;
use super::endpoint::{Access, Link, Target};
use super::exchange::{Exchange, Outcome, exchange, measure_skew};
use super::skew::Skew;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// Two, so that one call is prepared and its answers are read while the server is busy with the other.
const MAX_IN_FLIGHT: usize = 2;
/// So many keys keep the server busy for some 0.3 ms; larger calls would save little more and delay others.
const MAX_BATCH: usize = 64;

/// What the connections of a store share.
pub(super) struct Shared {
    pub(super) access: Access,
    pub(super) budget: Duration,
    pub(super) max_waiting: usize,
    pub(super) given_time: Option<Arc<dyn Clock>>,
    pub(super) skew: Skew,
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

    /// Puts a request into the queue as soon as there is room.
    pub(super) async fn send(&self, request: Request) {
        if let Err(mpsc::error::SendError(request)) = self.queue.send(request).await {
            request.answer(Err(gone()));
        }
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
    let node = Arc::new(Mutex::new(Node { waiting, target, shared, cluster, health }));
    tokio::spawn(async move {
        loop {
            let node = Arc::clone(&node);
            // A defect here must not leave all callers without an answer forever: it is told, and served anew.
            let ended = tokio::spawn(async move { node.lock().await.run().await }).await;
            match ended {
                Err(error) if error.is_panic() => {
                    tracing::error!(%error, "the redis task failed and starts anew");
                }
                _ => return,
            }
        }
    });
    NodeHandle { queue, health: watched }
}

struct Node {
    waiting: mpsc::Receiver<Request>,
    target: Target,
    shared: Arc<Shared>,
    cluster: Weak<Cluster>,
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
                    self.health.send_replace(Health::Up);
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
        tracing::warn!(%error, pause_ms, "redis is of no use now");
        self.health.send_replace(Health::Down(error));
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh();
        }
        self.refuse_until(SystemClock::default().sleep(pause_ms)).await
    }

    /// Connects. After a connection that worked, callers wait for this as long as they can; after an attempt that
    /// failed they are told at once.
    async fn connect(&mut self) -> Result<Result<Link, StoreError>, Closed> {
        let (target, shared) = (self.target.clone(), Arc::clone(&self.shared));
        let attempt = async move {
            let mut link = target.connect(&shared.access).await?;
            measure_skew(&mut link, &shared).await?;
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
        let mut in_flight = FuturesUnordered::new();
        let (mut sent, mut was_useful, mut end) = (0, false, None);
        loop {
            let is_leaving = end.is_some();
            tokio::select! {
                biased;
                Some(exchange) = in_flight.next() => {
                    let exchange: Exchange = exchange;
                    sent -= exchange.requests;
                    match exchange.settle(&self.shared, &self.cluster) {
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
                request = self.waiting.recv(), if !is_leaving && in_flight.len() < MAX_IN_FLIGHT => {
                    let Some(request) = request else { return Err(Closed) };
                    let calls = self.gather(request, sent);
                    if calls.requests > 0 {
                        sent += calls.requests;
                        let given_ms = self.shared.given_time.as_ref().map(|clock| clock.now_ms());
                        in_flight.push(exchange(link.connection.clone(), calls, given_ms, self.shared.budget));
                    }
                }
                // With calls under way their own ends tell more.
                _ = link.is_over.changed(), if in_flight.is_empty() => return Ok(End::HungUp),
            }
            if in_flight.is_empty()
                && let Some(end) = end.take()
            {
                return Ok(end);
            }
        }
    }

    /// Takes half of all that is waiting or under way, so that both calls in flight are of one size and neither
    /// side idles.
    fn gather(&mut self, first: Request, sent: usize) -> Calls {
        let share = (self.waiting.len() + 1 + sent).div_ceil(MAX_IN_FLIGHT).min(MAX_BATCH);
        let mut calls = Calls::default();
        let mut next = Some(first);
        while let Some(request) = next {
            // Whoever has given up is not counted: the request has not left yet.
            if !request.reply.is_closed() {
                calls.add(request);
            }
            if calls.requests >= share {
                break;
            }
            next = self.waiting.try_recv().ok();
        }
        calls
    }
}
