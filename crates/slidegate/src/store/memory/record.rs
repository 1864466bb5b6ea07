//! Counters that fit neither into a word nor beside it: several quotas, logs, very large limits.

use std::sync::Arc;

use slidegate_core::{Action, Counter, Decision, Moment, Policy, Quota, State, Verb, decide, decide_one};

/// What is kept beside the table for one key.
#[derive(Debug)]
pub(super) struct Record {
    states: States,
    /// The quotas of the last write, to tell what the states mean when their place is wanted.
    quotas: Arc<[Quota]>,
    /// Whether they came with a request, and are nobody else's.
    are_own: bool,
}

/// One quota needs no allocation of its own.
#[derive(Debug)]
enum States {
    One(State),
    Many(Vec<State>),
}

impl Record {
    pub(super) fn new(policy: &Policy, states: Vec<State>) -> Self {
        let quotas = policy.shared_quotas().clone();
        let mut record = Self { states: States::Many(states), quotas, are_own: policy.is_anonymous() };
        record.settle();
        record
    }

    /// What it counts, if that is for one quota only.
    pub(super) fn only_state(&self) -> Option<&State> {
        if let States::One(state) = &self.states { Some(state) } else { None }
    }

    /// The latest moment that it knows of.
    pub(super) fn latest_ms(&self) -> u64 {
        self.states().iter().map(State::latest_ms).max().unwrap_or(0)
    }

    /// Decides; `true` says that something has changed.
    pub(super) fn decide(&mut self, policy: &Policy, action: Action) -> (Decision, bool) {
        if let (States::One(state), [quota]) = (&mut self.states, policy.quotas())
            && action.verb() != Verb::Block
            && state.is_of(quota)
        {
            let answer = decide_one(state, quota, action);
            if answer.1 {
                self.keep_quotas(policy);
            }
            return answer;
        }
        let mut states = match std::mem::replace(&mut self.states, States::Many(Vec::new())) {
            States::One(state) => vec![state],
            States::Many(states) => states,
        };
        let answer = decide(&mut states, policy, action);
        self.states = States::Many(states);
        self.settle();
        if answer.1 {
            self.keep_quotas(policy);
        }
        answer
    }

    /// What is used, how much is allowed, and when nothing is counted any more, for each quota.
    pub(super) fn outlook(&self, now_ms: u64) -> Outlook {
        let states = self.states();
        let each = states.iter().zip(self.quotas.iter()).map(|(state, quota)| outlook(state, quota, now_ms));
        // A block, or what is counted for another version of the policy, whose limit is not known here: it may be denied.
        let left = states.iter().skip(self.quotas.len()).filter_map(|state| {
            let until_ms = state.left_until_ms(now_ms)?;
            let is_block = matches!(state, State::Block { .. });
            Some(if is_block {
                Outlook::Denied { until_ms }
            } else {
                Outlook::Live { used_64ths: 63, until_ms }
            })
        });
        each.chain(left).max().unwrap_or(Outlook::Over)
    }

    /// Whether a reset has something to forget.
    pub(super) fn counts_something(&self, now_ms: u64) -> bool {
        self.states().iter().any(|state| state.left_until_ms(now_ms).is_some())
    }

    /// By how much it may grow with the next check under `policy`.
    pub(super) fn growth_bytes(&self, policy: &Policy) -> usize {
        let with_rounding = |bytes| if bytes == 0 { 0 } else { bytes + 32 };
        let states = self.states().iter().map(|state| with_rounding(state.growth_bytes())).sum::<usize>();
        // A changed policy has other states, which are kept beside those that there are.
        let is_changed = *self.quotas != *policy.quotas();
        states + if is_changed { self.heap_bytes() / 2 + 256 * policy.quotas().len() } else { 0 }
    }

    /// The memory that it takes besides itself.
    pub(super) fn heap_bytes(&self) -> usize {
        let states = match &self.states {
            States::One(state) => heap_bytes_of_state(state),
            States::Many(states) => heap_bytes_of_states(states),
        };
        states + if self.are_own { heap_bytes_of_quotas(&self.quotas) } else { 0 }
    }

    /// The memory that a record of these states takes besides itself; less if it is only one.
    pub(super) fn heap_bytes_of(policy: &Policy, states: &Vec<State>) -> usize {
        let quotas = if policy.is_anonymous() { heap_bytes_of_quotas(policy.quotas()) } else { 0 };
        heap_bytes_of_states(states) + quotas
    }

    fn states(&self) -> &[State] {
        match &self.states {
            States::One(state) => std::slice::from_ref(state),
            States::Many(states) => states,
        }
    }

    fn settle(&mut self) {
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
            self.are_own = policy.is_anonymous();
        }
    }
}

fn heap_bytes_of_states(states: &Vec<State>) -> usize {
    allocated(states.capacity() * size_of::<State>()) + states.iter().map(heap_bytes_of_state).sum::<usize>()
}

fn heap_bytes_of_state(state: &State) -> usize {
    state.heap_bytes().map(allocated).iter().sum()
}

/// With the two counts of an `Arc`.
fn heap_bytes_of_quotas(quotas: &[Quota]) -> usize {
    allocated(size_of_val(quotas) + 2 * size_of::<usize>())
}

/// What the allocator takes for so many bytes: glibc has a word before each, a step of sixteen, and at least thirty-two.
pub(super) fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// What would be lost if a key were forgotten now. The greater, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outlook {
    /// Nothing: nothing is counted.
    Over,
    /// Some count: so many sixty-fourths of the limit, which would be gone by itself at this time. Who has little left is
    /// denied already if it asks for more than that.
    Live { used_64ths: u64, until_ms: u64 },
    /// A denial of all that costs anything, which ends by itself at this time.
    Denied { until_ms: u64 },
}

impl Outlook {
    /// Until when it is worth as much.
    pub(super) fn until_ms(self) -> u64 {
        match self {
            Self::Over => 0,
            Self::Live { until_ms, .. } | Self::Denied { until_ms } => until_ms,
        }
    }
}

/// The outlook of one counter.
pub(super) fn outlook<C: Counter>(counter: &C, quota: &Quota, now_ms: u64) -> Outlook {
    let view = counter.view(quota, Moment::exact(now_ms));
    match C::used(&view) {
        0 => Outlook::Over,
        used if used >= quota.capacity() => {
            let least = quota.capacity().min(1);
            Outlook::Denied { until_ms: counter.retry_at_ms(&view, quota, least) }
        }
        used => {
            // At most 2^48, and less than the capacity.
            let used_64ths = used * 64 / quota.capacity();
            Outlook::Live { used_64ths, until_ms: counter.reset_at_ms(&view, quota, 0) }
        }
    }
}
