//! What a cache of denials counts about itself. No key is among it.

/// Why a denial was dropped before its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    Refund,
    Reset,
    /// All keys of the policy were forgotten.
    Forget,
    /// The policy has other quotas now.
    Limits,
    /// The key has spent something that was small enough, so that the numbers are not true any more.
    Spent,
}

impl Why {
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

pub(super) fn hit() {
    metrics::counter!("slidegate_denied_cache_hits_total").increment(1);
}

pub(super) fn stored() {
    metrics::counter!("slidegate_denied_cache_stored_total").increment(1);
}

pub(super) fn dropped(why: Why) {
    metrics::counter!("slidegate_denied_cache_dropped_total", "reason" => why.name()).increment(1);
}
