//! Policy with precomputed headers.

use std::fmt;
use std::sync::Arc;

use slidegate_core::{Decision, Policy};

use crate::error::StoreError;
use crate::headers::PolicyHeaders;
use crate::limiter::FastPath;
use crate::stack::StoreStack;

/// Policy that applies to requests, with precomputed headers. Cheap to clone.
#[derive(Clone)]
pub struct Tier(Arc<TierData>);

struct TierData {
    policy: Policy,
    headers: PolicyHeaders,
    fast: Option<FastPath>,
}

impl Tier {
    /// Creates a tier from a policy.
    pub fn new(policy: Policy) -> Self {
        Self::with_fast_path(policy, None)
    }

    /// Creates a tier from a policy of a limiter over `store`.
    pub(super) fn over(store: &StoreStack, policy: &Policy) -> Self {
        Self::with_fast_path(policy.clone(), FastPath::new(policy, store))
    }

    fn with_fast_path(policy: Policy, fast: Option<FastPath>) -> Self {
        let headers = PolicyHeaders::new(&policy);
        Self(Arc::new(TierData { policy, headers, fast }))
    }

    /// Policy of the tier.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Checks a key by the fast path of a memory store, if there is one.
    #[inline(always)]
    pub(super) fn check_now(&self, key: &[u8], cost: u64) -> Option<Result<Decision, StoreError>> {
        Some(self.0.fast.as_ref()?.check(&self.0.policy, key, cost))
    }

    /// Constant parts of the rate-limit headers.
    pub(super) fn headers(&self) -> &PolicyHeaders {
        &self.0.headers
    }
}

impl From<Policy> for Tier {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tier").field(&self.0.policy).finish()
    }
}
