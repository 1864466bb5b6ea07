//! What others hear of this layer: metrics by the `metrics` facade. Labels come from configuration, never from requests.

use slidegate_core::{Decision, Policy, Reason};

use super::rules::OnFailure;
use super::switch::Mode;
use crate::error::StoreError;

/// The store was asked so many things and failed, whatever is answered instead.
pub(super) fn failed(error: &StoreError, operations: usize) {
    metrics::counter!("slidegate_store_errors_total", "kind" => error.kind()).increment(operations as u64);
}

/// A decision was made without the store.
pub(super) fn fell_back(policy: &Policy, mode: OnFailure, reason: Reason) {
    metrics::counter!(
        "slidegate_fallback_total",
        "policy" => label(policy),
        "mode" => mode.name(),
        "reason" => reason.name(),
    )
    .increment(1);
}

/// The first of such decisions.
pub(super) fn began_to_fall_back(
    policy: &Policy,
    mode: OnFailure,
    reason: Reason,
    error: Option<&StoreError>,
) {
    let (policy, mode, reason) = (label(policy), mode.name(), reason.name());
    let error = error.map(ToString::to_string).unwrap_or_default();
    tracing::warn!(policy, mode, reason, error, "the store does not decide");
}

/// The first decision by the store after such.
pub(super) fn is_decided_again(policy: &Policy) {
    tracing::warn!(policy = label(policy), "the store decides again");
}

/// A list or a switch has decided.
pub(super) fn ruled(policy: &Policy, rule: &'static str) {
    metrics::counter!("slidegate_ruled_total", "policy" => label(policy), "rule" => rule).increment(1);
}

/// A decision was made that is not enforced, by the policy itself or by a candidate.
pub(super) fn shadowed(policy: &Policy, by: &'static str, decision: &Decision) {
    if !decision.is_allowed() {
        let (policy, source) = (label(policy), decision.source().name());
        metrics::counter!("slidegate_shadow_denials_total", "policy" => policy, "by" => by, "source" => source)
            .increment(1);
    }
}

/// A policy's mode was set.
pub(super) fn switched(policy: &str, before: Mode, after: Mode) {
    if before != after {
        let (from, to) = (before.name(), after.name());
        metrics::counter!("slidegate_switched_total", "policy" => policy.to_owned(), "to" => to).increment(1);
        tracing::warn!(policy, from, to, "the policy was switched");
    }
}

/// The policy's name, unless it was made of what a request brought along.
pub(super) fn label(policy: &Policy) -> String {
    if policy.is_anonymous() { "(in request)".to_owned() } else { policy.name().to_owned() }
}
