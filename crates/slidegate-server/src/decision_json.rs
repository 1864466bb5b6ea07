//! The answer in JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use slidegate::{Decision, QuotaReport, Retry, Verb};
use utoipa::ToSchema;

use crate::app::Decided;

/// A decision as JSON says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionJson<'a> {
    /// Whether the request may proceed.
    pub allowed: bool,
    /// The policy's name; none if its quotas came with the request.
    #[schema(value_type = Option<String>)]
    pub policy: Option<Cow<'a, str>>,
    /// The limit of the tightest quota.
    pub limit: u64,
    /// What the tightest quota has left.
    pub remaining: u64,
    /// Until the tightest quota is whole again.
    pub reset_after_ms: u64,
    /// When to come back, if denied; the longest of all quotas.
    pub retry_after_ms: Option<u64>,
    /// The names of the quotas that denied it.
    #[schema(value_type = Vec<String>)]
    pub violated: Vec<Cow<'a, str>>,
    /// Who decided.
    #[schema(value_type = String)]
    pub source: Cow<'a, str>,
    /// Why the store did not decide. Written only if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<Cow<'a, str>>,
    /// What was decided beside it and not enforced. Written only if something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowJson<'a>>,
    /// Whether a reset found anything to forget. Written for resets only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<bool>,
    /// Every quota's numbers.
    pub quotas: Vec<QuotaJson<'a>>,
    /// Whether the cost exceeds what some quota can ever hold. Written only if so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
}

/// A decision that is not enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShadowJson<'a> {
    /// Whether the request would have been allowed.
    pub allowed: bool,
    /// The limit of the tightest quota.
    pub limit: u64,
    /// What the tightest quota has left.
    pub remaining: u64,
    /// When it would have been told to come back.
    pub retry_after_ms: Option<u64>,
    /// Who decided.
    #[schema(value_type = String)]
    pub source: Cow<'a, str>,
    /// Why the store did not decide. Written only if it did not.
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

/// The numbers of one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaJson<'a> {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Cow<'a, str>,
    /// The most that can be spent.
    pub limit: u64,
    /// Its window.
    pub window_ms: u64,
    /// What is counted now.
    pub used: u64,
    /// What is left.
    pub remaining: u64,
    /// Until it is whole again.
    pub reset_after_ms: u64,
    /// When to come back, if this quota denied it.
    pub retry_after_ms: Option<u64>,
    /// Counted in the previous window, in full; 0 but for a sliding window. Written for peeks only, like the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// Counted in the current window; everything that is counted where there is but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// The age of the oldest entry that is counted; null but for a sliding log and a strict window.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub oldest_age_ms: Option<Age>,
}

/// An age, null where there is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Age(Option<u64>);

impl Age {
    /// Returns the age in milliseconds, if there is an entry.
    pub fn ms(self) -> Option<u64> {
        self.0
    }
}

/// A null is an age that is known, and not a field that is missing.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Age>, D::Error> {
    Age::deserialize(deserializer).map(Some)
}

impl<'a> From<&'a Decided> for DecisionJson<'a> {
    fn from(decided: &'a Decided) -> Self {
        let (policy, decision) = (decided.policy(), &decided.decision);
        let (tightest, is_peek) = (decision.tightest(), decided.verb() == Verb::Peek);
        let quota = |(index, report): (usize, &QuotaReport)| QuotaJson {
            name: policy.quota_name(index).into(),
            limit: report.limit,
            window_ms: policy.quotas()[index].window_ms(),
            used: report.used,
            remaining: report.remaining,
            reset_after_ms: report.reset_after_ms,
            retry_after_ms: match report.retry {
                Some(Retry::AfterMs(ms)) => Some(ms),
                Some(Retry::Never) | None => None,
            },
            previous: is_peek.then_some(report.previous),
            current: is_peek.then_some(report.current),
            oldest_age_ms: is_peek.then_some(Age(report.oldest_age_ms)),
        };
        Self {
            allowed: decision.is_allowed(),
            policy: decided.policy_name().map(Cow::from),
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset_after_ms: tightest.reset_after_ms,
            retry_after_ms: decision.retry_after_ms(),
            violated: decision.violated().map(|index| policy.quota_name(index).into()).collect(),
            source: decision.source().name().into(),
            reason: decision.source().reason().map(|reason| reason.name().into()),
            shadow: decision.shadow().map(ShadowJson::from),
            found: (decided.verb() == Verb::Reset).then(|| decision.is_found()),
            quotas: decision.quotas().iter().enumerate().map(quota).collect(),
            never: decision.is_never(),
        }
    }
}
