//! Policy with precomputed headers.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use slidegate_core::{Decision, Policy};

use super::limit_list::{ItemNumbers, with_limit_list};
use crate::error::StoreError;
use crate::headers::{policy_list, sf_string};
use crate::limiter::FastPath;
use crate::stack::StoreStack;

/// Policy that applies to requests, with precomputed headers. Cheap to clone.
#[derive(Clone)]
pub struct Tier(Arc<TierData>);

struct TierData {
    policy: Policy,
    header: HeaderValue,
    /// Quoted name of each quota, after a comma except for the first.
    names: Box<[String]>,
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
        // A structured field is ASCII without control characters.
        let header = HeaderValue::try_from(policy_list(&policy));
        let header = header.unwrap_or_else(|_| HeaderValue::from_static(""));
        let name = |index| {
            let comma = if index == 0 { "" } else { ", " };
            comma.to_owned() + &sf_string(policy.quota_name(index))
        };
        let names = (0..policy.quotas().len()).map(name).collect();
        Self(Arc::new(TierData { policy, header, names, fast }))
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

    /// Value of `ratelimit-policy`.
    pub(super) fn policy_header(&self) -> &HeaderValue {
        &self.0.header
    }

    /// Length of the first quota's quoted name, with which the value of `ratelimit-policy` starts.
    pub(super) fn first_name_bytes(&self) -> usize {
        self.0.names[0].len()
    }

    /// Passes the value of `ratelimit` to `use_value`.
    pub(super) fn with_limits<T>(&self, decision: &Decision, use_value: impl FnOnce(&[u8]) -> T) -> T {
        let names = self.0.names.iter().map(String::as_bytes);
        with_limit_list(names.zip(decision.quotas().iter().map(ItemNumbers::from)), use_value)
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
