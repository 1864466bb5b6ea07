//! Policy with precomputed headers.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use slidegate_core::{Decision, Policy};

use crate::headers::{digits, policy_list, sf_string, whole_seconds};

/// Policy that applies to requests, with precomputed headers. Cheap to clone.
#[derive(Clone)]
pub struct Tier(Arc<TierData>);

struct TierData {
    policy: Policy,
    header: HeaderValue,
    /// Prefix `"name";r=` of each quota, after a comma except for the first.
    limits: Box<[String]>,
    /// Length of the longest value of `ratelimit`.
    max_limits_bytes: usize,
}

/// Parameter behind the remaining units.
const WAIT: &[u8] = b";t=";
/// Values of up to this length are built on the stack: two quotas with any numbers, or more with usual ones.
const SHORT_LIMITS_BYTES: usize = 128;

impl Tier {
    /// Creates a tier from a policy.
    pub fn new(policy: Policy) -> Self {
        // A structured field is ASCII without control characters.
        let header = HeaderValue::try_from(policy_list(&policy));
        let header = header.unwrap_or_else(|_| HeaderValue::from_static(""));
        let names = (0..policy.quotas().len()).map(|index| sf_string(policy.quota_name(index)));
        let limits: Box<[String]> = names
            .enumerate()
            .map(|(index, name)| format!("{}{name};r=", if index == 0 { "" } else { ", " }))
            .collect();
        let most_digits = digits(u64::MAX);
        let max_limits_bytes =
            limits.iter().map(|start| start.len() + most_digits + WAIT.len() + most_digits).sum();
        Self(Arc::new(TierData { policy, header, limits, max_limits_bytes }))
    }

    /// Policy of the tier.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Value of `ratelimit-policy`.
    pub(super) fn policy_header(&self) -> &HeaderValue {
        &self.0.header
    }

    /// Value of `ratelimit`, copied once, in an allocation of its exact length.
    pub(super) fn limit_header(&self, decision: &Decision) -> Option<HeaderValue> {
        self.with_limits(decision, HeaderValue::from_bytes).ok()
    }

    /// Builds the value of `ratelimit` without formatting machinery, because it differs for each response, and passes
    /// it to `use_value`.
    pub(super) fn with_limits<T>(&self, decision: &Decision, use_value: impl FnOnce(&[u8]) -> T) -> T {
        let (mut short, mut long);
        let buffer: &mut [u8] = if self.0.max_limits_bytes <= SHORT_LIMITS_BYTES {
            short = [0; SHORT_LIMITS_BYTES];
            &mut short
        } else {
            long = vec![0; self.0.max_limits_bytes];
            &mut long
        };
        let mut length = 0;
        let mut append = |part: &[u8]| {
            buffer[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        };
        for (start, report) in self.0.limits.iter().zip(&decision.quotas()) {
            append(start.as_bytes());
            append(itoa::Buffer::new().format(report.remaining).as_bytes());
            append(WAIT);
            append(itoa::Buffer::new().format(whole_seconds(report.more_after_ms)).as_bytes());
        }
        use_value(&buffer[..length])
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
