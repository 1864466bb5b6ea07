//! Task of a connection: sends the queued requests in batches.
//!
//! Requests that are queued while batches are in flight leave together in the next batch. No timer delays a batch: a lone
//! request is sent at once.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::RedisStore;
use super::batch::{Batch, GROUP_REPEAT_RANGE};
use super::connector::Link;
use super::exchange::{Exchange, Outcome, Peer, exchange};
use super::outage::Outage;
use super::shared::Shared;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::remote::{Batches, Load, QueueReceiver, Queued, USUAL_CALLS, add_to_batches};

/// Number of requests in flight below which each request is sent at once. When it is reached, the server is busy: requests
/// are batched until it is almost idle again. Sent one by one, each would wait for all requests before it.
const MAX_UNBATCHED: usize = 8;

/// Age at which an idle connection may be closed by the server's idle timeout, of which the shortest is one second. A
/// connection that is closed earlier was rejected.
const MIN_IDLE_TIMEOUT_MS: u64 = 900;

/// Signal that all handles of the node were dropped.
pub(super) struct HandlesDropped;

/// Reason to give up a connection.
pub(super) enum Disconnect {
    /// The connection was closed after it had worked.
    Closed,
    /// No connection is possible, or the server cannot serve requests.
    Unusable(StoreError),
}

/// Batches in flight on a connection, and the state that their replies show.
#[derive(Default)]
pub(super) struct InFlight {
    exchanges: FuturesUnordered<Pin<Box<dyn Future<Output = Exchange> + Send>>>,
    load: Load,
    /// Whether the server is too busy for requests that are sent one by one.
    is_busy: bool,
    has_served: bool,
    /// Reason to send no further batch.
    disconnect: Option<Disconnect>,
}

impl InFlight {
    fn can_send(&self) -> bool {
        let is_unbatched = !self.is_busy && self.load.requests < MAX_UNBATCHED;
        self.disconnect.is_none() && (self.load.calls < USUAL_CALLS || is_unbatched)
    }

    fn record(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Served { .. } => self.has_served = true,
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

/// Distributes the requests for a server over batches on one connection.
pub(super) struct Batcher<'a> {
    pub(super) queue: &'a mut QueueReceiver<RedisStore>,
    pub(super) shared: &'a Shared,
    pub(super) peer: &'a Peer,
    pub(super) outage: &'a mut Outage,
    pub(super) link: Link,
    pub(super) in_flight: InFlight,
}

impl Batcher<'_> {
    /// Serves requests until the connection breaks or the server cannot serve them.
    pub(super) async fn run(&mut self) -> Result<Disconnect, HandlesDropped> {
        let _subscription = self.shared.connector.subscriber().subscribe(self.link.connection.clone());
        let mut are_handles_dropped = false;
        let clock = SystemClock::default();
        let connected_ms = clock.now_ms();
        loop {
            tokio::select! {
                biased;
                // Ahead of the replies: two batches whose replies arrive together would otherwise also be replaced together,
                // and server and client would be idle in turns.
                first = self.queue.recv(), if self.in_flight.can_send() && !are_handles_dropped => match first {
                    None => are_handles_dropped = true,
                    Some(first) => {
                        for batch in self.next_batches(first) {
                            self.send(batch).await;
                        }
                    }
                },
                Some(exchange) = self.in_flight.exchanges.next() => {
                    self.complete(exchange).await;
                    // The callers that got a response run first, so that their next requests leave together.
                    tokio::task::yield_now().await;
                }
                // With batches in flight, their own errors are more precise.
                _ = self.link.is_closed.changed(), if self.in_flight.exchanges.is_empty() => {
                    let error = || {
                        let message = "the server closed the connection right after the login";
                        StoreError::transient(format!("redis at {}: {message}", self.link.server))
                    };
                    // A server closes idle connections, and this one replied during the login.
                    let has_lasted = clock.now_ms().saturating_sub(connected_ms) >= MIN_IDLE_TIMEOUT_MS;
                    let is_usual = self.in_flight.has_served || has_lasted;
                    return Ok(if is_usual { Disconnect::Closed } else { Disconnect::Unusable(error()) });
                }
            }
            // The replies to batches in flight are awaited first.
            if self.in_flight.exchanges.is_empty() {
                if are_handles_dropped {
                    return Err(HandlesDropped);
                }
                if let Some(disconnect) = self.in_flight.disconnect.take() {
                    return Ok(disconnect);
                }
            }
        }
    }

    /// Responds to the requests of a batch. If enough requests wait, the next batch is sent first: the server would
    /// otherwise be idle meanwhile, and a queue that has grown once would never shrink.
    async fn complete(&mut self, exchange: Exchange) {
        self.in_flight.load.remove(exchange.requests);
        let waiting = self.queue.waiting_requests();
        if waiting == 0 && self.in_flight.load.calls < USUAL_CALLS {
            self.in_flight.is_busy = false;
        }
        let is_enough = self.in_flight.load.is_worth_a_call(waiting);
        let sends_first = self.in_flight.can_send() && is_enough && exchange.is_decided();
        let first = if sends_first { self.queue.try_recv() } else { None };
        let mut batches = first.map(|first| self.next_batches(first).into_iter());
        if let Some(batch) = batches.as_mut().and_then(Iterator::next) {
            self.send(batch).await;
        }
        let outcome = exchange.complete(self.shared, self.peer);
        if matches!(outcome, Outcome::Served { has_written: true }) {
            self.outage.end(&self.link.server);
        }
        self.in_flight.record(outcome);
        for batch in batches.into_iter().flatten() {
            self.send(batch).await;
        }
    }

    /// Sends a batch, and yields so that the connection's task writes it before anything else is done. The batches of a
    /// group are sent without waiting for each other's replies, in one round trip, and each has a timeout of its own.
    async fn send(&mut self, batch: Batch) {
        self.in_flight.load.add(batch.requests);
        self.in_flight.is_busy |= self.in_flight.load.requests >= MAX_UNBATCHED;
        let (given, budget) = (self.shared.settings.given_moment(), self.shared.settings.budget());
        let mut exchange = Box::pin(exchange(self.link.connection.clone(), batch, given, budget));
        let polled = poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
        tokio::task::yield_now().await;
        self.in_flight.exchanges.push(match polled {
            // The connection was closed already.
            Poll::Ready(exchange) => Box::pin(ready(exchange)),
            Poll::Pending => exchange,
        });
    }

    /// Takes a fair share of all requests that are queued or in flight. A group is taken as a whole, in as many batches as
    /// it needs.
    fn next_batches(&mut self, first: Queued<RedisStore>) -> Batches<Batch> {
        let share = self.in_flight.load.share(1 + self.queue.waiting_requests(), USUAL_CALLS);
        let mut batches = Batches::new();
        let mut next = Some(first);
        while let Some(entry) = next {
            add_entry(&mut batches, entry);
            let is_filled = batches.first().is_some_and(|batch: &Batch| batch.is_filled(share));
            next = if is_filled { None } else { self.queue.try_recv() };
        }
        batches
    }
}

/// Adds the requests of an entry, except for those whose callers have given up.
fn add_entry(batches: &mut Batches<Batch>, entry: Queued<RedisStore>) {
    let mut index = 0;
    entry.for_each(|request| {
        // Keys repeat only in the first part of a group, and among redirected requests. A caller that sends a single
        // request waits for its response.
        let may_repeat = index > 0 && index < GROUP_REPEAT_RANGE || request.operation.redirects > 0;
        index += 1;
        if request.mark_dispatched() {
            add_to_batches(batches, request, may_repeat);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use slidegate_core::{Policy, Verb};
    use slidegate_testkit::{Flavour, Server};

    use super::*;
    use crate::store::Operation;
    use crate::store::redis::batch::MAX_BATCH_REQUESTS;
    use crate::store::remote::{FULL_BATCH, RemoteStore, Request};

    #[tokio::test]
    async fn the_next_batch_is_sent_before_the_last_one_is_responded_to() {
        let server = Server::start(Flavour::Redis);
        let store = RedisStore::connect(&format!("{}?budget_ms=20000", server.url())).await.unwrap();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let mut pending = Vec::new();
        // The node's task does not run before the first `await` below that waits: all requests are queued by then.
        for number in 0..3 * FULL_BATCH {
            let key = number.to_string();
            let operation = Operation::new(Verb::Check, policy.key(&key));
            let (request, response) = Request::new(store.encode(&operation));
            store.enqueue(request).await;
            pending.push(response);
        }
        let last = pending.pop().unwrap();
        assert!(!last.is_dispatched.load(Relaxed));
        (&mut pending[0].receiver).await.unwrap().unwrap();
        assert!(last.is_dispatched.load(Relaxed), "the third batch waits for the responses to the first");
    }

    /// Two batches of one key could change their order: the server may reject the first as a whole after the second was
    /// sent.
    #[tokio::test]
    async fn redirected_requests_of_one_key_share_a_batch() {
        let store = RedisStore::builder("redis://127.0.0.1:1").unwrap().connect_lazily();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let (mut batches, mut pending) = (Batches::new(), Vec::new());
        let mut add = |key: &str, redirects| {
            let operation = Operation::new(Verb::Check, policy.key(key));
            let (mut request, response) = Request::<RedisStore>::new(store.encode(&operation));
            request.operation.redirects = redirects;
            pending.push(response);
            add_entry(&mut batches, Queued::Single(request));
        };
        (0..FULL_BATCH).for_each(|number| add(&number.to_string(), 0));
        for number in 0..GROUP_REPEAT_RANGE {
            add("hot", 1);
            add(&format!("cold {number}"), 0);
        }
        let name = store.names.name(&policy, b"hot");
        let hot = |batch: &Batch| {
            let requests = batch.calls.iter().flat_map(|call| &call.requests);
            requests.filter(|request| request.operation.name == name).count()
        };
        let counts: Vec<usize> = batches.iter().map(hot).filter(|count| *count > 0).collect();
        assert_eq!(counts, [GROUP_REPEAT_RANGE]);
        assert!(batches.iter().all(|batch| batch.requests <= MAX_BATCH_REQUESTS));
    }
}
