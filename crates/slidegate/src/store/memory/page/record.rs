//! Records: counters that fit neither into a word nor into the wide array, such as logs and those of several quotas.

use std::sync::Arc;

use slidegate_core::{Action, Decision, Policy, Quota, State, Verb, decide, decide_one};

use super::super::eviction_rank::{EvictionRank, eviction_rank};

/// Counters of one key, kept outside the table.
#[derive(Debug)]
pub(in super::super) struct Record {
    states: States,
    /// Quotas of the last write, by which the states are ranked for eviction.
    quotas: Arc<[Quota]>,
    /// Whether the quotas came with a request and are not shared with a policy.
    has_own_quotas: bool,
}

/// States of a key. A single state needs no allocation.
#[derive(Debug)]
enum States {
    One(State),
    Many(Vec<State>),
}

impl Record {
    pub(in super::super) fn new(policy: &Policy, states: Vec<State>) -> Self {
        let quotas = policy.shared_quotas().clone();
        let mut record = Self { states: States::Many(states), quotas, has_own_quotas: policy.is_anonymous() };
        record.inline_single_state();
        record
    }

    /// Returns the state if it is the only one.
    pub(in super::super) fn only_state(&self) -> Option<&State> {
        if let States::One(state) = &self.states { Some(state) } else { None }
    }

    /// Returns the latest time in any state.
    pub(in super::super) fn latest_ms(&self) -> u64 {
        self.states().iter().map(State::latest_ms).max().unwrap_or(0)
    }

    /// Decides. Returns `true` if a state has changed.
    pub(in super::super) fn decide(&mut self, policy: &Policy, action: Action) -> (Decision, bool) {
        if let (States::One(state), [quota]) = (&mut self.states, policy.quotas())
            && matches!(action.verb(), Verb::Check | Verb::Peek | Verb::Charge | Verb::Refund | Verb::Reset)
            && state.belongs_to(quota)
        {
            let (decision, is_changed) = decide_one(state, quota, action);
            if is_changed {
                self.keep_quotas(policy);
            }
            return (decision, is_changed);
        }
        let mut states = match std::mem::replace(&mut self.states, States::Many(Vec::new())) {
            States::One(state) => vec![state],
            States::Many(states) => states,
        };
        let (decision, is_changed) = decide(&mut states, policy, action);
        self.states = States::Many(states);
        self.inline_single_state();
        if is_changed {
            self.keep_quotas(policy);
        }
        (decision, is_changed)
    }

    /// Returns the highest rank of the states.
    pub(in super::super) fn eviction_rank(&self, now_ms: u64) -> EvictionRank {
        let states = self.states();
        let each =
            states.iter().zip(self.quotas.iter()).map(|(state, quota)| eviction_rank(state, quota, now_ms));
        // States beyond the quotas are a block, or counters of another version of the policy. The limit of the latter
        // is not known here, so they rank just below a denial.
        let others = states.iter().skip(self.quotas.len()).filter_map(|state| {
            let until_ms = state.expires_at_ms(now_ms)?;
            let is_block = matches!(state, State::Block { .. });
            Some(if is_block {
                EvictionRank::Denied { until_ms }
            } else {
                EvictionRank::Counting { used_64ths: 63, until_ms }
            })
        });
        each.chain(others).max().unwrap_or(EvictionRank::Idle)
    }

    /// Returns whether a state counts something, which a reset would clear.
    pub(in super::super) fn is_counting(&self, now_ms: u64) -> bool {
        self.states().iter().any(|state| state.expires_at_ms(now_ms).is_some())
    }

    /// Returns the bytes by which the record may grow with the next check under `policy`.
    pub(in super::super) fn growth_bytes(&self, policy: &Policy) -> usize {
        let with_rounding = |bytes| if bytes == 0 { 0 } else { bytes + 32 };
        let states = self.states().iter().map(|state| with_rounding(state.growth_bytes())).sum::<usize>();
        // A changed policy adds states of its own to those of the former version.
        let is_changed = *self.quotas != *policy.quotas();
        states + if is_changed { self.heap_bytes() / 2 + 256 * policy.quotas().len() } else { 0 }
    }

    /// Returns the bytes of the record's allocations.
    pub(in super::super) fn heap_bytes(&self) -> usize {
        let states = match &self.states {
            States::One(state) => heap_bytes_of_state(state),
            States::Many(states) => heap_bytes_of_states(states),
        };
        states + if self.has_own_quotas { heap_bytes_of_quotas(&self.quotas) } else { 0 }
    }

    /// Returns the bytes that a record of these states allocates at most; a single state needs fewer.
    pub(in super::super) fn heap_bytes_of(policy: &Policy, states: &Vec<State>) -> usize {
        let quotas = if policy.is_anonymous() { heap_bytes_of_quotas(policy.quotas()) } else { 0 };
        heap_bytes_of_states(states) + quotas
    }

    fn states(&self) -> &[State] {
        match &self.states {
            States::One(state) => std::slice::from_ref(state),
            States::Many(states) => states,
        }
    }

    fn inline_single_state(&mut self) {
        if let States::Many(states) = &mut self.states
            && states.len() == 1
            && let Some(state) = states.pop()
        {
            self.states = States::One(state);
        }
    }

    fn keep_quotas(&mut self, policy: &Policy) {
        if !Arc::ptr_eq(&self.quotas, policy.shared_quotas()) {
            self.quotas = policy.shared_quotas().clone();
            self.has_own_quotas = policy.is_anonymous();
        }
    }
}

fn heap_bytes_of_states(states: &Vec<State>) -> usize {
    allocated(states.capacity() * size_of::<State>()) + states.iter().map(heap_bytes_of_state).sum::<usize>()
}

fn heap_bytes_of_state(state: &State) -> usize {
    state.heap_bytes().map(allocated).iter().sum()
}

/// Includes the two reference counts of the `Arc`.
fn heap_bytes_of_quotas(quotas: &[Quota]) -> usize {
    allocated(size_of_val(quotas) + 2 * size_of::<usize>())
}

/// Returns the bytes that glibc's allocator uses for an allocation: a header of 8 bytes, rounded up to 16, at least 32.
pub(in super::super) fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}
