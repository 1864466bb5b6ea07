//! Counts of the callers' results.

use std::collections::BTreeMap;

use slidegate::resilience::OnFailure;
use slidegate::{Decision, Source, StoreError};

use crate::load::NODES;

pub(crate) const MODES: [OnFailure; 3] = [OnFailure::Closed, OnFailure::Local, OnFailure::Open];

/// Identity of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) node: usize,
    pub(crate) mode: usize,
    /// Whether the caller uses the shared hot key, or a new key for each request.
    pub(crate) is_for_hot_key: bool,
}

/// All results so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// In the order of [`MODES`].
    pub(crate) modes: [Responses; 3],
    /// Number of the store's decisions per node.
    pub(crate) by_node: [u64; NODES as usize],
    pub(crate) longest_ms: u64,
    /// Longest duration of a timer of the layer's budget: the machine's share of any wait.
    pub(crate) longest_timer_ms: u64,
}

/// Results of the callers of one mode.
#[derive(Clone, Debug, Default)]
pub(crate) struct Responses {
    pub(crate) by_store: u64,
    /// Number of fallback decisions per reason.
    pub(crate) by_fallback: BTreeMap<&'static str, u64>,
    pub(crate) errors: u64,
    /// Decisions with another source, which must not occur.
    pub(crate) unmarked: u64,
    /// Allowed requests without the store, on any key.
    pub(crate) admitted_without_store: u64,
    pub(crate) hot_admitted: u64,
    pub(crate) hot_admitted_by_store: u64,
    pub(crate) hot_denied_by_store: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, caller: Caller, response: &Result<Decision, StoreError>, took_ms: u64) {
        self.longest_ms = self.longest_ms.max(took_ms);
        let responses = &mut self.modes[caller.mode];
        let Ok(decision) = response else {
            responses.errors += 1;
            return;
        };
        let (is_allowed, is_hot) = (decision.is_allowed(), caller.is_for_hot_key);
        responses.hot_admitted += u64::from(is_hot && is_allowed);
        match decision.source() {
            Source::Store => {
                responses.by_store += 1;
                responses.hot_admitted_by_store += u64::from(is_hot && is_allowed);
                responses.hot_denied_by_store += u64::from(is_hot && !is_allowed);
                self.by_node[caller.node] += 1;
            }
            Source::Fallback(reason) => {
                *responses.by_fallback.entry(reason.name()).or_default() += 1;
                responses.admitted_without_store += u64::from(is_allowed);
            }
            _ => responses.unmarked += 1,
        }
    }

    /// Returns the fallback reasons of all modes.
    pub(crate) fn reasons(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for (reason, times) in self.modes.iter().flat_map(|responses| &responses.by_fallback) {
            *all.entry(*reason).or_default() += times;
        }
        all
    }
}

impl Responses {
    /// Returns the number of requests without a decision of the store.
    pub(crate) fn undecided(&self) -> u64 {
        self.errors + self.by_fallback.values().sum::<u64>()
    }

    pub(crate) fn all(&self) -> u64 {
        self.by_store + self.undecided() + self.unmarked
    }
}
