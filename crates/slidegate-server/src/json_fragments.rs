//! What is known of an answer in JSON before anything is decided.

use serde_json::json;
use slidegate::{Policy, Quota};

/// What of an answer is the same in each that a policy gives: names, as JSON has them, and windows.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFragments {
    /// `"api","limit":`
    pub(crate) policy: String,
    pub(crate) quotas: Box<[QuotaFragments]>,
}

/// The same of one of its quotas.
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
    /// That of `policy`, whose name is told unless it came with a request.
    pub(crate) fn of(policy: &Policy, name: Option<&str>) -> Self {
        let quota = |(place, quota): (usize, &Quota)| {
            let name = json!(policy.quota_name(place)).to_string();
            let start = format!(r#"{{"name":{name},"limit":"#);
            QuotaFragments { name, start, window: format!(r#","window_ms":{},"used":"#, quota.window_ms()) }
        };
        let quotas = policy.quotas().iter().enumerate().map(quota).collect();
        Self { policy: format!(r#"{},"limit":"#, json!(name)), quotas }
    }
}
