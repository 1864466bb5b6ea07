//! A policy, with what is said of it in every answer made once.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use slidegate_core::Policy;

use crate::headers::policy_list;

/// A policy that requests meet. Cheap to clone.
#[derive(Clone)]
pub struct Tier(Arc<Made>);

struct Made {
    policy: Policy,
    header: HeaderValue,
}

impl Tier {
    /// Of this policy.
    pub fn new(policy: Policy) -> Self {
        // A structured field is ASCII without control characters.
        let header = HeaderValue::try_from(policy_list(&policy));
        let header = header.unwrap_or_else(|_| HeaderValue::from_static(""));
        Self(Arc::new(Made { policy, header }))
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// `ratelimit-policy`.
    pub(super) fn header(&self) -> &HeaderValue {
        &self.0.header
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
