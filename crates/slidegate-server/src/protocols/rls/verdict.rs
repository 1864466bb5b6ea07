//! The decision for a request, from the decisions for its limits.

use slidegate::Decision;
use slidegate_config::envoy::Rule;

use super::operations::{CountedLimit, RequestLimits};
use super::proto::rate_limit_response::{Code, DescriptorStatus};

/// Decision for a counted limit.
pub(super) struct LimitDecision<'a> {
    pub(super) limit: &'a CountedLimit<'a>,
    pub(super) decision: Decision,
}

/// Decision for a request.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    pub(super) is_over_limit: bool,
    /// Whether the limits in quota mode deny the request, because all of them are exceeded.
    are_quotas_enforced: bool,
}

impl Verdict {
    /// Returns whether a limit of this rule can deny the request. `None` stands for an override.
    pub(super) fn enforces(self, rule: Option<&Rule>) -> bool {
        rule.is_none_or(|rule| !rule.is_shadow && (!rule.is_quota || self.are_quotas_enforced))
    }
}

pub(super) fn is_over_limit(status: &DescriptorStatus) -> bool {
    status.code == Code::OverLimit as i32
}

/// Decides the request: one exceeded limit denies it. Limits in quota mode deny it only if all of them are exceeded.
pub(super) fn verdict(limits: &RequestLimits<'_>, statuses: &[DescriptorStatus]) -> Verdict {
    let (mut quotas, mut quotas_over, mut others_over) = (0_usize, 0_usize, false);
    for (limit, status) in limits.0.iter().zip(statuses) {
        let is_over = is_over_limit(status);
        if limit.rule().is_some_and(|rule| rule.is_quota) {
            quotas += 1;
            quotas_over += usize::from(is_over);
        } else {
            others_over |= is_over;
        }
    }
    let are_quotas_enforced = quotas > 0 && quotas == quotas_over;
    Verdict { is_over_limit: others_over || are_quotas_enforced, are_quotas_enforced }
}
