//! The decision procedure, for one quota without an allocation or for several quotas together.

use crate::action::{Action, Verb};
use crate::carry_over::{CarriedStates, are_states_of, blocked_until_ms, carry_states, retain_others};
use crate::counter::{Counter, chargeable, complete_report, fits, report_denied, report_spent};
use crate::decision::Decision;
use crate::moment::Moment;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::state::State;

/// Decides for one quota. Returns the decision, and whether the counter has changed and must be stored.
#[inline(always)]
pub fn decide_one<C: Counter>(counter: &mut C, quota: &Quota, action: Action) -> (Decision, bool) {
    let (verb, now, cost) = (action.verb(), action.moment(), action.cost());
    let now_ms = now.now_ms();
    let view = counter.view(quota, now);
    match verb {
        Verb::Check | Verb::Peek => {
            let is_allowed = fits(quota, C::used(&view), cost);
            let spent = if is_allowed && verb == Verb::Check { cost } else { 0 };
            let report = if is_allowed {
                report_spent(counter, &view, quota, now_ms, spent)
            } else {
                report_denied(counter, &view, quota, now_ms, cost)
            };
            let must_store = spent > 0 || (verb == Verb::Check && C::is_adjusted(&view));
            if must_store {
                counter.commit(&view, quota, spent);
            }
            (Decision::one(is_allowed, complete_report(report, counter, quota, now)), must_store)
        }
        Verb::Charge | Verb::Refund | Verb::Reset | Verb::Block => {
            let must_store = apply(counter, &view, quota, action);
            let after = counter.view(quota, now);
            let report = report_denied(counter, &after, quota, now_ms, 0);
            let is_allowed = verb != Verb::Charge || report.retry.is_none();
            let report = if verb == Verb::Charge { report } else { report.with_retry(None) };
            (Decision::one(is_allowed, complete_report(report, counter, quota, now)), must_store)
        }
    }
}

/// Executes a charge, refund, reset or block, which need no condition. Returns whether the counter must be stored.
#[inline]
fn apply<C: Counter>(counter: &mut C, view: &C::View, quota: &Quota, action: Action) -> bool {
    match action.verb() {
        Verb::Check | Verb::Peek => return false,
        Verb::Charge => {
            let spent = chargeable(C::used(view), action.cost());
            if spent == 0 && !C::is_adjusted(view) {
                return false;
            }
            counter.commit(view, quota, spent);
        }
        Verb::Refund => counter.refund(view, quota, action.cost()),
        Verb::Reset => *counter = C::empty(quota),
        // The block is a state of its own. The counters are only rolled to now.
        Verb::Block => counter.refund(view, quota, 0),
    }
    true
}

/// Decides for a whole policy, all or nothing. Returns the decision, and whether the states have changed and must be stored.
///
/// `states` may be empty or come from another version of the policy. They are first matched to its quotas, see [`State`].
pub fn decide(states: &mut Vec<State>, policy: &Policy, action: Action) -> (Decision, bool) {
    let (quotas, now_ms) = (policy.quotas(), action.now_ms());
    if action.verb() == Verb::Reset {
        let is_found = states.iter().any(|state| state.expires_at_ms(now_ms).is_some());
        *states = quotas.iter().map(State::empty).collect();
        let (decision, _) = decide_matched(states, policy, action, 0);
        return (decision.with_found(is_found), true);
    }
    // Expired states count as absent, because a store may have dropped them.
    let is_known = states.iter().any(|state| state.is_live(now_ms));
    let blocked_until_ms = blocked_until_ms(states, now_ms);
    if is_known && are_states_of(states, quotas) {
        let result = decide_matched(&mut states[..quotas.len()], policy, action, blocked_until_ms);
        if result.1 && (states.len() > quotas.len() || action.verb() == Verb::Block) {
            retain_others(states, &[], policy, action, spent_by(&result.0, action));
        }
        return result;
    }
    let known = if is_known { &**states } else { &[] };
    let CarriedStates { states: mut carried, copied_from } = carry_states(known, quotas, now_ms);
    let result = decide_matched(&mut carried[..quotas.len()], policy, action, blocked_until_ms);
    if result.1 {
        retain_others(&mut carried, &copied_from, policy, action, spent_by(&result.0, action));
        *states = carried;
    }
    result
}

/// Returns the units that an action has spent from the policy's own states.
fn spent_by(decision: &Decision, action: Action) -> u64 {
    match action.verb() {
        Verb::Charge => action.cost(),
        Verb::Check if decision.is_allowed() => action.cost(),
        Verb::Check | Verb::Peek | Verb::Refund | Verb::Reset | Verb::Block => 0,
    }
}

/// Decides like [`decide`], for states that a store has already matched: each state is at the position of its quota and has its
/// algorithm. `blocked_until_ms` is the end of the key's block, or 0.
pub fn decide_matched(
    states: &mut [State],
    policy: &Policy,
    action: Action,
    blocked_until_ms: u64,
) -> (Decision, bool) {
    let blocked_ms = blocked_until_ms.saturating_sub(action.now_ms());
    let former_ms = if action.verb() == Verb::Peek {
        former_expires_after_ms(states, policy, action.moment())
    } else {
        0
    };
    match action.verb() {
        Verb::Check | Verb::Peek if blocked_ms > 0 => {
            let (decision, _) = decide_unblocked(states, policy, action.with_verb(Verb::Peek));
            (decision.with_block(blocked_ms, true).with_former_expiry(former_ms.max(blocked_ms)), false)
        }
        Verb::Peek => (decide_unblocked(states, policy, action).0.with_former_expiry(former_ms), false),
        Verb::Check | Verb::Reset => decide_unblocked(states, policy, action),
        Verb::Charge | Verb::Refund => {
            let (decision, must_store) = decide_unblocked(states, policy, action);
            (decision.with_block(blocked_ms, action.verb() == Verb::Charge), must_store)
        }
        Verb::Block => {
            let (decision, must_store) = decide_unblocked(states, policy, action);
            (decision.with_block(action.block_ms(), false), must_store)
        }
    }
}

/// Time until live states of other quotas expire under their own quotas; 0 if there are none.
fn former_expires_after_ms(states: &[State], policy: &Policy, now: Moment) -> u64 {
    let is_former = |(state, quota): &(&State, &Quota)| {
        !state.belongs_to(quota) && State::used(&state.view(quota, now)) > 0
    };
    let former = states.iter().zip(policy.quotas()).filter(is_former);
    let until_ms = former.filter_map(|(state, _)| state.expires_at_ms(now.now_ms())).max();
    until_ms.map_or(0, |until_ms| until_ms - now.now_ms())
}

/// Decides from the counters, as if the key were not blocked.
fn decide_unblocked(states: &mut [State], policy: &Policy, action: Action) -> (Decision, bool) {
    if let ([state], [quota]) = (&mut *states, policy.quotas()) {
        return decide_one(state, quota, action);
    }
    let (verb, now, cost) = (action.verb(), action.moment(), action.cost());
    let (quotas, now_ms) = (policy.quotas(), now.now_ms());
    let views: Vec<_> = states.iter().zip(quotas).map(|(state, quota)| state.view(quota, now)).collect();
    let mut reports = Vec::with_capacity(quotas.len());
    match verb {
        Verb::Check | Verb::Peek => {
            let is_allowed =
                views.iter().zip(quotas).all(|(view, quota)| fits(quota, State::used(view), cost));
            let spent = if is_allowed && verb == Verb::Check { cost } else { 0 };
            let mut must_store = spent > 0;
            for ((state, view), quota) in states.iter_mut().zip(&views).zip(quotas) {
                let report = if is_allowed {
                    report_spent(state, view, quota, now_ms, spent)
                } else {
                    report_denied(state, view, quota, now_ms, cost)
                };
                if spent > 0 || (verb == Verb::Check && State::is_adjusted(view)) {
                    must_store = true;
                    state.commit(view, quota, spent);
                }
                reports.push(complete_report(report, state, quota, now));
            }
            (Decision::many(is_allowed, reports), must_store)
        }
        Verb::Charge | Verb::Refund | Verb::Reset | Verb::Block => {
            let (mut must_store, mut is_allowed) = (false, true);
            for ((state, view), quota) in states.iter_mut().zip(&views).zip(quotas) {
                must_store |= apply(state, view, quota, action);
                let after = state.view(quota, now);
                let mut report = report_denied(state, &after, quota, now_ms, 0);
                if verb == Verb::Charge {
                    is_allowed &= report.retry.is_none();
                } else {
                    report = report.with_retry(None);
                }
                reports.push(complete_report(report, state, quota, now));
            }
            (Decision::many(is_allowed, reports), must_store)
        }
    }
}
