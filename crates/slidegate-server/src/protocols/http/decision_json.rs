//! Decisions in JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use slidegate::{Decision, QuotaReport, Retry, Verb};
use utoipa::ToSchema;

use slidegate_engine::Decided;

/// A decision in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionJson<'a> {
    /// Whether the request may proceed.
    pub allowed: bool,
    /// Name of the policy; null if its quotas came with the request.
    #[schema(value_type = Option<String>)]
    pub policy: Option<Cow<'a, str>>,
    /// Limit of the tightest quota.
    pub limit: u64,
    /// Remaining cost of the tightest quota.
    pub remaining: u64,
    /// Milliseconds until the tightest quota is fully available.
    pub reset_after_ms: u64,
    /// Milliseconds until a retry, if denied: the maximum over all quotas.
    pub retry_after_ms: Option<u64>,
    /// Names of the quotas that denied the request.
    #[schema(value_type = Vec<String>)]
    pub violated: Vec<Cow<'a, str>>,
    /// Origin of the decision: `store`, `cache`, `fallback` or `rule`.
    #[schema(value_type = String)]
    pub source: Cow<'a, str>,
    /// Reason why the store did not decide. Absent if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<Cow<'a, str>>,
    /// Decision that was made beside this one and not enforced. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowJson<'a>>,
    /// Whether a reset found counts to remove. Present for resets only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<bool>,
    /// Numbers of each quota.
    pub quotas: Vec<QuotaJson<'a>>,
    /// Whether the cost exceeds the capacity of a quota, so that no retry succeeds. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
}

/// A decision that was not enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShadowJson<'a> {
    /// Whether the request would have been allowed.
    pub allowed: bool,
    /// Limit of the tightest quota.
    pub limit: u64,
    /// Remaining cost of the tightest quota.
    pub remaining: u64,
    /// Milliseconds until a retry, if it would have been denied.
    pub retry_after_ms: Option<u64>,
    /// Origin of the decision: `store`, `cache`, `fallback` or `rule`.
    #[schema(value_type = String)]
    pub source: Cow<'a, str>,
    /// Reason why the store did not decide. Absent if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<Cow<'a, str>>,
}

impl From<Decision> for ShadowJson<'_> {
    fn from(decision: Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after_ms: decision.retry_after_ms(),
            source: decision.source().name().into(),
            reason: decision.source().reason().map(|reason| reason.name().into()),
        }
    }
}

/// Numbers of one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaJson<'a> {
    /// Name of the quota.
    #[schema(value_type = String)]
    pub name: Cow<'a, str>,
    /// Maximum cost per window.
    pub limit: u64,
    /// Length of the window.
    pub window_ms: u64,
    /// Counted cost.
    pub used: u64,
    /// Remaining cost.
    pub remaining: u64,
    /// Milliseconds until the quota is fully available.
    pub reset_after_ms: u64,
    /// Milliseconds until a retry, if this quota denied the request.
    pub retry_after_ms: Option<u64>,
    /// Cost of the previous window of a sliding window, unweighted; 0 for other algorithms. Present for peeks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// Cost of the current window of a sliding window; all counted cost for other algorithms. Present for peeks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// Age of the oldest counted entry of a sliding log or a strict window; null otherwise. Present for peeks only.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub oldest_age_ms: Option<Age>,
}

/// Age of an entry; null without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Age(Option<u64>);

impl Age {
    /// Returns the age in milliseconds, if there is an entry.
    pub fn ms(self) -> Option<u64> {
        self.0
    }
}

/// Deserializes a field that is present, so that null differs from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Age>, D::Error> {
    Age::deserialize(deserializer).map(Some)
}

impl<'a> From<&'a Decided<'_>> for DecisionJson<'a> {
    fn from(decided: &'a Decided<'_>) -> Self {
        let (policy, decision) = (decided.selection.policy.policy(), &decided.decision);
        let (tightest, is_peek) = (decision.tightest(), decided.selection.verb == Verb::Peek);
        let quota = |(index, report): (usize, &QuotaReport)| QuotaJson {
            name: policy.quota_name(index).into(),
            limit: report.limit,
            window_ms: policy.quotas()[index].window_ms(),
            used: report.used,
            remaining: report.remaining,
            reset_after_ms: report.reset_after_ms,
            retry_after_ms: match report.retry {
                Some(Retry::AfterMs(ms)) => Some(ms),
                _ => None,
            },
            previous: is_peek.then_some(report.previous),
            current: is_peek.then_some(report.current),
            oldest_age_ms: is_peek.then_some(Age(report.oldest_age_ms)),
        };
        Self {
            allowed: decision.is_allowed(),
            policy: decided.selection.policy.name().map(Cow::from),
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset_after_ms: tightest.reset_after_ms,
            retry_after_ms: decision.retry_after_ms(),
            violated: decision.violated().map(|index| policy.quota_name(index).into()).collect(),
            source: decision.source().name().into(),
            reason: decision.source().reason().map(|reason| reason.name().into()),
            shadow: decision.shadow().map(ShadowJson::from),
            found: (decided.selection.verb == Verb::Reset).then(|| decision.is_found()),
            quotas: decision.quotas().iter().enumerate().map(quota).collect(),
            never: decision.is_never(),
        }
    }
}
