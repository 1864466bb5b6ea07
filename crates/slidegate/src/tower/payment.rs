//! Accounting of a request before and after its response.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use slidegate_core::{Check, Decision, Policy};

use crate::error::StoreError;
use crate::store::Store;
use crate::store::limiter::StoreLimiter;

type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// Attempts to charge the remaining units while concurrent requests spend them.
const CHARGE_ATTEMPTS: usize = 4;

/// Moment at which a request is charged.
#[derive(Clone, Default)]
pub(super) enum Payment {
    /// Before it is served.
    #[default]
    Before,
    /// Before it is served, and refunded if the response matches.
    RefundIf(Predicate),
    /// Before it is served, and refunded unless the response matches.
    OnlyIf(Predicate),
    /// Before it is served, and corrected when the response determines the true cost.
    Settled(Cost),
}

/// Decision before a request was served or sent, and its time.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) decision: &'a Decision,
    pub(super) at_ms: u64,
}

impl Before<'_> {
    /// Returns whether the decision's cost can be refunded at `now_ms`.
    pub(super) fn is_refundable(&self, policy: &Policy, now_ms: u64) -> bool {
        let is_spent = self.decision.is_counted() && !self.decision.is_denied_in_shadow();
        is_spent && now_ms.saturating_sub(self.at_ms) < counted_ms(policy, self.decision)
    }
}

/// Returns for how long after a decision all quotas certainly count its cost. A later refund would free units that
/// other requests have spent.
fn counted_ms(policy: &Policy, decision: &Decision) -> u64 {
    let quotas = policy.quotas().iter().zip(decision.quotas());
    quotas.map(|(quota, report)| quota.window_ms().min(report.reset_after_ms)).min().unwrap_or(0)
}

impl Payment {
    /// Decides before the request is served. A cost of 0 fits even an exhausted quota, so a request that is charged
    /// afterwards must find at least one remaining unit.
    pub(super) async fn before<S: Store>(
        &self,
        limiter: &StoreLimiter<S>,
        check: Check<'_>,
    ) -> Result<Decision, StoreError> {
        match self {
            Self::OnlyIf(_) | Self::Settled(_) if check.cost == 0 => limiter.peek(check.cost(1)).await,
            _ => limiter.check(check).await,
        }
    }

    /// Settles the cost after the response, or after a failure without one. Returns the new numbers if they have
    /// changed. Refunds nothing that `before` has not counted, because a rule, a shadow or a failed store allowed it,
    /// and nothing counted too long ago.
    pub(super) async fn after<S: Store>(
        &self,
        limiter: &StoreLimiter<S>,
        check: Check<'_>,
        before: Before<'_>,
        response: Option<&Parts>,
    ) -> Result<Option<Decision>, StoreError> {
        // An enforced shadow would have denied the request, so there is no cost.
        if before.decision.is_denied_in_shadow() {
            return Ok(None);
        }
        let owed = self.owed(check.cost, response);
        let settled = match owed.cmp(&check.cost) {
            Ordering::Greater => Some(charge(limiter, check.cost(owed - check.cost)).await?),
            Ordering::Less if before.is_refundable(check.policy, limiter.store().clock().now_ms()) => {
                Some(limiter.refund(check.cost(check.cost - owed)).await?)
            }
            Ordering::Equal | Ordering::Less => None,
        };
        // The request has been served, so a denial of the charge must not reach its client.
        Ok(settled.filter(Decision::is_allowed))
    }

    /// Returns the final cost of a request. A failure without a response is the service's fault and costs nothing,
    /// except under `OnlyIf`, where an attempt counts.
    fn owed(&self, cost: u64, response: Option<&Parts>) -> u64 {
        match self {
            Self::RefundIf(is_refunded) if response.is_none_or(|response| is_refunded(response)) => 0,
            Self::OnlyIf(is_counted) if response.is_some_and(|response| !is_counted(response)) => 0,
            Self::Before | Self::RefundIf(_) | Self::OnlyIf(_) => cost,
            Self::Settled(cost) => response.map_or(0, |response| cost(response)),
        }
    }
}

/// Spends the cost, or as much of it as remains: served work cannot be denied.
async fn charge<S: Store>(limiter: &StoreLimiter<S>, check: Check<'_>) -> Result<Decision, StoreError> {
    let mut cost = check.cost;
    for _ in 0..CHARGE_ATTEMPTS {
        let decision = limiter.check(check.cost(cost)).await?;
        if decision.is_allowed() && !decision.is_denied_in_shadow() {
            return Ok(decision);
        }
        cost = decision.remaining().min(cost);
        if cost == 0 {
            break;
        }
    }
    limiter.peek(check.cost(0)).await
}

impl fmt::Debug for Payment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "Before",
            Self::RefundIf(_) => "RefundIf",
            Self::OnlyIf(_) => "OnlyIf",
            Self::Settled(_) => "Settled",
        })
    }
}
