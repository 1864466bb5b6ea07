//! Carries counts over when a policy changes: matches states to quotas, and keeps the states of other versions.

use crate::action::{Action, Verb};
use crate::counter::Counter;
use crate::policy::Policy;
use crate::quota::{MAX_WINDOW_MS, Quota};
use crate::state::State;

/// The most states of other versions of a policy that are kept: as many as a version has quotas.
const MOST_LEFT: usize = 16;

/// States at the places of their quotas, and the remaining ones behind them.
pub(crate) struct Adopted {
    pub(crate) states: Vec<State>,
    /// For quotas whose state is a copy: their place, and that of the source among the states.
    pub(crate) copied_from: Vec<(usize, usize)>,
}

/// Whether for each quota the state at its place counts it.
pub(crate) fn is_counted_for(states: &[State], quotas: &[Quota]) -> bool {
    states.len() >= quotas.len() && states.iter().zip(quotas).all(|(state, quota)| state.is_of(quota))
}

/// The moment until which the key is blocked; 0 if it is not. A block that ends later than any could is of a clock that has
/// stepped far back.
pub(crate) fn blocked_until_ms(states: &[State], now_ms: u64) -> u64 {
    let blocks = states.iter().filter_map(|state| match state {
        State::Block { until_ms } => Some(*until_ms),
        _ => None,
    });
    blocks.filter(|until_ms| until_ms.saturating_sub(now_ms) <= MAX_WINDOW_MS).max().unwrap_or(0)
}

/// The states for `quotas`, as far as there are any among `states`, and then the remaining ones.
///
/// Each quota takes the state that counts it. A quota without one copies from a state of its algorithm that counts something: a
/// token bucket of the same window first, else the nearest window. The source stays, so that a version of the policy that
/// is still in use finds its own count; and one source serves one quota.
pub(crate) fn adopt(states: &[State], quotas: &[Quota], now_ms: u64) -> Adopted {
    let mut is_taken = vec![false; states.len()];
    let mut own: Vec<Option<usize>> = vec![None; quotas.len()];
    for (own, quota) in own.iter_mut().zip(quotas) {
        *own = (0..states.len()).find(|place| !is_taken[*place] && states[*place].is_of(quota));
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
                .filter(|at| !is_source[*at] && states[*at].could_count(quota, now_ms))
                .filter(|at| !is_same_window || distance_ms(at) == 0)
                .min_by_key(distance_ms);
            sources[place] = source.inspect(|at| is_source[*at] = true);
        }
    }
    let mut adopted: Vec<State> = (0..quotas.len())
        .map(|place| {
            let from = own[place].or(sources[place]);
            from.map_or_else(|| State::empty(&quotas[place]), |from| states[from].clone())
        })
        .collect();
    let mut copied_from = Vec::new();
    for (at, state) in states.iter().enumerate().filter(|(at, _)| !is_taken[*at]) {
        let copy = sources.iter().position(|source| *source == Some(at));
        copied_from.extend(copy.map(|copy| (copy, adopted.len())));
        adopted.push(state.clone());
    }
    Adopted { states: adopted, copied_from }
}

/// Counts spent and refunded units in the states behind the policy's own, drops the states that are not kept, and puts a
/// block last.
///
/// Every state of the policy's algorithms counts every spent unit and gives back every refunded one, so a version that
/// returns has a complete count.
///
/// A state stays while it counts something. Beside other states of its algorithm it then stays until two of their longest
/// window have passed since it was last written: a version of the policy that has copied a count and used it up does not copy
/// it again.
pub(crate) fn keep_left(
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
        _ => blocked_until_ms(states, now_ms),
    };
    // A copy that is still counted by the source's window is the source itself.
    let is_moved = |at: usize| {
        copied_from.iter().any(|(copy, source)| *source == at && states[*copy].is_alike(&states[at]))
    };
    let own = policy.quotas().len();
    let keep_dead_ms = |at: usize| {
        let algorithm = states[at].algorithm();
        let of_quotas = policy.quotas().iter().filter(|quota| Some(quota.algorithm()) == algorithm);
        let is_other = |(other, state): &(usize, &State)| *other != at && state.algorithm() == algorithm;
        let of_states = states.iter().enumerate().filter(is_other).map(|(_, state)| state.window_ms());
        let longest_ms = of_quotas.map(Quota::window_ms).chain(of_states).max()?;
        Some(2 * longest_ms.max(states[at].window_ms()))
    };
    let is_kept =
        |at: &usize| states[*at].is_kept(now_ms, || keep_dead_ms(*at).unwrap_or(0)) && !is_moved(*at);
    // States that count something go before those that are used up.
    let (live, dead): (Vec<usize>, Vec<usize>) =
        (own..states.len()).filter(is_kept).partition(|at| states[*at].is_counting(now_ms));
    let kept: Vec<usize> = live.into_iter().chain(dead).take(MOST_LEFT).collect();
    let mut at = 0;
    states.retain(|_| {
        at += 1;
        at <= own || kept.contains(&(at - 1))
    });
    let given_back = if action.verb() == Verb::Refund { action.cost() } else { 0 };
    if spent > 0 || given_back > 0 {
        let algorithms = policy.quotas().iter().map(Quota::algorithm);
        let is_counted = |state: &State| algorithms.clone().any(|one| state.algorithm() == Some(one));
        for state in states.iter_mut().skip(own).filter(|state| is_counted(state)) {
            state.spend(action.moment(), spent);
            state.give_back(action.moment(), given_back);
        }
    }
    if blocked_until_ms > now_ms {
        states.push(State::Block { until_ms: blocked_until_ms });
    }
}
