//! Requests between the queue and their responses: ready, blocked, selected for a call, in flight.

use std::collections::{HashMap, HashSet, VecDeque};

use super::PostgresStore;
use super::batch::{Batch, Request};
use super::name::Name;
use crate::store::remote::{self, Batches, FULL_BATCH, Load, add_to_batches};

pub(super) type Queued = remote::Queued<PostgresStore>;

/// Returns whether an entry takes more than one transaction. Other requests do not share a call with it.
pub(super) fn is_large(entry: &Queued) -> bool {
    match entry {
        Queued::Single(_) => false,
        Queued::Group(requests, _) => {
            let has = |is_durable| requests.iter().any(|request| request.operation.is_durable == is_durable);
            requests.len() > FULL_BATCH || (has(true) && has(false))
        }
    }
}

/// Entries that have left the queue and wait for a call.
#[derive(Default)]
pub(super) struct Ready {
    entries: VecDeque<Queued>,
    pub(super) requests: usize,
}

impl Ready {
    pub(super) fn push(&mut self, mut entry: Queued) {
        entry.free_slots();
        self.requests += entry.len();
        self.entries.push_back(entry);
    }

    pub(super) fn push_first(&mut self, entry: Queued) {
        self.requests += entry.len();
        self.entries.push_front(entry);
    }

    pub(super) fn pop_if(&mut self, is_wanted: impl FnOnce(&Queued) -> bool) -> Option<Queued> {
        let entry = self.entries.pop_front_if(|entry| is_wanted(entry))?;
        self.requests -= entry.len();
        Some(entry)
    }
}

/// Requests that wait for another request of their key, which is in flight.
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
        self.by_name.entry(request.operation.name).or_default().push(request);
    }

    pub(super) fn remove(&mut self, name: &Name) -> Vec<Request> {
        let removed = self.by_name.remove(name).unwrap_or_default();
        self.requests -= removed.len();
        removed
    }
}

/// Requests selected for the next calls, as batches per table.
#[derive(Default)]
pub(super) struct Selection {
    pub(super) batches: [Batches<Batch>; 2],
    pub(super) requests: usize,
}

impl Selection {
    /// Returns whether the entry fits. An entry is not divided here, so that a group is decided by one statement.
    pub(super) fn fits(&self, entry: &Queued) -> bool {
        self.requests + entry.len() <= FULL_BATCH
    }

    /// Adds a request, unless its caller has given up.
    pub(super) fn add(&mut self, request: Request) {
        if !request.mark_dispatched() {
            return;
        }
        self.requests += 1;
        let batches = &mut self.batches[usize::from(request.operation.is_durable)];
        add_to_batches(batches, request, true);
    }
}

/// Batches that are sent together on one connection.
pub(super) struct Call {
    pub(super) batches: Batches<Batch>,
    pub(super) contents: CallContents,
}

impl Call {
    pub(super) fn of(batches: Batches<Batch>, is_large: bool) -> Self {
        let names = batches.iter().flat_map(Batch::names).collect();
        let requests = batches.iter().map(|batch| batch.requests).sum();
        Self { batches, contents: CallContents { names, requests, is_large } }
    }
}

/// Keys and size of a call.
pub(super) struct CallContents {
    pub(super) names: Vec<Name>,
    pub(super) requests: usize,
    pub(super) is_large: bool,
}

/// Contents of the calls in flight.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) names: HashSet<Name>,
    pub(super) load: Load,
    pub(super) large_calls: usize,
}

impl InFlight {
    pub(super) fn add(&mut self, contents: &CallContents) {
        self.names.extend(&contents.names);
        self.load.add(contents.requests);
        self.large_calls += usize::from(contents.is_large);
    }

    pub(super) fn remove(&mut self, contents: &CallContents) {
        for name in &contents.names {
            self.names.remove(name);
        }
        self.load.remove(contents.requests);
        self.large_calls -= usize::from(contents.is_large);
    }
}
