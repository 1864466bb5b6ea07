//! Gathers what waits into calls, one for each free connection.

mod piles;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use self::piles::{Blocked, Call, MAX_BATCH, Next, Ready, Sent, is_large};
use super::batch::{Batch, Name, Request};
use super::call::call;
use super::pool::Shared;
use crate::store::remote::{QueueReceiver, Queued};
use crate::store::supervise::supervise;

/// One is served while the other is prepared.
const USUAL_CALLS: usize = 2;
/// So many may wait for their keys to be free; then the queue is not read.
const MAX_STAGED: usize = 1024;

/// Starts the task that serves the queue, for as long as somebody holds its sender.
pub(super) fn start(waiting: QueueReceiver<Request>, shared: Arc<Shared>) {
    let gatherer = Arc::new(Mutex::new(Gatherer::new(waiting, shared)));
    supervise("the task of a postgres store", move || {
        let gatherer = Arc::clone(&gatherer);
        async move { gatherer.lock().await.run().await }
    });
}

/// For any key the order is: what is under way, what is blocked, what is ready, what waits.
struct Gatherer {
    waiting: QueueReceiver<Request>,
    ready: Ready,
    /// Batches that need a call of their own. They keep their room in the queue.
    large: VecDeque<Queued<Request>>,
    was_large: bool,
    blocked: Blocked,
    shared: Arc<Shared>,
}

impl Gatherer {
    fn new(waiting: QueueReceiver<Request>, shared: Arc<Shared>) -> Self {
        let (ready, blocked, large) = (Ready::default(), Blocked::default(), VecDeque::new());
        Self { waiting, ready, large, was_large: false, blocked, shared }
    }

    async fn run(&mut self) {
        let mut in_flight = FuturesUnordered::new();
        let mut sent = Sent::default();
        // Of a task that failed: nothing is under way any more.
        self.release(&self.blocked.names());
        loop {
            while in_flight.len() < self.shared.connections && self.is_worth_a_call(in_flight.len(), &sent) {
                let calls = self.gather(&sent);
                if calls.is_empty() {
                    break;
                }
                for Call { batches, carried } in calls {
                    sent.add(&carried);
                    let calling = call(Arc::clone(&self.shared), batches);
                    in_flight.push(async {
                        calling.await;
                        carried
                    });
                }
            }
            let has_room = in_flight.len() < self.shared.connections && !self.is_full();
            tokio::select! {
                biased;
                Some(carried) = in_flight.next() => {
                    sent.remove(&carried);
                    self.release(&carried.names);
                    if self.ready.requests + self.waiting.waiting_requests() < carried.requests {
                        // Let those who were just answered ask again, so that they go together.
                        tokio::task::yield_now().await;
                    }
                }
                waiting = self.waiting.recv(), if has_room => match waiting {
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
        let usual = sent.requests.min(calls * MAX_BATCH);
        calls < USUAL_CALLS || 2 * calls * (self.ready.requests + self.waiting.waiting_requests()) >= usual
    }

    /// A large batch, if one may go, or what else there is.
    fn gather(&mut self, sent: &Sent) -> Vec<Call> {
        // With one connection they take turns; else there is always one for those who are not large.
        let is_their_turn = self.shared.connections == 1 && self.was_large;
        let large = if is_their_turn { None } else { self.gather_large(sent) };
        let usual = if large.is_none() { self.gather_usual(sent) } else { Vec::new() };
        // It is known only now what the queue had.
        let large = if usual.is_empty() { large.or_else(|| self.gather_large(sent)) } else { None };
        self.was_large = large.is_some();
        large.into_iter().chain(usual).collect()
    }

    fn gather_large(&mut self, sent: &Sent) -> Option<Call> {
        let most = (self.shared.connections - 1).max(1);
        while sent.large < most
            && let Some(waiting) = self.large.pop_front()
        {
            let mut next = Next::default();
            self.waiting.release(&waiting);
            self.take(waiting, sent, &mut next);
            // Those that are few, and need both tables, go with others of their kind.
            while let Some(waiting) = self.large.pop_front_if(|waiting| next.has_room_for(waiting)) {
                self.waiting.release(&waiting);
                self.take(waiting, sent, &mut next);
            }
            if next.requests > 0 {
                let batches = next.batches.into_iter().flatten().collect();
                return Some(Call::of(batches, true));
            }
        }
        None
    }

    /// Takes a fair share of all that is waiting or under way, for each table apart: nobody has to wait for a disk who need
    /// not. A key is in one call at a time: its requests are decided in the order in which they came, and its row is locked
    /// by one connection and not by all.
    fn gather_usual(&mut self, sent: &Sent) -> Vec<Call> {
        let mut next = Next::default();
        while next.requests < MAX_BATCH
            && let Some(waiting) = self.ready.pop_if(|waiting| next.has_room_for(waiting))
        {
            self.take(waiting, sent, &mut next);
        }
        let all = self.waiting.waiting_requests() + next.requests + sent.requests;
        let share = all.div_ceil(self.shared.connections.min(USUAL_CALLS)).min(MAX_BATCH);
        while next.requests < share && self.ready.requests == 0 && !self.is_full() {
            let Some(waiting) = self.waiting.try_recv() else { break };
            if is_large(&waiting) {
                self.large.push_back(waiting);
                continue;
            }
            self.waiting.release(&waiting);
            if next.has_room_for(&waiting) {
                self.take(waiting, sent, &mut next);
            } else {
                self.ready.push(waiting);
            }
        }
        let has_any = |batches: &Vec<Batch>| !batches.is_empty();
        next.batches.into_iter().filter(has_any).map(|batches| Call::of(batches, false)).collect()
    }

    fn take(&mut self, waiting: Queued<Request>, sent: &Sent, next: &mut Next) {
        waiting.for_each(|request| {
            if sent.names.contains(&request.name) {
                self.blocked.add(request);
            } else {
                next.add(request);
            }
        });
    }

    /// Keeps it until a call is worth it. If its keys are under way, apart, unless others of these keys may be before it.
    fn stage(&mut self, waiting: Queued<Request>, sent: &Sent) {
        if is_large(&waiting) {
            return self.large.push_back(waiting);
        }
        self.waiting.release(&waiting);
        let is_under_way = |request: &Request| sent.names.contains(&request.name);
        match waiting {
            Queued::Single(request) if self.ready.requests == 0 && is_under_way(&request) => {
                self.blocked.add(request);
            }
            _ => self.ready.push(waiting),
        }
    }

    /// Those who waited for these keys go before all who came later.
    fn release(&mut self, names: &[Name]) {
        for request in names.iter().rev().flat_map(|name| self.blocked.remove(name).into_iter().rev()) {
            self.ready.push_first(Queued::Single(request));
        }
    }
}

#[cfg(test)]
mod tests;
