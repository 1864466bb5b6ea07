//! Policy with precomputed headers.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use slidegate_core::{Decision, Policy, QuotaReport};

use crate::error::StoreError;
use crate::headers::{digits, policy_list, sf_string, whole_seconds};
use crate::limiter::FastPath;
use crate::stack::StoreStack;

/// Policy that applies to requests, with precomputed headers. Cheap to clone.
#[derive(Clone)]
pub struct Tier(Arc<TierData>);

struct TierData {
    policy: Policy,
    header: HeaderValue,
    /// Prefix `"name";r=` of each quota, after a comma except for the first.
    limits: Box<[String]>,
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
        let names = (0..policy.quotas().len()).map(|index| sf_string(policy.quota_name(index)));
        let limits = names
            .enumerate()
            .map(|(index, name)| format!("{}{name};r=", if index == 0 { "" } else { ", " }))
            .collect();
        Self(Arc::new(TierData { policy, header, limits, fast }))
    }

    /// Policy of the tier.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Checks a key by the fast path of a memory store, if there is one.
    pub(super) fn check_now(&self, key: &[u8], cost: u64) -> Option<Result<Decision, StoreError>> {
        let decided = self.0.fast.as_ref()?.check(&self.0.policy, key, cost);
        // The headers read the reports more than once.
        Some(decided.map(Decision::with_reports))
    }

    /// Value of `ratelimit-policy`.
    pub(super) fn policy_header(&self) -> &HeaderValue {
        &self.0.header
    }

    /// Value of `ratelimit`, built per response in one allocation and without formatting.
    pub(super) fn limit_header(&self, decision: &Decision) -> Option<HeaderValue> {
        let length = |(start, (left, wait_s)): (&String, (u64, u64))| {
            start.len() + digits(left) + b";t=".len() + digits(wait_s)
        };
        // With spare capacity, `Bytes` would allocate again.
        let mut list = Vec::with_capacity(self.limits(decision).map(length).sum());
        self.write_limits(&mut list, decision);
        HeaderValue::from_maybe_shared(Bytes::from(list)).ok()
    }

    /// Appends the value of `ratelimit`.
    pub(super) fn write_limits(&self, list: &mut Vec<u8>, decision: &Decision) {
        for (start, (left, wait_s)) in self.limits(decision) {
            list.extend_from_slice(start.as_bytes());
            list.extend_from_slice(itoa::Buffer::new().format(left).as_bytes());
            list.extend_from_slice(b";t=");
            list.extend_from_slice(itoa::Buffer::new().format(wait_s).as_bytes());
        }
    }

    /// Returns the prefix, the remaining units and the wait in seconds of each quota.
    fn limits(&self, decision: &Decision) -> impl Iterator<Item = (&String, (u64, u64))> {
        let numbers = |report: QuotaReport| (report.remaining, whole_seconds(report.more_after_ms));
        self.0.limits.iter().zip(decision.quotas().into_iter().map(numbers))
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
