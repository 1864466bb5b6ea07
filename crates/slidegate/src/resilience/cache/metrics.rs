//! Metrics of the denial cache. No label contains a key.

/// Reason for which a cached denial was dropped before it expired.
#[derive(Clone, Copy, Debug)]
pub(super) enum DropReason {
    Refund,
    Reset,
    /// The policy was reset.
    Forget,
    /// The quotas of the policy changed.
    Limits,
    /// The key spent a smaller cost that was still allowed, so the cached numbers are outdated.
    Spent,
}

impl DropReason {
    fn name(self) -> &'static str {
        match self {
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::Forget => "forget",
            Self::Limits => "limits",
            Self::Spent => "spent",
        }
    }
}

pub(super) fn count_hit() {
    metrics::counter!("slidegate_denied_cache_hits_total").increment(1);
}

pub(super) fn count_stored() {
    metrics::counter!("slidegate_denied_cache_stored_total").increment(1);
}

pub(super) fn count_dropped(reason: DropReason) {
    metrics::counter!("slidegate_denied_cache_dropped_total", "reason" => reason.name()).increment(1);
}
