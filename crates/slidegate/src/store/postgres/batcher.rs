//! Task of a store: distributes the queued requests over calls, one for each idle connection.
//!
//! Requests that are queued while calls are in flight leave together in the next call. No timer delays a call: a lone
//! request is sent at once.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use super::batch::{Batch, Request};
use super::name::Name;
use super::scheduler::{Blocked, Call, InFlight, Queued, Ready, Selection, is_large};
use super::shared::Shared;
use super::{PostgresStore, call};
use crate::store::remote::{Batches, FULL_BATCH, QueueReceiver, USUAL_CALLS};
use crate::store::supervise::supervise;

/// Number of ready and blocked requests from which the queue is not read.
const MAX_STAGED: usize = 1024;

/// Starts the task. It ends when all senders of the queue are dropped.
pub(super) fn start(queue: QueueReceiver<PostgresStore>, shared: Arc<Shared>) {
    let batcher = Arc::new(Mutex::new(Batcher::new(queue, shared)));
    supervise("postgres batcher task", move || {
        let batcher = Arc::clone(&batcher);
        async move { batcher.lock().await.run().await }
    });
}

/// Distributes requests over calls. Requests of one key pass from the queue to `ready`, if need be to `blocked`, and into
/// a call, in this order.
struct Batcher {
    queue: QueueReceiver<PostgresStore>,
    ready: Ready,
    /// Entries that need a call of their own. They keep their slots in the queue.
    large: VecDeque<Queued>,
    was_large: bool,
    blocked: Blocked,
    shared: Arc<Shared>,
}

impl Batcher {
    fn new(queue: QueueReceiver<PostgresStore>, shared: Arc<Shared>) -> Self {
        let (ready, blocked, large) = (Ready::default(), Blocked::default(), VecDeque::new());
        Self { queue, ready, large, was_large: false, blocked, shared }
    }

    async fn run(&mut self) {
        let mut calls = FuturesUnordered::new();
        let mut in_flight = InFlight::default();
        // Requests that a failed run of this task has left: nothing is in flight any more.
        self.unblock(&self.blocked.names());
        loop {
            while calls.len() < self.shared.pool.max_connections && self.can_send(&in_flight) {
                let next = self.next_calls(&in_flight);
                if next.is_empty() {
                    break;
                }
                for Call { batches, contents } in next {
                    in_flight.add(&contents);
                    let execution = call::execute(Arc::clone(&self.shared), batches);
                    calls.push(async {
                        execution.await;
                        contents
                    });
                }
            }
            let can_stage = calls.len() < self.shared.pool.max_connections && !self.is_full();
            tokio::select! {
                biased;
                Some(contents) = calls.next() => {
                    in_flight.remove(&contents);
                    self.unblock(&contents.names);
                    if self.ready.requests + self.queue.waiting_requests() < contents.requests {
                        // The callers that got a response run first, so that their next requests leave together.
                        tokio::task::yield_now().await;
                    }
                }
                entry = self.queue.recv(), if can_stage => match entry {
                    Some(entry) => self.stage(entry, &in_flight),
                    None => return,
                },
            }
        }
    }

    fn is_full(&self) -> bool {
        self.ready.requests + self.blocked.requests >= MAX_STAGED
    }

    /// Returns whether another call may be sent. The usual calls are sent whatever their size.
    fn can_send(&self, in_flight: &InFlight) -> bool {
        let waiting = self.ready.requests + self.queue.waiting_requests();
        in_flight.load.calls < USUAL_CALLS || in_flight.load.is_worth_a_call(waiting)
    }

    /// Returns one large call, or the calls for the other requests.
    fn next_calls(&mut self, in_flight: &InFlight) -> Vec<Call> {
        // On a single connection, large and small calls alternate. With several, one is kept free of large calls.
        let is_turn_of_small = self.shared.pool.max_connections == 1 && self.was_large;
        let large = if is_turn_of_small { None } else { self.next_large_call(in_flight) };
        let small = if large.is_none() { self.next_small_calls(in_flight) } else { Vec::new() };
        // Reading the queue may have added the first large entry.
        let large = if small.is_empty() { large.or_else(|| self.next_large_call(in_flight)) } else { None };
        self.was_large = large.is_some();
        large.into_iter().chain(small).collect()
    }

    fn next_large_call(&mut self, in_flight: &InFlight) -> Option<Call> {
        let max_large_calls = (self.shared.pool.max_connections - 1).max(1);
        while in_flight.large_calls < max_large_calls
            && let Some(entry) = self.large.pop_front()
        {
            let mut selection = Selection::default();
            self.select(entry, in_flight, &mut selection);
            // Entries with few requests, which are here because they need both tables, share a call.
            while let Some(entry) = self.large.pop_front_if(|entry| selection.fits(entry)) {
                self.select(entry, in_flight, &mut selection);
            }
            if selection.requests > 0 {
                let batches = selection.batches.into_iter().flatten().collect();
                return Some(Call::of(batches, true));
            }
        }
        None
    }

    /// Selects a fair share of all requests that wait or are in flight. Each table gets a call of its own, so that
    /// ephemeral decisions do not wait for a disk.
    ///
    /// A key is in one call at a time: its requests are decided in order, and the connections of this process do not
    /// contend for the lock of its row.
    fn next_small_calls(&mut self, in_flight: &InFlight) -> Vec<Call> {
        let mut selection = Selection::default();
        while selection.requests < FULL_BATCH
            && let Some(entry) = self.ready.pop_if(|entry| selection.fits(entry))
        {
            self.select(entry, in_flight, &mut selection);
        }
        let waiting = self.queue.waiting_requests() + selection.requests;
        let share = in_flight.load.share(waiting, self.shared.pool.max_connections.min(USUAL_CALLS));
        while selection.requests < share && self.ready.requests == 0 && !self.is_full() {
            let Some(entry) = self.queue.try_recv() else { break };
            if is_large(&entry) {
                self.large.push_back(entry);
                continue;
            }
            if selection.fits(&entry) {
                self.select(entry, in_flight, &mut selection);
            } else {
                self.ready.push(entry);
            }
        }
        let has_any = |batches: &Batches<Batch>| !batches.is_empty();
        selection.batches.into_iter().filter(has_any).map(|batches| Call::of(batches, false)).collect()
    }

    /// Selects the requests of an entry. Those whose key is in flight are blocked.
    fn select(&mut self, entry: Queued, in_flight: &InFlight, selection: &mut Selection) {
        entry.for_each(|request| {
            if in_flight.names.contains(&request.operation.name) {
                self.blocked.add(request);
            } else {
                selection.add(request);
            }
        });
    }

    /// Keeps an entry until a call can be sent. A request whose key is in flight is blocked at once, unless ready entries
    /// may contain an earlier request of that key.
    fn stage(&mut self, entry: Queued, in_flight: &InFlight) {
        if is_large(&entry) {
            return self.large.push_back(entry);
        }
        let is_in_flight = |request: &Request| in_flight.names.contains(&request.operation.name);
        match entry {
            Queued::Single(request) if self.ready.requests == 0 && is_in_flight(&request) => {
                self.blocked.add(request);
            }
            _ => self.ready.push(entry),
        }
    }

    /// Moves the requests that waited for these keys ahead of all ready ones, which are later.
    fn unblock(&mut self, names: &[Name]) {
        for request in names.iter().rev().flat_map(|name| self.blocked.remove(name).into_iter().rev()) {
            self.ready.push_first(Queued::Single(request));
        }
    }
}

#[cfg(test)]
mod tests;
