//! Rank of a key for eviction: what its eviction would lose.

use slidegate_core::{Counter, Moment, Quota};

/// Loss if a key were evicted now, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvictionRank {
    /// No loss: the counter is zero.
    Idle,
    /// Loss of a count, in sixty-fourths of the limit, that would expire at `until_ms`. A key with little left is
    /// denied already if it requests more than that.
    Counting { used_64ths: u64, until_ms: u64 },
    /// Loss of a denial of every cost above 0, which would end at `until_ms`.
    Denied { until_ms: u64 },
}

impl EvictionRank {
    /// Returns the time until which the rank stays at this variant if no more requests come.
    pub(super) fn until_ms(self) -> u64 {
        match self {
            Self::Idle => 0,
            Self::Counting { until_ms, .. } | Self::Denied { until_ms } => until_ms,
        }
    }
}

/// Returns the rank of a key with this single counter.
pub(super) fn eviction_rank<C: Counter>(counter: &C, quota: &Quota, now_ms: u64) -> EvictionRank {
    let view = counter.view(quota, Moment::exact(now_ms));
    match C::used(&view) {
        0 => EvictionRank::Idle,
        used if used >= quota.capacity() => {
            let min_cost = quota.capacity().min(1);
            EvictionRank::Denied { until_ms: counter.retry_at_ms(&view, quota, min_cost) }
        }
        used => {
            // No overflow: a count is at most 2^48.
            let used_64ths = used * 64 / quota.capacity();
            EvictionRank::Counting { used_64ths, until_ms: counter.reset_at_ms(&view, quota, 0) }
        }
    }
}
