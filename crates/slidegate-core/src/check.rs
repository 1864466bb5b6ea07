//! A request: which policy, which key, how much.

use crate::policy::Policy;

/// One request of a key under a policy. Made by [`Policy::key`].
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
pub struct Check<'a> {
    /// The policy that the key meets.
    pub policy: &'a Policy,
    /// Who asks. Any bytes.
    pub key: &'a [u8],
    /// How much it costs; 0 spends nothing.
    pub cost: u64,
}

impl Check<'_> {
    /// The same request at another cost.
    #[inline]
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }
}
