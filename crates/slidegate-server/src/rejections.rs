//! Count and log of requests without a decision.

use std::fmt::Display;

use metrics::counter;
use slidegate_engine::{Rejection, RejectionKind};
use tracing::debug;

/// Records a rejected request.
pub(crate) fn record(rejection: &Rejection) {
    record_reason(rejection.kind, rejection);
}

/// Records a request that was rejected for a reason in words.
pub(crate) fn record_reason(kind: RejectionKind, reason: impl Display) {
    debug!(?kind, %reason, "rejected a request");
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}
