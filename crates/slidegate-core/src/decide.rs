//! The one decision procedure: several quotas together, or one without an allocation.

use crate::action::{Action, Verb};
use crate::carry_over::{Adopted, adopt, blocked_until_ms, is_counted_for, keep_left};
use crate::counter::{Counter, chargeable, fits, report_denied, report_spent, with_more_after};
use crate::decision::Decision;
use crate::moment::Moment;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::state::State;

/// Decides for one quota. `true` in the second place says that the counter has changed and must be kept.
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
            let must_keep = spent > 0 || (verb == Verb::Check && C::is_mended(&view));
            if must_keep {
                counter.commit(&view, quota, spent);
            }
            (Decision::one(is_allowed, with_more_after(report, counter, quota, now)), must_keep)
        }
        Verb::Charge | Verb::Refund | Verb::Reset | Verb::Block => {
            let must_keep = apply(counter, &view, quota, action);
            let after = counter.view(quota, now);
            let report = report_denied(counter, &after, quota, now_ms, 0);
            let is_allowed = verb != Verb::Charge || report.retry.is_none();
            let report = if verb == Verb::Charge { report } else { report.without_retry() };
            (Decision::one(is_allowed, with_more_after(report, counter, quota, now)), must_keep)
        }
    }
}

/// Counts, gives back or forgets without a condition. Whether the counter must be kept.
#[inline]
fn apply<C: Counter>(counter: &mut C, view: &C::View, quota: &Quota, action: Action) -> bool {
    match action.verb() {
        Verb::Check | Verb::Peek => return false,
        Verb::Charge => {
            let spent = chargeable(C::used(view), action.cost());
            if spent == 0 && !C::is_mended(view) {
                return false;
            }
            counter.commit(view, quota, spent);
        }
        Verb::Refund => counter.refund(view, quota, action.cost()),
        Verb::Reset => *counter = C::empty(quota),
        // The block is kept beside the counters, which are rolled to now.
        Verb::Block => counter.refund(view, quota, 0),
    }
    true
}

/// Decides for a whole policy, all or nothing. `true` in the second place says that the states have changed and
/// must be kept; otherwise they are as they were.
///
/// `states` may come from the policy as it was before a change, or be empty: they are first matched to its
/// quotas, as [`State`] says.
pub fn decide(states: &mut Vec<State>, policy: &Policy, action: Action) -> (Decision, bool) {
    let (quotas, now_ms) = (policy.quotas(), action.now_ms());
    if action.verb() == Verb::Reset {
        let is_found = states.iter().any(|state| state.left_until_ms(now_ms).is_some());
        *states = quotas.iter().map(State::empty).collect();
        let (decision, _) = decide_matched(states, policy, action, 0);
        return (decision.found(is_found), true);
    }
    // States that count nothing are as good as none: a store may have dropped them.
    let is_known = states.iter().any(|state| state.is_counting(now_ms));
    let blocked_until_ms = blocked_until_ms(states, now_ms);
    if is_known && is_counted_for(states, quotas) {
        let answer = decide_matched(&mut states[..quotas.len()], policy, action, blocked_until_ms);
        if answer.1 && (states.len() > quotas.len() || action.verb() == Verb::Block) {
            keep_left(states, &[], policy, action, spent_by(&answer.0, action));
        }
        return answer;
    }
    let known = if is_known { &**states } else { &[] };
    let Adopted { states: mut adopted, copied_from } = adopt(known, quotas, now_ms);
    let answer = decide_matched(&mut adopted[..quotas.len()], policy, action, blocked_until_ms);
    if answer.1 {
        keep_left(&mut adopted, &copied_from, policy, action, spent_by(&answer.0, action));
        *states = adopted;
    }
    answer
}

/// Units that an action has spent from the policy's own states.
fn spent_by(decision: &Decision, action: Action) -> u64 {
    match action.verb() {
        Verb::Charge => action.cost(),
        Verb::Check if decision.is_allowed() => action.cost(),
        _ => 0,
    }
}

/// [`decide`] for states that were matched to the policy's quotas elsewhere: each stands at the place of its quota and is
/// of its algorithm. The key is blocked until the moment named, 0 if it is not.
pub fn decide_matched(
    states: &mut [State],
    policy: &Policy,
    action: Action,
    blocked_until_ms: u64,
) -> (Decision, bool) {
    let blocked_ms = blocked_until_ms.saturating_sub(action.now_ms());
    let lasts_ms = if action.verb() == Verb::Peek { lasts_ms(states, policy, action.moment()) } else { 0 };
    match action.verb() {
        Verb::Check | Verb::Peek if blocked_ms > 0 => {
            let (decision, _) = decide_counted(states, policy, action.with_verb(Verb::Peek));
            (decision.blocked(blocked_ms, true).lasting(lasts_ms.max(blocked_ms)), false)
        }
        Verb::Peek => (decide_counted(states, policy, action).0.lasting(lasts_ms), false),
        Verb::Check | Verb::Reset => decide_counted(states, policy, action),
        Verb::Charge | Verb::Refund => {
            let (decision, must_keep) = decide_counted(states, policy, action);
            (decision.blocked(blocked_ms, action.verb() == Verb::Charge), must_keep)
        }
        Verb::Block => {
            let (decision, must_keep) = decide_counted(states, policy, action);
            (decision.blocked(action.block_ms(), false), must_keep)
        }
    }
}

/// How long states that were counted for other quotas, and count something for these, last by themselves; 0 if there are none.
fn lasts_ms(states: &[State], policy: &Policy, now: Moment) -> u64 {
    let is_former =
        |(state, quota): &(&State, &Quota)| !state.is_of(quota) && State::used(&state.view(quota, now)) > 0;
    let former = states.iter().zip(policy.quotas()).filter(is_former);
    let until_ms = former.filter_map(|(state, _)| state.left_until_ms(now.now_ms())).max();
    until_ms.map_or(0, |until_ms| until_ms - now.now_ms())
}

/// Decides by the counters alone, without a block.
fn decide_counted(states: &mut [State], policy: &Policy, action: Action) -> (Decision, bool) {
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
                reports.push(with_more_after(report, state, quota, now));
            }
            (Decision::many(is_allowed, reports), must_keep)
        }
        Verb::Charge | Verb::Refund | Verb::Reset | Verb::Block => {
            let (mut must_keep, mut is_allowed) = (false, true);
            for ((state, view), quota) in states.iter_mut().zip(&views).zip(quotas) {
                must_keep |= apply(state, view, quota, action);
                let after = state.view(quota, now);
                let mut report = report_denied(state, &after, quota, now_ms, 0);
                if verb == Verb::Charge {
                    is_allowed &= report.retry.is_none();
                } else {
                    report = report.without_retry();
                }
                reports.push(with_more_after(report, state, quota, now));
            }
            (Decision::many(is_allowed, reports), must_keep)
        }
    }
}
