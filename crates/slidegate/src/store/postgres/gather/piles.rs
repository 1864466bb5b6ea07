//! Where requests are between the queue and their answers.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::store::postgres::batch::{Batch, Name, Request};
use crate::store::remote::Queued;

/// So many keep a connection busy for some 2 ms.
pub(super) const MAX_BATCH: usize = 64;

/// Whether it takes more than one transaction: others must not wait for all of these.
pub(super) fn is_large(waiting: &Queued<Request>) -> bool {
    match waiting {
        Queued::Single(_) => false,
        Queued::Group(requests) => {
            let has = |is_durable| requests.iter().any(|request| request.is_durable == is_durable);
            requests.len() > MAX_BATCH || (has(true) && has(false))
        }
    }
}

/// Taken from the queue and not under way.
#[derive(Default)]
pub(super) struct Ready {
    waiting: VecDeque<Queued<Request>>,
    pub(super) requests: usize,
}

impl Ready {
    pub(super) fn push(&mut self, waiting: Queued<Request>) {
        self.requests += waiting.len();
        self.waiting.push_back(waiting);
    }

    pub(super) fn push_first(&mut self, waiting: Queued<Request>) {
        self.requests += waiting.len();
        self.waiting.push_front(waiting);
    }

    pub(super) fn pop_if(
        &mut self,
        is_wanted: impl FnOnce(&Queued<Request>) -> bool,
    ) -> Option<Queued<Request>> {
        let waiting = self.waiting.pop_front_if(|waiting| is_wanted(waiting))?;
        self.requests -= waiting.len();
        Some(waiting)
    }
}

/// Taken from the queue, and their key is under way.
#[derive(Default)]
pub(super) struct Blocked {
    by_name: HashMap<Name, Vec<Request>>,
    pub(super) requests: usize,
}

impl Blocked {
    pub(super) fn names(&self) -> Vec<Name> {
        self.by_name.keys().copied().collect()
    }

    pub(super) fn add(&mut self, request: Request) {
        self.requests += 1;
        self.by_name.entry(request.name).or_default().push(request);
    }

    pub(super) fn remove(&mut self, name: &Name) -> Vec<Request> {
        let removed = self.by_name.remove(name).unwrap_or_default();
        self.requests -= removed.len();
        removed
    }
}

/// What goes out next, for each table, none of it larger than a statement should be.
#[derive(Default)]
pub(super) struct Next {
    pub(super) batches: [Vec<Batch>; 2],
    pub(super) requests: usize,
}

impl Next {
    /// Whoever does not fit waits for the next call, so that those who were asked for together are one statement.
    pub(super) fn has_room_for(&self, waiting: &Queued<Request>) -> bool {
        self.requests + waiting.len() <= MAX_BATCH
    }

    /// Adds a request, unless its caller has given up.
    pub(super) fn add(&mut self, request: Request) {
        if !request.reply.mark_dispatched() {
            return;
        }
        self.requests += 1;
        let batches = &mut self.batches[usize::from(request.is_durable)];
        // One statement has all there is for a key, however much: what is sent again cannot change their order.
        let is_before = |batch: &Batch| batch.requests >= MAX_BATCH && batch.has(request.name);
        if let Some(place) = batches.iter().position(is_before) {
            return batches[place].add(request);
        }
        match batches.last_mut() {
            Some(last) if last.requests < MAX_BATCH => last.add(request),
            _ => batches.push(Batch::of(request)),
        }
    }
}

/// What leaves on one connection.
pub(super) struct Call {
    pub(super) batches: Vec<Batch>,
    pub(super) carried: Carried,
}

impl Call {
    pub(super) fn of(batches: Vec<Batch>, is_large: bool) -> Self {
        let names = batches.iter().flat_map(Batch::names).collect();
        let requests = batches.iter().map(|batch| batch.requests).sum();
        Self { batches, carried: Carried { names, requests, is_large } }
    }
}

/// What a call carries.
pub(super) struct Carried {
    pub(super) names: Vec<Name>,
    pub(super) requests: usize,
    pub(super) is_large: bool,
}

/// What is under way.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) names: HashSet<Name>,
    pub(super) requests: usize,
    /// How many calls are large.
    pub(super) large: usize,
}

impl Sent {
    pub(super) fn add(&mut self, carried: &Carried) {
        self.names.extend(&carried.names);
        self.requests += carried.requests;
        self.large += usize::from(carried.is_large);
    }

    pub(super) fn remove(&mut self, carried: &Carried) {
        for name in &carried.names {
            self.names.remove(name);
        }
        self.requests -= carried.requests;
        self.large -= usize::from(carried.is_large);
    }
}
