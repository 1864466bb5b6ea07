//! Carries counts over when a policy changes: matches states to quotas, and retains the states of other versions.

use crate::action::{Action, Verb};
use crate::counter::Counter;
use crate::policy::Policy;
use crate::quota::{MAX_WINDOW_MS, Quota};
use crate::state::State;

/// Maximum number of retained states of other versions of a policy. Equal to the maximum number of quotas of a version.
const MAX_OTHER_STATES: usize = 16;

/// States at the positions of their quotas, followed by the states of other versions.
pub(crate) struct CarriedStates {
    pub(crate) states: Vec<State>,
    /// For each quota whose state is a copy: the position of the copy and of its source in `states`.
    pub(crate) copied_from: Vec<(usize, usize)>,
}

/// Whether each quota has its own state at its position.
pub(crate) fn are_states_of(states: &[State], quotas: &[Quota]) -> bool {
    states.len() >= quotas.len() && states.iter().zip(quotas).all(|(state, quota)| state.belongs_to(quota))
}

/// Returns the end of the key's block, or 0. Ignores a block that ends later than the longest block would: the clock has
/// stepped far back since.
pub(crate) fn blocked_until_ms(states: &[State], now_ms: u64) -> u64 {
    let blocks = states.iter().filter_map(|state| match state {
        State::Block { until_ms } => Some(*until_ms),
        _ => None,
    });
    blocks.filter(|until_ms| until_ms.saturating_sub(now_ms) <= MAX_WINDOW_MS).max().unwrap_or(0)
}

/// Matches states to quotas, and returns the remaining states behind them.
///
/// 1. Each quota takes its own state.
/// 2. A quota without its own state copies a live state of its algorithm: one with the same window, otherwise the one with the
///    nearest window. Each state is the source of at most one copy. The source remains, so that a version of the policy that is
///    still in use finds its own count.
/// 3. All other quotas start with an empty state.
pub(crate) fn carry_states(states: &[State], quotas: &[Quota], now_ms: u64) -> CarriedStates {
    let mut is_taken = vec![false; states.len()];
    let mut own: Vec<Option<usize>> = vec![None; quotas.len()];
    for (own, quota) in own.iter_mut().zip(quotas) {
        *own = (0..states.len()).find(|place| !is_taken[*place] && states[*place].belongs_to(quota));
        own.inspect(|place| is_taken[*place] = true);
    }
    let mut sources: Vec<Option<usize>> = vec![None; quotas.len()];
    let mut is_source = is_taken.clone();
    for is_same_window in [true, false] {
        for (place, quota) in quotas.iter().enumerate() {
            if own[place].is_some() || sources[place].is_some() {
                continue;
            }
            let distance_ms = |at: &usize| states[*at].window_ms().abs_diff(quota.window_ms());
            let source = (0..states.len())
                .filter(|at| !is_source[*at] && states[*at].can_seed(quota, now_ms))
                .filter(|at| !is_same_window || distance_ms(at) == 0)
                .min_by_key(distance_ms);
            sources[place] = source.inspect(|at| is_source[*at] = true);
        }
    }
    let mut carried: Vec<State> = (0..quotas.len())
        .map(|place| {
            let from = own[place].or(sources[place]);
            from.map_or_else(|| State::empty(&quotas[place]), |from| states[from].clone())
        })
        .collect();
    let mut copied_from = Vec::new();
    for (at, state) in states.iter().enumerate().filter(|(at, _)| !is_taken[*at]) {
        let copy = sources.iter().position(|source| *source == Some(at));
        copied_from.extend(copy.map(|copy| (copy, carried.len())));
        carried.push(state.clone());
    }
    CarriedStates { states: carried, copied_from }
}

/// Updates the states of other versions, which follow the policy's own states, drops the expired ones, and appends a block.
///
/// Spent and refunded units count in every state of the policy's algorithms, so that each version finds a complete count when it
/// is in use again.
///
/// A live state is retained. An expired state is retained beside other states of its algorithm until two of their longest windows
/// have passed since its last update. Otherwise a version of the policy that has copied a count and used it up could copy it
/// again.
pub(crate) fn retain_others(
    states: &mut Vec<State>,
    copied_from: &[(usize, usize)],
    policy: &Policy,
    action: Action,
    spent: u64,
) {
    let now_ms = action.now_ms();
    let blocked_until_ms = match action.verb() {
        Verb::Block if action.block_ms() == 0 => 0,
        Verb::Block => now_ms + action.block_ms(),
        Verb::Check | Verb::Peek | Verb::Charge | Verb::Refund | Verb::Reset => {
            blocked_until_ms(states, now_ms)
        }
    };
    // A copy under the quota of its source replaces the source.
    let is_replaced = |at: usize| {
        copied_from.iter().any(|(copy, source)| *source == at && states[*copy].is_equivalent(&states[at]))
    };
    let own = policy.quotas().len();
    let retain_expired_ms = |at: usize| {
        let algorithm = states[at].algorithm();
        let of_quotas = policy.quotas().iter().filter(|quota| Some(quota.algorithm()) == algorithm);
        let is_other = |(other, state): &(usize, &State)| *other != at && state.algorithm() == algorithm;
        let of_states = states.iter().enumerate().filter(is_other).map(|(_, state)| state.window_ms());
        let longest_ms = of_quotas.map(Quota::window_ms).chain(of_states).max()?;
        Some(2 * longest_ms.max(states[at].window_ms()))
    };
    let is_retained =
        |at: &usize| states[*at].is_retained(now_ms, || retain_expired_ms(*at)) && !is_replaced(*at);
    // Live states take precedence over expired ones.
    let (live, expired): (Vec<usize>, Vec<usize>) =
        (own..states.len()).filter(is_retained).partition(|at| states[*at].is_live(now_ms));
    let retained: Vec<usize> = live.into_iter().chain(expired).take(MAX_OTHER_STATES).collect();
    let mut at = 0;
    states.retain(|_| {
        at += 1;
        at <= own || retained.contains(&(at - 1))
    });
    let given_back = if action.verb() == Verb::Refund { action.cost() } else { 0 };
    if spent > 0 || given_back > 0 {
        let algorithms = policy.quotas().iter().map(Quota::algorithm);
        let is_counted = |state: &State| algorithms.clone().any(|one| state.algorithm() == Some(one));
        for state in states.iter_mut().skip(own).filter(|state| is_counted(state)) {
            state.spend_at(action.moment(), spent);
            state.refund_at(action.moment(), given_back);
        }
    }
    if blocked_until_ms > now_ms {
        states.push(State::Block { until_ms: blocked_until_ms });
    }
}
