//! Quota lines of `slidegate peek`.

use std::fmt::Write as _;

use crate::protocols::http::{Age, DecisionJson, QuotaJson};

/// Returns one indented line per quota: its count and, if its algorithm has them, the counts of its windows and the age of its
/// oldest entry.
pub(super) fn quota_lines(decision: &DecisionJson<'_>) -> String {
    let mut text = String::new();
    for quota in &decision.quotas {
        let QuotaJson { name, used, limit, .. } = quota;
        let _ = write!(text, "  {name}: {used} of {limit} used");
        if let (Some(previous @ 1..), Some(current)) = (quota.previous, quota.current) {
            let _ = write!(text, "; previous window {previous}, current window {current}");
        }
        if let Some(age_ms) = quota.oldest_age_ms.and_then(Age::ms) {
            let _ = write!(text, "; oldest entry {} old", seconds(age_ms));
        }
        text.push('\n');
    }
    text
}

/// Formats milliseconds as seconds, such as 1500 as `1.500 s`.
pub(super) fn seconds(ms: u64) -> String {
    match ms % 1000 {
        0 => format!("{} s", ms / 1000),
        rest => format!("{}.{rest:03} s", ms / 1000),
    }
}
