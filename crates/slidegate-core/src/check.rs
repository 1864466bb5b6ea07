//! A request: policy, key and cost.

use crate::policy::Policy;

/// One request of a key under a policy, built by [`Policy::key`] and [`cost`](Self::cost).
///
/// ```
/// use slidegate_core::Policy;
///
/// let policy = Policy::parse("uploads", ["10000000/1h"])?;
/// let check = policy.key("user:1").cost(4096);
/// assert_eq!(check.cost, 4096);
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check<'a> {
    /// The policy that applies to the key.
    pub policy: &'a Policy,
    /// The rate-limited key. Any bytes.
    pub key: &'a [u8],
    /// Units to spend; 0 spends nothing.
    pub cost: u64,
}

impl Check<'_> {
    /// Returns the request with another cost.
    #[inline(always)]
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }
}

impl Policy {
    /// Returns a request of `key` under this policy, with a cost of 1.
    #[inline(always)]
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Check<'a> {
        Check { policy: self, key: key.as_ref(), cost: 1 }
    }
}
