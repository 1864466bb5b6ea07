//! The one decision procedure: several quotas together, or one without an allocation.

use crate::counter::{Counter, fits, report_denied, report_spent, with_more_after};
use crate::decision::Decision;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::state::State;

/// The latest moment that is told apart, some 36 million years on: no sum of times overflows.
const LATEST_MS: u64 = 1 << 60;

/// What to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Spend the cost if every quota allows it.
    Check,
    /// Say what a check would say, and spend nothing.
    Peek,
    /// Give back up to the cost.
    Refund,
    /// Forget the key.
    Reset,
}

/// A verb, the moment it happens and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    verb: Verb,
    now_ms: u64,
    cost: u64,
}

impl Action {
    /// What to do, when (in milliseconds since the Unix epoch, by the store's clock), and how much to spend or to
    /// give back.
    #[inline(always)]
    pub fn new(verb: Verb, now_ms: u64, cost: u64) -> Self {
        Self { verb, now_ms: now_ms.min(LATEST_MS), cost }
    }

    /// What to do.
    #[inline(always)]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The moment; never so late that a sum of times would overflow.
    #[inline(always)]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// How much to spend or to give back.
    #[inline(always)]
    pub fn cost(&self) -> u64 {
        self.cost
    }
}

/// Decides for one quota. `true` in the second place says that the counter has changed and must be kept.
#[inline(always)]
pub fn decide_one<C: Counter>(counter: &mut C, quota: &Quota, action: Action) -> (Decision, bool) {
    let Action { verb, now_ms, cost } = action;
    let view = counter.view(quota, now_ms);
    match verb {
        Verb::Check | Verb::Peek => {
            let is_allowed = fits(quota, C::used(&view), cost);
            let spent = if is_allowed && verb == Verb::Check { cost } else { 0 };
            let report = if is_allowed {
                report_spent(counter, &view, quota, now_ms, spent)
            } else {
                report_denied(counter, &view, quota, now_ms, cost)
            };
            let must_keep = spent > 0 || (verb == Verb::Check && C::is_mended(&view));
            if must_keep {
                counter.commit(&view, quota, spent);
            }
            (Decision::one(is_allowed, with_more_after(report, counter, quota, now_ms)), must_keep)
        }
        Verb::Refund | Verb::Reset => {
            if verb == Verb::Refund {
                counter.refund(&view, quota, cost);
            } else {
                *counter = C::empty(quota);
            }
            let view = counter.view(quota, now_ms);
            let report = report_spent(counter, &view, quota, now_ms, 0);
            (Decision::one(true, with_more_after(report, counter, quota, now_ms)), true)
        }
    }
}

/// Of states that are nobody's now, so many are kept: those of another version of a policy, which has at most as many
/// quotas.
const MOST_LEFT: usize = 16;

/// Decides for a whole policy, all or nothing. `true` in the second place says that the states have changed and
/// must be kept; otherwise they are as they were.
///
/// `states` may come from the policy as it was before a change, or be empty: they are first matched to its
/// quotas. The same window counted by the same algorithm is the same quota, of buckets first that of the same rate; else
/// what stands at the same place with the same algorithm is carried over; another algorithm starts afresh. What is left is kept behind the others for as
/// long as it counts something: while a policy is in use in two versions, by tiers or on two servers, each finds again what
/// only it counts.
pub fn decide(states: &mut Vec<State>, policy: &Policy, action: Action) -> (Decision, bool) {
    if is_counted_for(states, policy.quotas()) {
        return decide_with_left(states, policy, action);
    }
    let mut adopted = adopt(states, policy.quotas());
    let (decision, must_keep) = decide_with_left(&mut adopted, policy, action);
    if must_keep {
        *states = adopted;
    }
    (decision, must_keep)
}

/// The same for states of which the first stand at the places of their quotas.
fn decide_with_left(states: &mut Vec<State>, policy: &Policy, action: Action) -> (Decision, bool) {
    let own = policy.quotas().len();
    let answer = decide_matched(&mut states[..own], policy, action);
    if answer.1 && states.len() > own {
        let is_forgotten = action.verb() == Verb::Reset;
        let mut left = states.split_off(own);
        left.retain(|state| !is_forgotten && state.left_until_ms(action.now_ms()).is_some());
        left.truncate(MOST_LEFT);
        states.append(&mut left);
    }
    answer
}

/// [`decide`] for states that were matched to the policy's quotas elsewhere: each stands at the place of its quota and is
/// of its algorithm.
pub fn decide_matched(states: &mut [State], policy: &Policy, action: Action) -> (Decision, bool) {
    if let ([state], [quota]) = (&mut *states, policy.quotas()) {
        return decide_one(state, quota, action);
    }
    let Action { verb, now_ms, cost } = action;
    let quotas = policy.quotas();
    let views: Vec<_> = states.iter().zip(quotas).map(|(state, quota)| state.view(quota, now_ms)).collect();
    match verb {
        Verb::Check | Verb::Peek => {
            let is_allowed =
                views.iter().zip(quotas).all(|(view, quota)| fits(quota, State::used(view), cost));
            let spent = if is_allowed && verb == Verb::Check { cost } else { 0 };
            let mut reports = Vec::with_capacity(quotas.len());
            let mut must_keep = spent > 0;
            for ((state, view), quota) in states.iter_mut().zip(&views).zip(quotas) {
                let report = if is_allowed {
                    report_spent(state, view, quota, now_ms, spent)
                } else {
                    report_denied(state, view, quota, now_ms, cost)
                };
                if spent > 0 || (verb == Verb::Check && State::is_mended(view)) {
                    must_keep = true;
                    state.commit(view, quota, spent);
                }
                reports.push(with_more_after(report, state, quota, now_ms));
            }
            (Decision::many(is_allowed, reports), must_keep)
        }
        Verb::Refund | Verb::Reset => {
            let mut reports = Vec::with_capacity(quotas.len());
            for ((state, view), quota) in states.iter_mut().zip(&views).zip(quotas) {
                if verb == Verb::Refund {
                    state.refund(view, quota, cost);
                } else {
                    *state = State::empty(quota);
                }
                let view = state.view(quota, now_ms);
                let report = report_spent(state, &view, quota, now_ms, 0);
                reports.push(with_more_after(report, state, quota, now_ms));
            }
            (Decision::many(true, reports), true)
        }
    }
}

/// Whether for each quota the state at its place counts it.
fn is_counted_for(states: &[State], quotas: &[Quota]) -> bool {
    states.len() >= quotas.len() && states.iter().zip(quotas).all(|(state, quota)| counts(state, quota))
}

/// Whether it is this quota's own. A debt is paid off at its own rate, so that of another bucket will not do.
fn counts(state: &State, quota: &Quota) -> bool {
    counts_window(state, quota) && state.rate().is_none_or(|limit| limit == quota.limit())
}

fn counts_window(state: &State, quota: &Quota) -> bool {
    state.algorithm() == quota.algorithm() && state.window_ms() == quota.window_ms()
}

/// The states for `quotas`, as far as there are any among `states`, and then those that are left.
fn adopt(states: &[State], quotas: &[Quota]) -> Vec<State> {
    let mut left: Vec<Option<&State>> = states.iter().map(Some).collect();
    let mut matched: Vec<Option<&State>> = vec![None; quotas.len()];
    for is_own in [counts, counts_window] {
        for (found, quota) in matched.iter_mut().zip(quotas).filter(|(found, _)| found.is_none()) {
            let own = left.iter_mut().find(|state| state.is_some_and(|state| is_own(state, quota)));
            *found = own.and_then(Option::take);
        }
    }
    for ((found, quota), at_its_place) in matched.iter_mut().zip(quotas).zip(&mut left) {
        if found.is_none() && at_its_place.is_some_and(|state| state.algorithm() == quota.algorithm()) {
            *found = at_its_place.take();
        }
    }
    let adopted = matched.into_iter().zip(quotas);
    let adopted = adopted.map(|(found, quota)| found.cloned().unwrap_or_else(|| State::empty(quota)));
    adopted.chain(left.into_iter().flatten().cloned()).collect()
}
