//! The one decision procedure: several quotas together, or one without an allocation.

use crate::counter::{Counter, fits, report_denied, report_spent};
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
            let must_keep = spent > 0 || C::is_mended(&view);
            if must_keep {
                counter.commit(&view, quota, spent);
            }
            (Decision::one(is_allowed, report), must_keep)
        }
        Verb::Refund | Verb::Reset => {
            if verb == Verb::Refund {
                counter.refund(&view, quota, cost);
            } else {
                *counter = C::empty(quota);
            }
            let view = counter.view(quota, now_ms);
            (Decision::one(true, report_spent(counter, &view, quota, now_ms, 0)), true)
        }
    }
}

/// Decides for a whole policy, all or nothing. `true` in the second place says that the states have changed and
/// must be kept.
///
/// `states` may come from the policy as it was before a change, or be empty: they are first matched to its
/// quotas, see [`adopt`].
pub fn decide(states: &mut Vec<State>, policy: &Policy, action: Action) -> (Decision, bool) {
    adopt(states, policy.quotas());
    if let ([state], [quota]) = (states.as_mut_slice(), policy.quotas()) {
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
                reports.push(if is_allowed {
                    report_spent(state, view, quota, now_ms, spent)
                } else {
                    report_denied(state, view, quota, now_ms, cost)
                });
                if spent > 0 || State::is_mended(view) {
                    must_keep = true;
                    state.commit(view, quota, spent);
                }
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
                reports.push(report_spent(state, &view, quota, now_ms, 0));
            }
            (Decision::many(true, reports), true)
        }
    }
}

/// Matches states to quotas after a policy was changed: first those that count the same window by the same
/// algorithm, then what stood at the same place with the same algorithm; another algorithm starts afresh.
fn adopt(states: &mut Vec<State>, quotas: &[Quota]) {
    let counts = |state: &State, quota: &Quota| {
        state.algorithm() == quota.algorithm() && state.window_ms() == quota.window_ms()
    };
    if states.len() == quotas.len() && states.iter().zip(quotas).all(|(state, quota)| counts(state, quota)) {
        return;
    }
    let mut old: Vec<Option<State>> = states.drain(..).map(Some).collect();
    let mut adopted: Vec<Option<State>> = quotas
        .iter()
        .map(|quota| {
            old.iter_mut().find(|state| state.as_ref().is_some_and(|state| counts(state, quota)))?.take()
        })
        .collect();
    for (place, (state, quota)) in adopted.iter_mut().zip(quotas).enumerate() {
        if state.is_none() {
            let before = old.get_mut(place).filter(|before| {
                before.as_ref().is_some_and(|before| before.algorithm() == quota.algorithm())
            });
            *state = before.and_then(Option::take);
        }
    }
    states.extend(
        adopted.into_iter().zip(quotas).map(|(state, quota)| state.unwrap_or_else(|| State::empty(quota))),
    );
}
