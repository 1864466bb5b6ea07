//! Parts of a response that do not depend on the decision. They are computed once for each policy.

use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::json;
use slidegate::tower::Tier;
use slidegate::{Policy, Quota};
use slidegate_engine::SelectedPolicy;

/// Parts of the responses under a policy.
#[derive(Debug)]
pub(crate) struct EncodedPolicy {
    pub(super) json: PolicyFragments,
    headers: OnceLock<Tier>,
}

/// Parts of a policy in force, or those of a policy that came with a request.
pub(super) enum Encoded<'a> {
    Shared(&'a EncodedPolicy),
    Own(Box<EncodedPolicy>),
}

impl Encoded<'_> {
    /// Returns the parts of a policy.
    pub(super) fn of(policy: &SelectedPolicy) -> Encoded<'_> {
        match policy {
            SelectedPolicy::Configured(view) => {
                let encode = |policy: &Policy| EncodedPolicy::new(policy, Some(policy.name()));
                match view.encoded(encode) {
                    Some(encoded) => Encoded::Shared(encoded),
                    None => Encoded::Own(Box::new(encode(view.policy()))),
                }
            }
            SelectedPolicy::FromRequest(policy, _) => {
                Encoded::Own(Box::new(EncodedPolicy::new(policy, None)))
            }
        }
    }
}

impl Deref for Encoded<'_> {
    type Target = EncodedPolicy;

    fn deref(&self) -> &EncodedPolicy {
        match self {
            Self::Shared(encoded) => encoded,
            Self::Own(encoded) => encoded,
        }
    }
}

impl EncodedPolicy {
    fn new(policy: &Policy, name: Option<&str>) -> Self {
        Self { json: PolicyFragments::new(policy, name), headers: OnceLock::new() }
    }

    /// Returns the constant parts of rate-limit headers.
    pub(super) fn headers(&self, policy: &Policy) -> &Tier {
        self.headers.get_or_init(|| Tier::new(policy.clone()))
    }
}

/// Fragments of a policy: escaped names, and windows.
#[derive(Clone, Debug)]
pub(super) struct PolicyFragments {
    /// `"api","limit":`
    pub(super) policy: String,
    pub(super) quotas: Box<[QuotaFragments]>,
}

/// Fragments of a quota.
#[derive(Clone, Debug)]
pub(super) struct QuotaFragments {
    /// `"100/1m"`
    pub(super) name: String,
    /// `{"name":"100/1m","limit":`
    pub(super) start: String,
    /// `,"window_ms":60000,"used":`
    pub(super) window: String,
}

impl PolicyFragments {
    /// Returns the fragments of `policy`. Without a name, the response contains null.
    fn new(policy: &Policy, name: Option<&str>) -> Self {
        let quota = |(index, quota): (usize, &Quota)| {
            let name = json!(policy.quota_name(index)).to_string();
            let start = format!(r#"{{"name":{name},"limit":"#);
            QuotaFragments { name, start, window: format!(r#","window_ms":{},"used":"#, quota.window_ms()) }
        };
        let quotas = policy.quotas().iter().enumerate().map(quota).collect();
        Self { policy: format!(r#"{},"limit":"#, json!(name)), quotas }
    }
}
