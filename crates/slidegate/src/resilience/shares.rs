//! The part of a policy that one node may give away by itself.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use slidegate_core::{Policy, Quota};

/// So many are kept. Policies made of quotas in requests could be any number.
const MOST: usize = 1024;

/// Shares that have been worked out, by the policy's digest and by its quotas: tiers of a policy have its name.
#[derive(Debug)]
pub(super) struct Shares {
    nodes: NonZeroU32,
    known: RwLock<HashMap<[u64; 2], Vec<Known>>>,
}

/// The quotas of which it is the share, and the share.
type Known = (Arc<[Quota]>, Arc<Policy>);

impl Shares {
    pub(super) fn new(nodes: NonZeroU32) -> Self {
        Self { nodes, known: RwLock::default() }
    }

    pub(super) fn of<'a>(&self, policy: &'a Policy) -> Share<'a> {
        if self.nodes == NonZeroU32::MIN {
            return Share::All(policy);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(quotas, _): &&Known| quotas == policy.shared_quotas();
        if let Some((_, share)) = known.get(&policy.digest()).and_then(|tiers| tiers.iter().find(is_it)) {
            return Share::Part(Arc::clone(share));
        }
        drop(known);
        let share = Arc::new(policy.share(self.nodes));
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.values().map(Vec::len).sum::<usize>() >= MOST {
            known.clear();
        }
        let tiers = known.entry(policy.digest()).or_default();
        tiers.push((Arc::clone(policy.shared_quotas()), Arc::clone(&share)));
        Share::Part(share)
    }
}

/// What one node may give away.
pub(super) enum Share<'a> {
    /// There is only one.
    All(&'a Policy),
    Part(Arc<Policy>),
}

impl Deref for Share<'_> {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        match self {
            Self::All(policy) => policy,
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
        for number in 1..=3 * MOST {
            shares.of(&Policy::anonymous([format!("{number}/1s").parse().unwrap()]).unwrap());
        }
        let kept: usize = shares.known.read().unwrap().values().map(Vec::len).sum();
        assert!((1..=MOST).contains(&kept), "{kept}");
    }
}
