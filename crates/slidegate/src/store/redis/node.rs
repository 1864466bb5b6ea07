//! Task of one server: keeps a connection to it, and sends the queued requests in batches.
//!
//! Requests that are queued while batches are in flight leave together in the next batch. No timer delays a batch: a lone
//! request is sent at once.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, watch};

use super::RedisStore;
use super::batch::{Batch, Batcher, GROUP_REPEAT_RANGE, Request};
use super::cluster::Cluster;
use super::connector::Link;
use super::endpoint::Endpoint;
use super::exchange::{Exchange, Outcome, Peer, exchange, measure_skew};
use super::node_handle::{Health, NodeHandle};
use super::shared::Shared;
use super::skew::Skew;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::remote::{QueueReceiver, Queued, RemoteStore, queue, task_stopped};
use crate::store::supervise::supervise;

/// Number of batches in flight. With two, one is prepared and its responses are read while the server executes the other.
const MAX_BATCHES: usize = 2;
/// Number of requests in flight below which each request is sent at once. When it is reached, the server is busy: requests
/// are batched until it is almost idle again. Sent one by one, each would wait for all requests before it.
const MAX_UNBATCHED: usize = 8;

/// Age at which an idle connection may be closed by the server's idle timeout, of which the shortest is one second. A
/// connection that is closed earlier was rejected.
const MIN_IDLE_TIMEOUT_MS: u64 = 900;

/// Starts the task of a server. It ends when all handles are dropped.
pub(super) fn start(endpoint: Endpoint, shared: Arc<Shared>, cluster: Weak<Cluster>) -> NodeHandle {
    let (sender, queue) = queue(RedisStore::NAME, shared.max_waiting);
    let (health, watched) = watch::channel(Health::Connecting);
    let skew = Arc::new(Skew::default());
    let is_named_by_sentinel = matches!(endpoint, Endpoint::Primary { .. });
    let peer = Peer { cluster, host: endpoint.host(), is_named_by_sentinel, skew: Arc::clone(&skew) };
    let node = Arc::new(Mutex::new(Node { queue, endpoint, shared, peer, health, is_outage_logged: false }));
    supervise("redis connection task", move || {
        let node = Arc::clone(&node);
        async move { node.lock().await.run().await }
    });
    NodeHandle { queue: sender, health: watched, skew }
}

struct Node {
    queue: QueueReceiver<Request>,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    peer: Peer,
    health: watch::Sender<Health>,
    is_outage_logged: bool,
}

/// Signal that all handles of the node were dropped.
struct HandlesDropped;

/// Reason to give up a connection.
enum Disconnect {
    /// The connection was closed after it had worked.
    Closed,
    /// No connection is possible, or the server cannot serve requests.
    Unusable(StoreError),
}

/// Batches in flight on a connection, and the state that their replies show.
#[derive(Default)]
struct InFlight {
    exchanges: FuturesUnordered<Pin<Box<dyn Future<Output = Exchange> + Send>>>,
    requests: usize,
    /// Whether the server is too busy for requests that are sent one by one.
    is_busy: bool,
    has_served: bool,
    /// Reason to send no further batch.
    disconnect: Option<Disconnect>,
}

impl InFlight {
    fn can_send(&self) -> bool {
        let is_unbatched = !self.is_busy && self.requests < MAX_UNBATCHED;
        self.disconnect.is_none() && (self.exchanges.len() < MAX_BATCHES || is_unbatched)
    }

    fn record(&mut self, outcome: Outcome, backoff: &mut Backoff) {
        match outcome {
            Outcome::Served { has_written } => {
                self.has_served = true;
                if has_written {
                    *backoff = Backoff::default();
                }
            }
            // A connection that worked is replaced at once, without a backoff.
            Outcome::Broken(_) if self.has_served => {
                self.disconnect = self.disconnect.take().or(Some(Disconnect::Closed));
            }
            Outcome::Broken(error) | Outcome::WrongServer(error) => {
                self.disconnect = Some(Disconnect::Unusable(error));
            }
        }
    }
}

impl Node {
    async fn run(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let disconnect = match self.connect().await {
                Ok(Ok(link)) => {
                    self.health.send_replace(Health::Up);
                    self.serve(link, &mut backoff).await
                }
                Ok(Err(error)) => Ok(Disconnect::Unusable(error)),
                Err(HandlesDropped) => return,
            };
            let paused = match disconnect {
                Ok(Disconnect::Closed) => Ok(()),
                Ok(Disconnect::Unusable(error)) => self.pause(error, backoff.next_ms()).await,
                Err(HandlesDropped) => return,
            };
            if paused.is_err() {
                return;
            }
        }
    }

    /// Waits before the next connection attempt. Requests are rejected with `error` meanwhile.
    async fn pause(&mut self, error: StoreError, pause_ms: u64) -> Result<(), HandlesDropped> {
        // One warning per outage, not per attempt.
        if self.is_outage_logged {
            tracing::debug!(%error, pause_ms, "redis is still unavailable");
        } else if error.is_transient() {
            tracing::warn!(%error, "redis is unavailable; reconnecting");
        } else {
            tracing::warn!(%error, "redis cannot be used; check the store's URL and the server's configuration");
        }
        self.is_outage_logged = true;
        self.health.send_replace(Health::Down(error));
        if let Some(cluster) = self.peer.cluster.upgrade() {
            cluster.refresh();
        }
        self.reject_until(SystemClock::default().sleep(pause_ms)).await
    }

    /// Connects. After a connection that worked, requests stay in the queue meanwhile. After a failed attempt they are
    /// rejected at once.
    async fn connect(&mut self) -> Result<Result<Link, StoreError>, HandlesDropped> {
        let (endpoint, shared) = (self.endpoint.clone(), Arc::clone(&self.shared));
        let skew = Arc::clone(&self.peer.skew);
        let attempt = async move {
            let mut link = endpoint.connect(&shared.connector).await?;
            measure_skew(&mut link, &shared, &skew).await?;
            Ok(link)
        };
        if matches!(*self.health.borrow(), Health::Down(_)) {
            self.reject_until(attempt).await
        } else {
            Ok(attempt.await)
        }
    }

    /// Rejects requests with the error of the outage until `done` completes.
    async fn reject_until<T>(&mut self, done: impl Future<Output = T>) -> Result<T, HandlesDropped> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                biased;
                result = &mut done => return Ok(result),
                entry = self.queue.recv() => {
                    let Some(entry) = entry else { return Err(HandlesDropped) };
                    self.queue.release(&entry);
                    match &*self.health.borrow() {
                        Health::Down(error) => entry.reject(error),
                        _ => entry.reject(&task_stopped(RedisStore::NAME)),
                    }
                }
            }
        }
    }

    /// Serves requests until the connection breaks or the server cannot serve them.
    async fn serve(&mut self, mut link: Link, backoff: &mut Backoff) -> Result<Disconnect, HandlesDropped> {
        let _subscription = self.shared.connector.subscriber().subscribe(link.connection.clone());
        let (mut in_flight, mut are_handles_dropped) = (InFlight::default(), false);
        let clock = SystemClock::default();
        let connected_ms = clock.now_ms();
        loop {
            tokio::select! {
                biased;
                // Ahead of the replies: two batches whose replies arrive together would otherwise also be replaced together,
                // and server and client would be idle in turns.
                first = self.queue.recv(), if in_flight.can_send() && !are_handles_dropped => match first {
                    None => are_handles_dropped = true,
                    Some(first) => {
                        for batch in self.next_batches(first, in_flight.requests) {
                            self.send(&mut in_flight, &link, batch).await;
                        }
                    }
                },
                Some(exchange) = in_flight.exchanges.next() => {
                    self.complete(&mut in_flight, &link, exchange, backoff).await;
                    // The callers that got a response run first, so that their next requests leave together.
                    tokio::task::yield_now().await;
                }
                // With batches in flight, their own errors are more precise.
                _ = link.is_closed.changed(), if in_flight.exchanges.is_empty() => {
                    let error = || {
                        let message = "the server closed the connection right after the login";
                        StoreError::transient(format!("redis at {}: {message}", link.server))
                    };
                    // A server closes idle connections, and this one replied during the login.
                    let has_lasted = clock.now_ms().saturating_sub(connected_ms) >= MIN_IDLE_TIMEOUT_MS;
                    let is_usual = in_flight.has_served || has_lasted;
                    return Ok(if is_usual { Disconnect::Closed } else { Disconnect::Unusable(error()) });
                }
            }
            // The replies to batches in flight are awaited first.
            if in_flight.exchanges.is_empty() {
                if are_handles_dropped {
                    return Err(HandlesDropped);
                }
                if let Some(disconnect) = in_flight.disconnect.take() {
                    return Ok(disconnect);
                }
            }
        }
    }

    /// Responds to the requests of a batch. If enough requests wait, the next batch is sent first: the server would
    /// otherwise be idle meanwhile, and a queue that has grown once would never shrink.
    async fn complete(
        &mut self,
        in_flight: &mut InFlight,
        link: &Link,
        exchange: Exchange,
        backoff: &mut Backoff,
    ) {
        in_flight.requests -= exchange.requests;
        if self.queue.waiting_requests() == 0 && in_flight.exchanges.len() <= 1 {
            in_flight.is_busy = false;
        }
        let threshold = in_flight.requests.div_ceil(MAX_BATCHES).max(1);
        let is_enough = self.queue.waiting_requests() >= threshold;
        let sends_first = in_flight.can_send() && is_enough && exchange.is_decided();
        let first = if sends_first { self.queue.try_recv() } else { None };
        let mut batches = first.map(|first| self.next_batches(first, in_flight.requests));
        if let Some(batch) = batches.as_mut().and_then(Iterator::next) {
            self.send(in_flight, link, batch).await;
        }
        let outcome = exchange.complete(&self.shared, &self.peer);
        // Only a write proves that the outage is over: a demoted primary accepts logins and denies requests.
        if self.is_outage_logged && matches!(outcome, Outcome::Served { has_written: true }) {
            self.is_outage_logged = false;
            tracing::info!(server = link.server, "redis is available again");
        }
        in_flight.record(outcome, backoff);
        for batch in batches.into_iter().flatten() {
            self.send(in_flight, link, batch).await;
        }
    }

    /// Sends a batch, and yields so that the connection's task writes it before anything else is done. The batches of a
    /// group are sent without waiting for each other's replies, in one round trip, and each has a timeout of its own.
    async fn send(&self, in_flight: &mut InFlight, link: &Link, batch: Batch) {
        in_flight.requests += batch.requests;
        in_flight.is_busy |= in_flight.requests >= MAX_UNBATCHED;
        let given = self.shared.given_time.as_ref().map(|clock| clock.moment());
        let mut exchange = Box::pin(exchange(link.connection.clone(), batch, given, self.shared.budget));
        let polled = poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
        tokio::task::yield_now().await;
        in_flight.exchanges.push(match polled {
            // The connection was closed already.
            Poll::Ready(exchange) => Box::pin(ready(exchange)),
            Poll::Pending => exchange,
        });
    }

    /// Takes half of all requests that are queued or in flight, so that both batches in flight have the same size and
    /// neither side is idle. A group is taken as a whole, in as many batches as it needs.
    fn next_batches(&mut self, first: Queued<Request>, sent: usize) -> impl Iterator<Item = Batch> + use<> {
        let share = (1 + self.queue.waiting_requests() + sent).div_ceil(MAX_BATCHES);
        let mut batcher = Batcher::default();
        let mut next = Some(first);
        while let Some(entry) = next {
            self.queue.release(&entry);
            let mut index = 0;
            entry.for_each(|request| {
                // Keys repeat only in the first part of a group, and among redirected requests. A caller that sends a
                // single request waits for its response.
                let may_repeat = index > 0 && index < GROUP_REPEAT_RANGE || request.redirects > 0;
                index += 1;
                batcher.add(request, may_repeat);
            });
            next = if batcher.is_filled(share) { None } else { self.queue.try_recv() };
        }
        batcher.into_batches()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use slidegate_core::{Policy, Verb};
    use slidegate_testkit::{Flavour, Server};

    use super::*;
    use crate::store::Operation;
    use crate::store::redis::batch::MAX_BATCH_WEIGHT;

    /// Three full batches.
    const MANY: usize = 3 * MAX_BATCH_WEIGHT;

    #[tokio::test]
    async fn the_next_batch_is_sent_before_the_last_one_is_responded_to() {
        let server = Server::start(Flavour::Redis);
        let store = RedisStore::connect(&format!("{}?budget_ms=20000", server.url())).await.unwrap();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let mut pending = Vec::new();
        // The node's task does not run before the first `await` below that waits: all requests are queued by then.
        for number in 0..MANY {
            let key = number.to_string();
            let (request, response) = store.request(&Operation::new(Verb::Check, policy.key(&key)));
            store.enqueue(request).await;
            pending.push(response);
        }
        let last = pending.pop().unwrap();
        assert!(!last.is_dispatched.load(Relaxed));
        (&mut pending[0].receiver).await.unwrap().unwrap();
        assert!(last.is_dispatched.load(Relaxed), "the third batch waits for the responses to the first");
    }
}
