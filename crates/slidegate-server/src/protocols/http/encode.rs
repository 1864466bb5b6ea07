//! Encodes decisions as JSON.
//!
//! Writes the same bytes as serde does for a [`DecisionJson`], whose schema is in the OpenAPI document. Serde searches every
//! field name for characters to escape, which took longer than the decision.

use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::json;
use slidegate::headers::PolicyHeaders;
use slidegate::{Policy, Quota, QuotaReport, Retry, Verb};
use slidegate_engine::{Decided, Rejection, SelectedPolicy, Selection};

use super::decision_json::DecisionJson;

/// Initial capacity for a response. Most responses have one quota and are shorter.
pub(super) const TYPICAL_RESPONSE_BYTES: usize = 512;
/// Maximum length of a decision without names and quotas, or of a problem without its texts.
const MAX_FRAME_BYTES: usize = 640;
/// Maximum length of a quota without its name.
const MAX_QUOTA_BYTES: usize = 384;
/// Maximum length of an escaped byte of a name, which has no control characters.
const MAX_BYTES_PER_NAME_BYTE: usize = 2;
/// Maximum length of an escaped byte of any text.
const MAX_BYTES_PER_TEXT_BYTE: usize = 6;

/// Returns the maximum length of the JSON of a decision, or of its rejection.
pub(super) fn max_bytes(selection: &Result<Selection<'_>, Rejection>) -> usize {
    MAX_FRAME_BYTES
        + match selection.as_ref().map(|selection| &selection.policy) {
            Ok(policy @ SelectedPolicy::Configured(_)) => {
                let quota_bytes = |quota: &QuotaFragments| MAX_QUOTA_BYTES + 2 * quota.name.len();
                let fragments = &Encoded::of(policy).json;
                fragments.policy.len() + fragments.quotas.iter().map(quota_bytes).sum::<usize>()
            }
            Ok(SelectedPolicy::FromRequest(policy, _)) => (0..policy.quotas().len())
                .map(|index| MAX_QUOTA_BYTES + 2 * MAX_BYTES_PER_NAME_BYTE * policy.quota_name(index).len())
                .sum(),
            Err(rejection) => {
                MAX_BYTES_PER_TEXT_BYTE
                    * (rejection.detail.len() + rejection.field.as_ref().map_or(0, String::len))
            }
        }
}

/// Appends the JSON of a decision.
pub(super) fn write(
    json: &mut Vec<u8>,
    encoded: &EncodedPolicy,
    decided: &Decided<'_>,
) -> serde_json::Result<()> {
    let decision = &decided.decision;
    let source = decision.source();
    // Serde writes decisions with rare fields.
    if source.reason().is_some() || decision.shadow().is_some() {
        return serde_json::to_writer(json, &DecisionJson::from(decided));
    }
    let (fragments, tightest) = (&encoded.json, decision.tightest());
    text(
        json,
        if decision.is_allowed() { r#"{"allowed":true,"policy":"# } else { r#"{"allowed":false,"policy":"# },
    );
    number(json, &fragments.policy, tightest.limit);
    number(json, r#","remaining":"#, tightest.remaining);
    number(json, r#","reset_after_ms":"#, tightest.reset_after_ms);
    match decision.retry_after_ms() {
        Some(ms) => {
            number(json, RETRY_AFTER, ms);
            text(json, r#","violated":["#);
        }
        None => text(json, r#","retry_after_ms":null,"violated":["#),
    }
    for (position, quota) in decision.violated().enumerate() {
        text(json, if position == 0 { "" } else { "," });
        text(json, &fragments.quotas[quota].name);
    }
    text(json, r#"],"source":""#);
    text(json, source.name());
    text(
        json,
        match (decided.selection.verb, decision.is_found()) {
            (Verb::Reset, true) => r#"","found":true,"quotas":["#,
            (Verb::Reset, false) => r#"","found":false,"quotas":["#,
            _ => r#"","quotas":["#,
        },
    );
    let is_peek = decided.selection.verb == Verb::Peek;
    for (index, (report, fragments)) in decision.quotas().iter().zip(&fragments.quotas).enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write_report(json, report, fragments);
        if is_peek {
            write_counters(json, report);
        }
        json.push(b'}');
    }
    text(json, if decision.is_never() { r#"],"never":true}"# } else { "]}" });
    Ok(())
}

const RETRY_AFTER: &str = r#","retry_after_ms":"#;

/// Appends the numbers of a quota.
fn write_report(json: &mut Vec<u8>, report: &QuotaReport, fragments: &QuotaFragments) {
    number(json, &fragments.start, report.limit);
    number(json, &fragments.window, report.used);
    number(json, r#","remaining":"#, report.remaining);
    number(json, r#","reset_after_ms":"#, report.reset_after_ms);
    match report.retry {
        Some(Retry::AfterMs(ms)) => {
            number(json, RETRY_AFTER, ms);
        }
        _ => text(json, r#","retry_after_ms":null"#),
    }
}

/// Appends the counters of a quota, which only a peek returns.
fn write_counters(json: &mut Vec<u8>, report: &QuotaReport) {
    number(json, r#","previous":"#, report.previous);
    number(json, r#","current":"#, report.current);
    match report.oldest_age_ms {
        Some(ms) => number(json, r#","oldest_age_ms":"#, ms),
        None => text(json, r#","oldest_age_ms":null"#),
    }
}

#[inline]
fn text(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(text.as_bytes());
}

#[inline]
fn number(json: &mut Vec<u8>, before: &str, number: u64) {
    text(json, before);
    text(json, itoa::Buffer::new().format(number));
}

/// Parts of the responses under a policy that do not depend on the decision. They are computed once for each policy.
#[derive(Debug)]
pub(crate) struct EncodedPolicy {
    pub(super) json: PolicyFragments,
    headers: OnceLock<PolicyHeaders>,
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
    pub(super) fn headers(&self, policy: &Policy) -> &PolicyHeaders {
        self.headers.get_or_init(|| PolicyHeaders::new(policy))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slidegate::headers::HeaderStyle;
    use slidegate::{Decision, FallbackReason, MAX_NAME_BYTES, MAX_QUOTAS, Source};
    use slidegate_engine::{PolicyMetrics, PolicyView};

    use super::*;
    use crate::protocols::http::Problem;

    fn decided(policy: SelectedPolicy, verb: Verb, decision: &Decision) -> Decided<'static> {
        let selection = Selection { policy, verb, key: b"key", cost: 1, path: None };
        Decided { selection, decision: decision.clone() }
    }

    /// Returns a decision under a policy in force.
    fn in_force(policy: &Policy, verb: Verb, decision: &Decision) -> Decided<'static> {
        let metrics = Arc::new(PolicyMetrics::for_policy(policy, "", 0, None));
        let view = PolicyView::new(policy.clone(), HeaderStyle::default(), metrics);
        decided(SelectedPolicy::Configured(Arc::new(view)), verb, decision)
    }

    /// Returns a decision under quotas of a request.
    fn from_request(policy: &Policy, verb: Verb, decision: &Decision) -> Decided<'static> {
        decided(SelectedPolicy::FromRequest(policy.clone(), HeaderStyle::default()), verb, decision)
    }

    fn report(retry: Option<Retry>) -> QuotaReport {
        let (used, remaining) = if retry.is_some() { (10, 0) } else { (u64::MAX, 7) };
        let mut report = QuotaReport::unused(10).with_retry(retry);
        (report.used, report.remaining) = (used, remaining);
        (report.more_after_ms, report.reset_after_ms) = (100, 900);
        (report.previous, report.current) = (7, u64::MAX);
        report.oldest_age_ms = retry.is_some().then_some(12);
        report
    }

    fn decisions() -> Vec<Decision> {
        let denial = Some(Retry::AfterMs(300));
        let reports = |of: [Option<Retry>; 2]| of.map(report).to_vec();
        let two = |retries: [Option<Retry>; 2], source| {
            Decision::new(retries.iter().all(Option::is_none), source, reports(retries))
        };
        let mut all = vec![
            two([None, None], Source::Store),
            two([denial, None], Source::Cache),
            two([None, denial], Source::Store),
            two([denial, Some(Retry::Never)], Source::Store),
            two([Some(Retry::Never); 2], Source::Rule),
            two([None, None], Source::Rule),
            two([denial, denial], Source::Fallback(FallbackReason::Resting)),
        ];
        all.push(all[1].clone().in_shadow());
        all.push(all[0].clone().with_candidate(&all[2]));
        all
    }

    #[test]
    fn a_response_fits_the_reserved_bytes() {
        let name = "\"".repeat(MAX_NAME_BYTES);
        let quotas = |count: usize| {
            (0..count).map(|index| {
                let name = format!("{index:02}{}", &name[..MAX_NAME_BYTES - 2]);
                (name, "5/1m".parse().unwrap())
            })
        };
        let mut report = QuotaReport::unused(u64::MAX).with_retry(Some(Retry::AfterMs(u64::MAX)));
        (report.used, report.previous, report.current) = (u64::MAX, u64::MAX, u64::MAX);
        (report.more_after_ms, report.reset_after_ms) = (u64::MAX, u64::MAX);
        report.oldest_age_ms = Some(u64::MAX);
        for count in [1, MAX_QUOTAS] {
            let configured = Policy::with_names(name.as_str(), quotas(count)).unwrap();
            let anonymous = Policy::anonymous_with_names(quotas(count)).unwrap();
            let source = Source::Fallback(FallbackReason::Resting);
            let denied = Decision::new(false, source, vec![report; count]);
            let never = Decision::new(false, source, vec![report.with_retry(Some(Retry::Never)); count]);
            for decision in [
                denied.clone().with_candidate(&denied),
                never.clone().with_candidate(&never),
                denied.in_shadow(),
            ] {
                for decided in [
                    in_force(&configured, Verb::Peek, &decision),
                    from_request(&anonymous, Verb::Peek, &decision),
                ] {
                    let mut json = vec![b','];
                    write(&mut json, &Encoded::of(&decided.selection.policy), &decided).unwrap();
                    let max = max_bytes(&Ok(decided.selection));
                    assert!(json.len() <= max, "{} of {max}: {}", json.len(), json.escape_ascii());
                    assert!(json.len() >= max / 4, "the reservation is too large: {} of {max}", json.len());
                }
            }
        }
        for text in ["", "a", "\u{1}\u{1}\u{1}"] {
            let rejection =
                Rejection { field: Some(text.to_owned()), ..Rejection::malformed(text.repeat(100)) };
            let json = serde_json::to_string(&Problem::from(rejection.clone())).unwrap();
            let max = max_bytes(&Err(rejection));
            assert!(json.len() < max, "{} of {max}: {json}", json.len());
        }
    }

    #[test]
    fn the_json_equals_that_of_serde() {
        let quotas = ["a \"quota\" \\ größe 限", "5/1m"].map(|name| (name, "5/1m".parse().unwrap()));
        let configured = Policy::with_names("a \"policy\"", quotas).unwrap();
        let anonymous = Policy::anonymous_with_names(quotas).unwrap();
        let with_each_verb =
            |decision: Decision| Verb::ALL.iter().map(move |verb| (decision.clone().with_found(true), *verb));
        for (decision, verb) in decisions().into_iter().flat_map(with_each_verb) {
            for decided in [in_force(&configured, verb, &decision), from_request(&anonymous, verb, &decision)]
            {
                let mut json = b"before".to_vec();
                write(&mut json, &Encoded::of(&decided.selection.policy), &decided).unwrap();
                let expected = serde_json::to_string(&DecisionJson::from(&decided)).unwrap();
                assert_eq!(str::from_utf8(&json).unwrap(), format!("before{expected}"));
            }
        }
    }
}
