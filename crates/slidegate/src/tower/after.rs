//! What is counted once the response is known.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use slidegate_core::{Check, Decision, Policy};

use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::store::Store;

type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// How often what is left is asked for, if others are faster each time.
const CHARGES: usize = 4;

/// When a request is paid for.
#[derive(Clone, Default)]
pub(super) enum Payment {
    /// Before it is served.
    #[default]
    Before,
    /// Before it is served, and given back if the response is like this.
    RefundIf(Predicate),
    /// Before it is served, and given back unless the response is like this.
    OnlyIf(Predicate),
    /// Before it is served, and made up for when its true cost is known.
    Settled(Cost),
}

/// What was decided before a request was served or sent, and when.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) decision: &'a Decision,
    pub(super) at_ms: u64,
}

impl Before<'_> {
    /// Whether something was spent that can be given back `now_ms`.
    pub(super) fn is_refundable(&self, policy: &Policy, now_ms: u64) -> bool {
        let is_spent = self.decision.is_counted() && !self.decision.is_waived();
        is_spent && now_ms.saturating_sub(self.at_ms) < counted_ms(policy, self.decision)
    }
}

/// How long after a decision all quotas are sure to count what it has spent. Whoever gives it back later takes it from
/// what others have spent since.
fn counted_ms(policy: &Policy, decision: &Decision) -> u64 {
    let quotas = policy.quotas().iter().zip(decision.quotas());
    quotas.map(|(quota, report)| quota.window_ms().min(report.reset_after_ms)).min().unwrap_or(0)
}

impl Payment {
    /// What is decided before the request is served. One that costs nothing beforehand would fit even if nothing is left, so
    /// what is paid for afterwards has to find room for one at least.
    pub(super) async fn before<S: Store>(
        &self,
        limiter: &Limiter<S>,
        check: Check<'_>,
    ) -> Result<Decision, StoreError> {
        match self {
            Self::OnlyIf(_) | Self::Settled(_) if check.cost == 0 => limiter.peek(check.cost(1)).await,
            _ => limiter.check(check).await,
        }
    }

    /// What is counted after it, or after it has failed without a response; the numbers since then, if any have changed.
    /// What `before` has not counted, because a rule, a shadow or a store that failed let it pass, is not given back, nor is
    /// what it has counted too long ago.
    pub(super) async fn after<S: Store>(
        &self,
        limiter: &Limiter<S>,
        check: Check<'_>,
        before: Before<'_>,
        response: Option<&Parts>,
    ) -> Result<Option<Decision>, StoreError> {
        // Were a shadow enforced, there would have been nothing to pay for.
        if before.decision.is_waived() {
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
        // Whoever has been served is not told that he was denied.
        Ok(settled.filter(Decision::is_allowed))
    }

    /// What a request has cost in the end. One that has failed without a response is a failure of ours; but a try is a try.
    fn owed(&self, cost: u64, response: Option<&Parts>) -> u64 {
        match self {
            Self::RefundIf(is_refunded) if response.is_none_or(|response| is_refunded(response)) => 0,
            Self::OnlyIf(is_counted) if response.is_some_and(|response| !is_counted(response)) => 0,
            Self::Before | Self::RefundIf(_) | Self::OnlyIf(_) => cost,
            Self::Settled(cost) => response.map_or(0, |response| cost(response)),
        }
    }
}

/// Spends the cost, or as much of it as is left: what has been used cannot be denied any more.
async fn charge<S: Store>(limiter: &Limiter<S>, check: Check<'_>) -> Result<Decision, StoreError> {
    let mut cost = check.cost;
    for _ in 0..CHARGES {
        let decision = limiter.check(check.cost(cost)).await?;
        if decision.is_allowed() && !decision.is_waived() {
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
