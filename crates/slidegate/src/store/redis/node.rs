//! One server: gathers what waits for it into calls, and keeps a connection to it.
//!
//! Whatever waits while calls are under way goes together in the next one. Nobody waits for company: a lone request
//! leaves at once.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, watch};

use super::RedisStore;
use super::call::{Gathered, Request};
use super::cluster::Cluster;
use super::endpoint::{Access, Link, Target};
use super::exchange::{Exchange, Origin, Outcome, exchange, measure_skew};
use super::skew::Skew;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::remote::{Line, Queue, Remote, Waiting, gone, queue};
use crate::store::supervise::supervise;

/// Two, so that one call is prepared and its answers are read while the server is busy with the other.
const MAX_CALLS: usize = 2;
/// As long as fewer requests than this are under way the server has little to do, and nobody waits for others. When there
/// are as many, it has too much to do for each to have a call of its own, until it has next to nothing to do again: else
/// each would wait for all those before it.
const MAX_SINGLE: usize = 8;

/// So many ordinary keys keep the server busy for some 0.3 ms, a cluster's, in as many calls, for some 1 ms; larger calls would
/// save little more and delay others.
pub(super) const MAX_WEIGHT: usize = 64;
/// A call takes no more than this even of one key: the script names places in it by a byte.
const MOST_OF_A_CALL: usize = 255;
/// Among so many of a batch keys may come again, and are then in one call.
pub(super) const MOST_REPEATED: usize = MOST_OF_A_CALL - MAX_WEIGHT;

/// Whoever hangs up on an idle connection sooner than this hangs up at once. No server can be told to close idle ones sooner.
const LONG_ENOUGH_MS: u64 = 900;

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
    pub(super) queue: Queue<Request>,
    health: watch::Receiver<Health>,
    pub(super) skew: Arc<Skew>,
}

impl NodeHandle {
    /// Waits until it is known whether the server can be reached.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut health = self.health.clone();
        match health.wait_for(|health| !matches!(health, Health::Connecting)).await.as_deref() {
            Ok(Health::Down(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(gone(RedisStore::NAME)),
        }
    }
}

/// Starts the task that serves a server, for as long as somebody holds its handle.
pub(super) fn start(target: Target, shared: Arc<Shared>, cluster: Weak<Cluster>) -> NodeHandle {
    let (queue, waiting) = queue(RedisStore::NAME, shared.max_waiting);
    let (health, watched) = watch::channel(Health::Connecting);
    let skew = Arc::new(Skew::default());
    let is_appointed = matches!(target, Target::Primary { .. });
    let origin = Origin { cluster, host: target.host(), is_appointed, skew: Arc::clone(&skew) };
    let node = Arc::new(Mutex::new(Node { waiting, target, shared, origin, health, is_away: false }));
    supervise("the task of a redis server", move || {
        let node = Arc::clone(&node);
        async move { node.lock().await.run().await }
    });
    NodeHandle { queue, health: watched, skew }
}

struct Node {
    waiting: Line<Request>,
    target: Target,
    shared: Arc<Shared>,
    origin: Origin,
    health: watch::Sender<Health>,
    /// Whether the log says so.
    is_away: bool,
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

/// What is under way on a connection, and what answers have said of that.
#[derive(Default)]
struct Traffic {
    calls: FuturesUnordered<Pin<Box<dyn Future<Output = Exchange> + Send>>>,
    /// How many there are in them.
    requests: usize,
    /// Whether the server has too much to do for calls of one.
    is_busy: bool,
    was_useful: bool,
    /// Why nothing more is sent.
    end: Option<End>,
}

impl Traffic {
    fn has_room(&self) -> bool {
        let may_be_single = !self.is_busy && self.requests < MAX_SINGLE;
        self.end.is_none() && (self.calls.len() < MAX_CALLS || may_be_single)
    }

    fn learn(&mut self, outcome: Outcome, backoff: &mut Backoff) {
        match outcome {
            Outcome::Fine { has_written } => {
                self.was_useful = true;
                if has_written {
                    *backoff = Backoff::default();
                }
            }
            // One that has worked is worth another attempt at once.
            Outcome::Broken(_) if self.was_useful => self.end = self.end.take().or(Some(End::HungUp)),
            Outcome::Broken(error) | Outcome::WrongServer(error) => self.end = Some(End::Useless(error)),
        }
    }
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
        // Once for each outage, however many attempts it takes.
        if self.is_away {
            tracing::debug!(%error, pause_ms, "redis is still away");
        } else if error.is_transient() {
            tracing::warn!(%error, "redis is away");
        } else {
            tracing::warn!(%error, "redis refuses to serve");
        }
        self.is_away = true;
        self.health.send_replace(Health::Down(error));
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
                waiting = self.waiting.next() => {
                    let Some(waiting) = waiting else { return Err(Closed) };
                    self.waiting.let_in(&waiting);
                    match &*self.health.borrow() {
                        Health::Down(error) => waiting.refuse(error),
                        _ => waiting.refuse(&gone(RedisStore::NAME)),
                    }
                }
            }
        }
    }

    /// Serves callers until the connection breaks, or the server turns out to be of no use.
    async fn serve(&mut self, mut link: Link, backoff: &mut Backoff) -> Result<End, Closed> {
        let _listening = self.shared.access.subscriber().listen(link.connection.clone());
        let (mut traffic, mut is_closed) = (Traffic::default(), false);
        let clock = SystemClock::default();
        let since_ms = clock.now_ms();
        loop {
            tokio::select! {
                biased;
                // Before the next answers are read, or two calls that were answered together would go out together
                // again, and server and caller would take turns at being idle.
                first = self.waiting.next(), if traffic.has_room() && !is_closed => match first {
                    None => is_closed = true,
                    Some(first) => {
                        for calls in self.gather(first, traffic.requests) {
                            self.set_out(&mut traffic, &link, calls).await;
                        }
                    }
                },
                Some(exchange) = traffic.calls.next() => {
                    self.settle(&mut traffic, &link, exchange, backoff).await;
                    // Let those who were just answered ask again, so that they go together.
                    tokio::task::yield_now().await;
                }
                // With calls under way their own ends tell more.
                _ = link.is_over.changed(), if traffic.calls.is_empty() => {
                    let error = || StoreError::transient(format!("redis at {}: it hangs up at once", link.place));
                    // Servers close what is idle for long, and it has answered when it let us in.
                    let has_lasted = clock.now_ms().saturating_sub(since_ms) >= LONG_ENOUGH_MS;
                    let is_usual = traffic.was_useful || has_lasted;
                    return Ok(if is_usual { End::HungUp } else { End::Useless(error()) });
                }
            }
            // Whoever is under way is heard out first.
            if traffic.calls.is_empty() {
                if is_closed {
                    return Err(Closed);
                }
                if let Some(end) = traffic.end.take() {
                    return Ok(end);
                }
            }
        }
    }

    /// Hands out answers. If enough wait, the server has something to do again before anybody is told: else it would be
    /// idle meanwhile, and a queue that has grown once would not go down.
    async fn settle(
        &mut self,
        traffic: &mut Traffic,
        link: &Link,
        exchange: Exchange,
        backoff: &mut Backoff,
    ) {
        traffic.requests -= exchange.requests;
        if self.waiting.requests() == 0 && traffic.calls.len() <= 1 {
            traffic.is_busy = false;
        }
        let do_enough_wait = self.waiting.requests() >= traffic.requests.div_ceil(MAX_CALLS).max(1);
        let goes_on = traffic.has_room() && do_enough_wait && exchange.is_taken();
        let first = if goes_on { self.waiting.next_now() } else { None };
        let mut gathered = first.map(|first| self.gather(first, traffic.requests));
        if let Some(calls) = gathered.as_mut().and_then(Iterator::next) {
            self.set_out(traffic, link, calls).await;
        }
        let outcome = exchange.settle(&self.shared, &self.origin);
        // Not as soon as it lets us in, or denies somebody: one that was demoted does, again and again.
        if self.is_away && matches!(outcome, Outcome::Fine { has_written: true }) {
            self.is_away = false;
            tracing::info!(server = link.place, "redis is back");
        }
        traffic.learn(outcome, backoff);
        for calls in gathered.into_iter().flatten() {
            self.set_out(traffic, link, calls).await;
        }
    }

    /// Sends a call and lets the connection's task run, so that it is on its way before anything else is done. None waits
    /// for another's answer, and each has its own: what was asked for together is decided in one round trip, and what
    /// takes too long spoils nothing else.
    async fn set_out(&self, traffic: &mut Traffic, link: &Link, calls: Gathered) {
        traffic.requests += calls.requests;
        traffic.is_busy |= traffic.requests >= MAX_SINGLE;
        let given_ms = self.shared.given_time.as_ref().map(|clock| clock.now_ms());
        let mut call = Box::pin(exchange(link.connection.clone(), calls, given_ms, self.shared.budget));
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        tokio::task::yield_now().await;
        traffic.calls.push(match polled {
            // The connection was gone already.
            Poll::Ready(exchange) => Box::pin(ready(exchange)),
            Poll::Pending => call,
        });
    }

    /// Takes half of all that is waiting or under way, so that both calls in flight are of one size and neither
    /// side idles; more of it, in as many calls as it takes, if it was asked for together.
    fn gather(&mut self, first: Waiting<Request>, sent: usize) -> impl Iterator<Item = Gathered> + use<> {
        let share = (1 + self.waiting.requests() + sent).div_ceil(MAX_CALLS);
        let mut gathered = Batches::default();
        let mut next = Some(first);
        while let Some(waiting) = next {
            self.waiting.let_in(&waiting);
            let mut place = 0;
            waiting.for_each(|request| {
                // Behind these no key of a batch comes again, and whoever asks alone waits for the answer; but not if it was
                // sent here from elsewhere.
                let may_be_another = place > 0 && place < MOST_REPEATED || request.hops > 0;
                place += 1;
                gathered.add(request, may_be_another);
            });
            next = if gathered.has(share) { None } else { self.waiting.next_now() };
        }
        gathered.full.into_iter().chain(Some(gathered.last).filter(|last| last.requests > 0))
    }
}

/// What is gathered, none of it heavier than a call should be.
#[derive(Default)]
struct Batches {
    full: Vec<Gathered>,
    last: Gathered,
}

impl Batches {
    /// Adds a request, unless its caller has given up. If it `may_be_another` of its key, it goes with the one before.
    fn add(&mut self, request: Request, may_be_another: bool) {
        if !request.reply.leave() {
            return;
        }
        let has_its_key = |gathered: &Gathered| {
            may_be_another && gathered.requests < MOST_OF_A_CALL && gathered.has_key(&request.name)
        };
        if let Some(before) = self.full.iter().rposition(has_its_key) {
            return self.full[before].add(request);
        }
        if self.last.weight >= MAX_WEIGHT && !has_its_key(&self.last) {
            self.full.push(std::mem::take(&mut self.last));
        }
        self.last.add(request);
    }

    /// Whether it is as much as `share`, or fills a call.
    fn has(&self, share: usize) -> bool {
        !self.full.is_empty() || self.last.requests >= share || self.last.weight >= MAX_WEIGHT
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use slidegate_core::{Policy, Verb};
    use slidegate_testkit::{Flavour, Server};

    use super::*;
    use crate::store::Operation;

    /// More than two calls.
    const MANY: usize = 3 * MAX_WEIGHT;

    #[tokio::test]
    async fn the_next_call_leaves_before_the_last_is_told() {
        let server = Server::start(Flavour::Redis);
        let store = RedisStore::connect(&format!("{}?budget_ms=20000", server.url())).await.unwrap();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let mut pending = Vec::new();
        // Nothing else runs before the first of these waits, so all are there when the first call is gathered.
        for number in 0..MANY {
            let key = number.to_string();
            let (request, theirs) = store.request(&Operation { verb: Verb::Check, check: policy.key(&key) });
            store.send_now(request).await;
            pending.push(theirs);
        }
        let last = pending.pop().unwrap();
        assert!(!last.has_left.load(Relaxed));
        (&mut pending[0].answer).await.unwrap().unwrap();
        assert!(last.has_left.load(Relaxed), "the third call waits for the first to be told");
    }

    /// Those of one key that were sent here from elsewhere stay in one call, whatever else is gathered: a second one could be
    /// executed before the first, if that is refused as a whole.
    #[tokio::test]
    async fn what_is_asked_of_one_key_stays_in_one_call_on_its_way_elsewhere() {
        let store = RedisStore::builder("redis://127.0.0.1:1").unwrap().connect_lazily();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let (mut batches, mut pending) = (Batches::default(), Vec::new());
        let mut add = |key: &str, hops| {
            let operation = Operation { verb: Verb::Check, check: policy.key(key) };
            let (mut request, theirs) = store.request(&operation);
            request.hops = hops;
            pending.push(theirs);
            batches.add(request, hops > 0);
        };
        (0..MAX_WEIGHT).for_each(|number| add(&number.to_string(), 0));
        for number in 0..MOST_REPEATED {
            add("hot", 1);
            add(&format!("cold {number}"), 0);
        }
        let name = store.names.name(&policy, b"hot");
        let all: Vec<Gathered> = batches.full.into_iter().chain(Some(batches.last)).collect();
        let hot = |gathered: &Gathered| {
            let requests = gathered.calls.iter().flat_map(|call| &call.requests);
            requests.filter(|request| request.name == name).count()
        };
        let counts: Vec<usize> = all.iter().map(hot).filter(|count| *count > 0).collect();
        assert_eq!(counts, [MOST_REPEATED]);
        assert!(all.iter().all(|gathered| gathered.requests <= MOST_OF_A_CALL));
    }
}
