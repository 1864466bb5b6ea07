//! Fragments of a JSON response that do not depend on the decision.

use serde_json::json;
use slidegate::{Policy, Quota};

/// Fragments of a policy: escaped names, and windows.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFragments {
    /// `"api","limit":`
    pub(crate) policy: String,
    pub(crate) quotas: Box<[QuotaFragments]>,
}

/// Fragments of a quota.
#[derive(Clone, Debug)]
pub(crate) struct QuotaFragments {
    /// `"100/1m"`
    pub(crate) name: String,
    /// `{"name":"100/1m","limit":`
    pub(crate) start: String,
    /// `,"window_ms":60000,"used":`
    pub(crate) window: String,
}

impl PolicyFragments {
    /// Returns the fragments of `policy`. Without a name, the response contains null.
    pub(crate) fn new(policy: &Policy, name: Option<&str>) -> Self {
        let quota = |(index, quota): (usize, &Quota)| {
            let name = json!(policy.quota_name(index)).to_string();
            let start = format!(r#"{{"name":{name},"limit":"#);
            QuotaFragments { name, start, window: format!(r#","window_ms":{},"used":"#, quota.window_ms()) }
        };
        let quotas = policy.quotas().iter().enumerate().map(quota).collect();
        Self { policy: format!(r#"{},"limit":"#, json!(name)), quotas }
    }
}
