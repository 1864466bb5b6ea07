//! What is counted once the response is known.

use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use slidegate_core::{Check, Decision};

use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::store::Store;

type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// When a request is paid for.
#[derive(Clone, Default)]
pub(super) enum Payment {
    /// Before it is served.
    #[default]
    Before,
    /// Before it is served, and given back if the response is like this.
    RefundIf(Predicate),
    /// Only if the response is like this.
    OnlyIf(Predicate),
    /// Before it is served, and made up for when its true cost is known.
    Settled(Cost),
}

impl Payment {
    /// What is decided before the request is served.
    pub(super) async fn before<S: Store>(
        &self,
        limiter: &Limiter<S>,
        check: Check<'_>,
    ) -> Result<Decision, StoreError> {
        match self {
            Self::OnlyIf(_) => limiter.peek(check).await,
            Self::Before | Self::RefundIf(_) | Self::Settled(_) => limiter.check(check).await,
        }
    }

    /// What is counted after it; the numbers since then, if any have changed. What fails here has no one to tell: the
    /// request has been served. What `before` has not counted, because a rule or a store that failed let it pass, is not
    /// given back.
    pub(super) async fn after<S: Store>(
        &self,
        limiter: &Limiter<S>,
        check: Check<'_>,
        before: &Decision,
        response: &Parts,
    ) -> Option<Decision> {
        match self {
            Self::RefundIf(is_refunded) if before.is_counted() && is_refunded(response) => {
                limiter.refund(check).await.ok()
            }
            Self::OnlyIf(is_counted) if is_counted(response) => spend(limiter, check).await,
            Self::Before | Self::RefundIf(_) | Self::OnlyIf(_) => None,
            Self::Settled(cost) => match cost(response) {
                cost if cost > check.cost => spend(limiter, check.cost(cost - check.cost)).await,
                cost if cost < check.cost && before.is_counted() => {
                    limiter.refund(check.cost(check.cost - cost)).await.ok()
                }
                _ => None,
            },
        }
    }
}

/// Spends the cost, or as much of it as is left: what has been used cannot be denied any more.
async fn spend<S: Store>(limiter: &Limiter<S>, check: Check<'_>) -> Option<Decision> {
    let decision = limiter.check(check).await.ok()?;
    match (decision.is_allowed(), decision.remaining()) {
        (false, left @ 1..) => limiter.check(check.cost(left)).await.ok(),
        // Nobody is denied any more; these are only the numbers.
        (false, 0) => limiter.peek(check.cost(0)).await.ok(),
        (true, _) => Some(decision),
    }
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
