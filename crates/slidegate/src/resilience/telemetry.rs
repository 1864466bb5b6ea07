//! Metrics and log lines of this module. Labels come from the configuration, never from requests.

use slidegate_core::{Decision, FallbackReason, Policy};

use super::mode::Mode;
use super::rules::OnFailure;
use crate::error::StoreError;

/// Counts an operation for which the store returned an error, whether or not a fallback decided it.
pub(super) fn count_store_error(error: &StoreError) {
    if error.is_usage() {
        return;
    }
    metrics::counter!("slidegate_store_errors_total", "kind" => error.kind()).increment(1);
}

/// Counts a decision without the store.
pub(super) fn count_fallback(policy: &Policy, mode: OnFailure, reason: FallbackReason) {
    metrics::counter!(
        "slidegate_fallback_total",
        "policy" => label(policy),
        "mode" => mode.name(),
        "reason" => reason.name(),
    )
    .increment(1);
}

/// Logs the first decision without the store.
pub(super) fn log_fallback_start(
    policy: &Policy,
    mode: OnFailure,
    reason: FallbackReason,
    error: Option<&StoreError>,
) {
    let (policy, mode, reason) = (label(policy), mode.name(), reason.name());
    let error = error.map(ToString::to_string).unwrap_or_default();
    tracing::warn!(policy, mode, reason, error, "the store failed; on_failure decides");
}

/// Logs the first decision of the store after a fallback.
pub(super) fn log_fallback_end(policy: &Policy) {
    tracing::warn!(policy = label(policy), "the store decides again");
}

/// Counts a decision by a list or by the mode of a switch.
pub(super) fn count_rule(policy: &Policy, rule: &'static str) {
    metrics::counter!("slidegate_ruled_total", "policy" => label(policy), "rule" => rule).increment(1);
}

/// Counts a denial that is not enforced, by the policy itself or by its candidate.
pub(super) fn count_shadow_denial(policy: &Policy, by: &'static str, decision: &Decision) {
    if !decision.is_allowed() {
        let (policy, source) = (label(policy), decision.source().name());
        metrics::counter!("slidegate_shadow_denials_total", "policy" => policy, "by" => by, "source" => source)
            .increment(1);
    }
}

/// Counts and logs a change of a policy's mode.
pub(super) fn report_mode_change(policy: &str, before: Mode, after: Mode) {
    if before != after {
        let (from, to) = (before.name(), after.name());
        metrics::counter!("slidegate_switched_total", "policy" => policy.to_owned(), "to" => to).increment(1);
        tracing::warn!(policy, from, to, "changed the mode of a policy");
    }
}

/// Returns the policy's name, or a constant for anonymous policies.
pub(super) fn label(policy: &Policy) -> String {
    if policy.is_anonymous() { "(in request)".to_owned() } else { policy.name().to_owned() }
}
