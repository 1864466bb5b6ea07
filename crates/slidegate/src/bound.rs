//! A limiter bound to one policy.

use std::fmt;
use std::sync::Arc;

use slidegate_core::{Decision, Policy};

use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::limiter::StoreLimiter;
use crate::store::memory::{Binding, MemoryStore};

/// A limiter bound to one policy, created by [`StoreLimiter::bind`]. A check needs only the key.
///
/// The work that is the same for all keys of the policy is done once, which makes checks a little faster. The counts
/// are shared with all other uses of the limiter under the same policy name.
///
/// ```
/// use std::sync::Arc;
///
/// use slidegate::Policy;
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// let limiter = Arc::new(StoreLimiter::new(MemoryStore::new()));
/// let login = limiter.bind(Policy::parse("login", ["5/15m"])?);
/// assert!(login.check_now("10.0.0.1")?.is_allowed());
/// assert_eq!(limiter.peek_now(login.policy().key("10.0.0.1"))?.remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Bound<C = SystemClock> {
    limiter: Arc<StoreLimiter<MemoryStore<C>>>,
    policy: Policy,
    binding: Binding,
}

impl<C: Clock> Bound<C> {
    pub(crate) fn new(limiter: Arc<StoreLimiter<MemoryStore<C>>>, policy: Policy) -> Self {
        let binding = limiter.store().bind(&policy);
        Self { limiter, policy, binding }
    }

    /// Spends 1 if every quota of the policy allows it, else nothing.
    #[inline(always)]
    pub fn check_now<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<Decision, StoreError> {
        self.check_cost_now(key, 1)
    }

    /// Spends `cost` if every quota of the policy allows it, else nothing.
    #[inline(always)]
    pub fn check_cost_now<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        self.limiter.store().check_bound(&self.policy, &self.binding, key.as_ref(), cost)
    }

    /// Checks each key separately, in order, and passes each decision to `each`. This is the fastest call for many
    /// keys: it prefetches sixteen keys' memory at a time and allocates nothing. It reads the clock once for these
    /// sixteen keys, so `each` must be quick: a slow callback makes the time of the following decisions stale.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use slidegate::Policy;
    /// # use slidegate::store::{MemoryStore, StoreLimiter};
    /// # let login = Arc::new(StoreLimiter::new(MemoryStore::new())).bind(Policy::parse("login", ["5/15m"])?);
    /// let mut denied = Vec::new();
    /// login.check_each_now(&["10.0.0.1"; 7], |key, decision| {
    ///     if decision.is_ok_and(|decision| !decision.is_allowed()) {
    ///         denied.push(*key);
    ///     }
    /// });
    /// assert_eq!(denied, ["10.0.0.1"; 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn check_each_now<'k, K: AsRef<[u8]>>(
        &self,
        keys: &'k [K],
        each: impl FnMut(&'k K, Result<Decision, StoreError>),
    ) {
        self.limiter.store().check_each_bound(&self.policy, &self.binding, keys, 1, each);
    }
}

impl<C> Bound<C> {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the limiter, for all other operations.
    pub fn limiter(&self) -> &Arc<StoreLimiter<MemoryStore<C>>> {
        &self.limiter
    }
}

impl<C> fmt::Debug for Bound<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("policy", &self.policy).finish_non_exhaustive()
    }
}
