//! Share of a policy's limits that one node may spend without the store.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use slidegate_core::{Policy, Quota};

/// Maximum number of cached shares. Requests may carry any number of different quotas.
const MAX_SHARES: usize = 1024;

/// Cache of computed shares, by the policy's digest and quotas. The tiers of a policy have the same digest.
#[derive(Debug)]
pub(super) struct Shares {
    nodes: NonZeroU32,
    cached: RwLock<HashMap<[u64; 2], Vec<CachedShare>>>,
}

/// Quotas of a policy, and their share.
type CachedShare = (Arc<[Quota]>, Arc<Policy>);

impl Shares {
    pub(super) fn new(nodes: NonZeroU32) -> Self {
        Self { nodes, cached: RwLock::default() }
    }

    pub(super) fn of<'a>(&self, policy: &'a Policy) -> Share<'a> {
        if self.nodes == NonZeroU32::MIN {
            return Share::Whole(policy);
        }
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        let has_quotas = |(quotas, _): &&CachedShare| quotas == policy.shared_quotas();
        if let Some((_, share)) = cached.get(&policy.digest()).and_then(|tiers| tiers.iter().find(has_quotas))
        {
            return Share::Part(Arc::clone(share));
        }
        drop(cached);
        let share = Arc::new(policy.share(self.nodes));
        let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
        if cached.values().map(Vec::len).sum::<usize>() >= MAX_SHARES {
            cached.clear();
        }
        let tiers = cached.entry(policy.digest()).or_default();
        tiers.push((Arc::clone(policy.shared_quotas()), Arc::clone(&share)));
        Share::Part(share)
    }
}

/// Policy with the limits of one node.
pub(super) enum Share<'a> {
    /// The whole policy, because there is one node.
    Whole(&'a Policy),
    Part(Arc<Policy>),
}

impl Deref for Share<'_> {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        match self {
            Self::Whole(policy) => policy,
            Self::Part(share) => share,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_a_changed_limit_and_are_bounded() {
        let shares = Shares::new(NonZeroU32::new(2).unwrap());
        let limit = |text: &str| shares.of(&Policy::parse("api", [text]).unwrap()).quotas()[0].limit();
        assert_eq!((limit("10/1s"), limit("10/1s"), limit("20/1s")), (5, 5, 10));
        for number in 1..=3 * MAX_SHARES {
            shares.of(&Policy::anonymous([format!("{number}/1s").parse().unwrap()]).unwrap());
        }
        let count: usize = shares.cached.read().unwrap().values().map(Vec::len).sum();
        assert!((1..=MAX_SHARES).contains(&count), "{count}");
    }
}
