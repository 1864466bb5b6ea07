//! Gathers what waits into calls, one for each free connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use super::batch::{Batch, Name, Request};
use super::call::call;
use super::pool::Shared;
use crate::store::remote::{Line, Waiting};
use crate::store::supervise::supervise;

/// So many keep a connection busy for some 2 ms.
const MAX_BATCH: usize = 64;
/// One is served while the other is prepared.
const USUAL_CALLS: usize = 2;
/// So many may wait for their keys to be free; then the queue is not read.
const MAX_STAGED: usize = 1024;

/// Starts the task that serves the queue, for as long as somebody holds its sender.
pub(super) fn start(waiting: Line<Request>, shared: Arc<Shared>) {
    let (ready, blocked) = (Ready::default(), Blocked::default());
    let gatherer = Arc::new(Mutex::new(Gatherer { waiting, ready, blocked, shared }));
    supervise("the task of a postgres store", move || {
        let gatherer = Arc::clone(&gatherer);
        async move { gatherer.lock().await.run().await }
    });
}

struct Gatherer {
    waiting: Line<Request>,
    ready: Ready,
    blocked: Blocked,
    shared: Arc<Shared>,
}

impl Gatherer {
    async fn run(&mut self) {
        let mut in_flight = FuturesUnordered::new();
        let mut sent = Sent::default();
        // Of a task that failed: nothing is under way any more.
        for request in std::mem::take(&mut self.blocked).by_name.into_values().flatten() {
            self.ready.push(Waiting::One(request));
        }
        loop {
            while in_flight.len() < self.shared.connections && self.is_worth_a_call(in_flight.len(), &sent) {
                let batches = self.gather(&sent);
                if batches.is_empty() {
                    break;
                }
                let carried = Carried::by(&batches);
                sent.add(&carried);
                let calling = call(Arc::clone(&self.shared), batches);
                in_flight.push(async {
                    calling.await;
                    carried
                });
            }
            let has_room = in_flight.len() < self.shared.connections && !self.is_full();
            tokio::select! {
                biased;
                Some(carried) = in_flight.next() => {
                    sent.remove(&carried);
                    // Those who waited for these keys go before all who came later.
                    for request in carried.names.iter().flat_map(|name| self.blocked.release(name)) {
                        self.ready.push(Waiting::One(request));
                    }
                    if self.ready.requests + self.waiting.requests() < carried.requests {
                        // Let those who were just answered ask again, so that they go together.
                        tokio::task::yield_now().await;
                    }
                }
                waiting = self.waiting.next(), if has_room => match waiting {
                    Some(waiting) => self.stage(waiting, &sent),
                    None => return,
                },
            }
        }
    }

    fn is_full(&self) -> bool {
        self.ready.requests + self.blocked.requests >= MAX_STAGED
    }

    /// Beyond the usual calls one more has to carry half as much as those under way, for its fixed part weighs most.
    fn is_worth_a_call(&self, calls: usize, sent: &Sent) -> bool {
        calls < USUAL_CALLS || 2 * calls * (self.ready.requests + self.waiting.requests()) >= sent.requests
    }

    /// Takes a fair share of all that is waiting or under way. What was asked for together goes together, all of it in one
    /// call. A key is in one call at a time: its requests are decided in the order in which they came, and its row is
    /// locked by one connection and not by all.
    fn gather(&mut self, sent: &Sent) -> Vec<Batch> {
        let mut next = Next::default();
        while next.requests < MAX_BATCH
            && let Some(waiting) = self.ready.pop_if(|waiting| next.has_room_for(waiting))
        {
            self.take(waiting, sent, &mut next);
        }
        let all = self.waiting.requests() + next.requests + sent.requests;
        let share = all.div_ceil(self.shared.connections.min(USUAL_CALLS)).min(MAX_BATCH);
        while next.requests < share && self.ready.requests == 0 && !self.is_full() {
            let Some(waiting) = self.waiting.next_now() else { break };
            if next.has_room_for(&waiting) {
                self.take(waiting, sent, &mut next);
            } else {
                self.ready.push(waiting);
            }
        }
        next.batches.into_iter().flatten().collect()
    }

    fn take(&mut self, waiting: Waiting<Request>, sent: &Sent, next: &mut Next) {
        waiting.for_each(|request| {
            if sent.names.contains(&request.name) {
                self.blocked.add(request);
            } else {
                next.add(request);
            }
        });
    }

    /// Keeps it until a call is worth it; those whose keys are under way by themselves.
    fn stage(&mut self, waiting: Waiting<Request>, sent: &Sent) {
        let is_under_way = |request: &Request| sent.names.contains(&request.name);
        match waiting {
            Waiting::One(request) if is_under_way(&request) => self.blocked.add(request),
            Waiting::One(_) => self.ready.push(waiting),
            Waiting::Many(requests) => {
                let (blocked, free): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_under_way);
                for request in blocked {
                    self.blocked.add(request);
                }
                self.ready.push(Waiting::Many(free));
            }
        }
    }
}

/// Taken from the queue and not under way.
#[derive(Default)]
struct Ready {
    waiting: VecDeque<Waiting<Request>>,
    requests: usize,
}

impl Ready {
    fn push(&mut self, waiting: Waiting<Request>) {
        self.requests += waiting.count();
        self.waiting.push_back(waiting);
    }

    fn pop_if(&mut self, is_wanted: impl FnOnce(&Waiting<Request>) -> bool) -> Option<Waiting<Request>> {
        let waiting = self.waiting.pop_front_if(|waiting| is_wanted(waiting))?;
        self.requests -= waiting.count();
        Some(waiting)
    }
}

/// Taken from the queue, and their key is under way.
#[derive(Default)]
struct Blocked {
    by_name: HashMap<Name, Vec<Request>>,
    requests: usize,
}

impl Blocked {
    fn add(&mut self, request: Request) {
        self.requests += 1;
        self.by_name.entry(request.name).or_default().push(request);
    }

    fn release(&mut self, name: &Name) -> Vec<Request> {
        let released = self.by_name.remove(name).unwrap_or_default();
        self.requests -= released.len();
        released
    }
}

/// What goes out next, for each table, none of it larger than a statement should be.
#[derive(Default)]
struct Next {
    batches: [Vec<Batch>; 2],
    requests: usize,
}

impl Next {
    /// Whoever does not fit waits for the next call, so that few who were asked for together are one statement, and nobody
    /// who is alone waits for many.
    fn has_room_for(&self, waiting: &Waiting<Request>) -> bool {
        self.requests == 0 || self.requests + waiting.count() <= MAX_BATCH
    }

    /// Adds a request, unless its caller has given up.
    fn add(&mut self, request: Request) {
        if !request.reply.leave() {
            return;
        }
        self.requests += 1;
        let batches = &mut self.batches[usize::from(request.is_durable)];
        // One statement has all there is for a key, however much: what is sent again cannot change their order.
        let place = batches.iter().position(|batch| batch.has(request.name));
        let place =
            place.or_else(|| batches.len().checked_sub(1).filter(|last| batches[*last].requests < MAX_BATCH));
        match place {
            Some(place) => batches[place].add(request),
            None => batches.push(Batch::of(request)),
        }
    }
}

/// What is under way.
#[derive(Default)]
struct Sent {
    names: HashSet<Name>,
    requests: usize,
}

impl Sent {
    fn add(&mut self, carried: &Carried) {
        self.names.extend(&carried.names);
        self.requests += carried.requests;
    }

    fn remove(&mut self, carried: &Carried) {
        for name in &carried.names {
            self.names.remove(name);
        }
        self.requests -= carried.requests;
    }
}

/// What a call carries.
struct Carried {
    names: Vec<Name>,
    requests: usize,
}

impl Carried {
    fn by(batches: &[Batch]) -> Self {
        Self {
            names: batches.iter().flat_map(Batch::names).collect(),
            requests: batches.iter().map(|batch| batch.requests).sum(),
        }
    }
}
