//! The answer in JSON.

use serde::{Deserialize, Serialize};
use slidegate::{Decision, QuotaReport, Retry};
use utoipa::ToSchema;

use crate::app::Decided;

/// A decision as JSON says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// Whether the request may proceed.
    pub allowed: bool,
    /// The policy's name; none if its quotas came with the request.
    pub policy: Option<String>,
    /// The limit of the tightest quota.
    pub limit: u64,
    /// What the tightest quota has left.
    pub remaining: u64,
    /// Until the tightest quota is whole again.
    pub reset_after_ms: u64,
    /// When to come back, if denied; the longest of all quotas.
    pub retry_after_ms: Option<u64>,
    /// The names of the quotas that denied it.
    pub violated: Vec<String>,
    /// Who decided.
    pub source: String,
    /// Why the store did not decide. Written only if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was decided beside it and not enforced. Written only if something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowAnswer>,
    /// Every quota's numbers.
    pub quotas: Vec<QuotaAnswer>,
    /// Whether the cost exceeds what some quota can ever hold. Written only if so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
}

/// A decision that is not enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShadowAnswer {
    /// Whether the request would have been allowed.
    pub allowed: bool,
    /// The limit of the tightest quota.
    pub limit: u64,
    /// What the tightest quota has left.
    pub remaining: u64,
    /// When it would have been told to come back.
    pub retry_after_ms: Option<u64>,
    /// Who decided.
    pub source: String,
    /// Why the store did not decide. Written only if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<Decision> for ShadowAnswer {
    fn from(decision: Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after_ms: decision.retry_after_ms(),
            source: decision.source().name().to_owned(),
            reason: decision.source().reason().map(|reason| reason.name().to_owned()),
        }
    }
}

/// The numbers of one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaAnswer {
    /// Its name.
    pub name: String,
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
}

impl From<&Decided> for Answer {
    fn from(decided: &Decided) -> Self {
        let (policy, decision) = (decided.policy(), &decided.decision);
        let tightest = decision.tightest();
        let quota = |(index, report): (usize, &QuotaReport)| QuotaAnswer {
            name: policy.quota_name(index).to_owned(),
            limit: report.limit,
            window_ms: policy.quotas()[index].window_ms(),
            used: report.used,
            remaining: report.remaining,
            reset_after_ms: report.reset_after_ms,
            retry_after_ms: match report.retry {
                Some(Retry::AfterMs(ms)) => Some(ms),
                Some(Retry::Never) | None => None,
            },
        };
        Self {
            allowed: decision.is_allowed(),
            policy: decided.policy_name().map(str::to_owned),
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset_after_ms: tightest.reset_after_ms,
            retry_after_ms: decision.retry_after_ms(),
            violated: decision.violated().map(|index| policy.quota_name(index).to_owned()).collect(),
            source: decision.source().name().to_owned(),
            reason: decision.source().reason().map(|reason| reason.name().to_owned()),
            shadow: decision.shadow().map(ShadowAnswer::from),
            quotas: decision.quotas().iter().enumerate().map(quota).collect(),
            never: decision.is_never(),
        }
    }
}
