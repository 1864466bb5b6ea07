//! The part of a policy that one node may give away by itself.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};

use slidegate_core::{Policy, Quota};

/// So many are kept. Policies made of quotas in requests could be any number.
const MOST: usize = 1024;

/// Shares that have been worked out, by the policy's digest.
#[derive(Debug)]
pub(super) struct Shares {
    nodes: NonZeroU32,
    known: RwLock<HashMap<[u64; 2], Known>>,
}

/// The quotas of which it is the share, and the share.
type Known = (Arc<[Quota]>, Arc<Policy>);

impl Shares {
    pub(super) fn new(nodes: NonZeroU32) -> Self {
        Self { nodes, known: RwLock::default() }
    }

    pub(super) fn of(&self, policy: &Policy) -> Arc<Policy> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(&policy.digest()) {
            Some((quotas, share)) if quotas == policy.shared_quotas() => return Arc::clone(share),
            _ => drop(known),
        }
        let share = Arc::new(policy.share(self.nodes));
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(policy.digest(), (Arc::clone(policy.shared_quotas()), Arc::clone(&share)));
        share
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
        assert!(shares.known.read().unwrap().len() <= MOST);
    }
}
