//! A limiter and one policy.

use std::fmt;
use std::sync::Arc;

use slidegate_core::{Decision, Policy};

use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::store::memory::{Binding, MemoryStore};

/// A limiter bound to one policy: a check names only the key. Made by [`Limiter::bind`].
///
/// What is the same for all keys of the policy is worked out once, which makes a check a little faster. The counts are
/// those of the limiter, shared with whoever asks it about a policy of the same name.
///
/// ```
/// use std::sync::Arc;
///
/// use slidegate::{Limiter, MemoryStore, Policy};
///
/// let limiter = Arc::new(Limiter::new(MemoryStore::new()));
/// let login = limiter.bind(Policy::parse("login", ["5/15m"])?);
/// assert!(login.check_now("10.0.0.1")?.is_allowed());
/// assert_eq!(limiter.peek_now(login.policy().key("10.0.0.1"))?.remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Bound<C = SystemClock> {
    limiter: Arc<Limiter<MemoryStore<C>>>,
    policy: Policy,
    binding: Binding,
}

impl<C: Clock> Bound<C> {
    pub(crate) fn new(limiter: Arc<Limiter<MemoryStore<C>>>, policy: Policy) -> Self {
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

    /// Checks each key for itself, in their order, and shows `each` what came of it. With many keys this is the fastest way:
    /// their places in memory are fetched sixteen at a time and nothing is allocated. The clock is read once for these sixteen,
    /// so `each` has to be quick: while it takes its time, the moment at which the others are decided is past.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use slidegate::{Limiter, MemoryStore, Policy};
    /// # let login = Arc::new(Limiter::new(MemoryStore::new())).bind(Policy::parse("login", ["5/15m"])?);
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
    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The limiter, for everything else.
    pub fn limiter(&self) -> &Arc<Limiter<MemoryStore<C>>> {
        &self.limiter
    }
}

impl<C> fmt::Debug for Bound<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("policy", &self.policy).finish_non_exhaustive()
    }
}
