//! A decision as JSON, in one go.
//!
//! Says what serde makes of an [`DecisionJson`], which is what is described and what clients read. To have serde write it means
//! to look for what must be escaped in the name of every field, which took longer than to decide.

use slidegate::{QuotaReport, Retry, Verb};

use crate::app::{Decided, SelectedPolicy};
use crate::decision_json::DecisionJson;
use crate::json_fragments::QuotaFragments;
use crate::request::Rejection;

/// Most answers have one quota and are shorter.
pub(super) const ANSWER_BYTES: usize = 512;
/// What an answer takes at the most beside names and quotas, or a problem beside what it says.
const MAX_BYTES: usize = 640;
/// What a quota takes at the most beside its name.
const MAX_QUOTA_BYTES: usize = 384;
/// What a byte of a name may take, which has no control characters, and of any text.
const NAME_BYTES: usize = 2;
const TEXT_BYTES: usize = 6;

/// How much there will be to say, at the most, of what is decided by `chosen`, or of why nothing is.
pub(super) fn most_bytes(chosen: &Result<SelectedPolicy, Rejection>) -> usize {
    MAX_BYTES
        + match chosen {
            Ok(SelectedPolicy::Configured(named)) => {
                let name = |quota: &QuotaFragments| MAX_QUOTA_BYTES + 2 * quota.name.len();
                named.spelled.policy.len() + named.spelled.quotas.iter().map(name).sum::<usize>()
            }
            Ok(SelectedPolicy::FromRequest(policy, _)) => (0..policy.quotas().len())
                .map(|place| MAX_QUOTA_BYTES + 2 * NAME_BYTES * policy.quota_name(place).len())
                .sum(),
            Err(rejection) => {
                TEXT_BYTES * (rejection.detail.len() + rejection.field.as_ref().map_or(0, String::len))
            }
        }
}

/// Appends the answer. It is an error if serde cannot write it.
pub(super) fn write(json: &mut Vec<u8>, decided: &Decided) -> serde_json::Result<()> {
    let decision = &decided.decision;
    let source = decision.source();
    // What is rare may take its time.
    if source.reason().is_some() || decision.shadow().is_some() {
        return serde_json::to_writer(json, &DecisionJson::from(decided));
    }
    let (spelled, tightest) = (decided.spelled(), decision.tightest());
    text(
        json,
        if decision.is_allowed() { r#"{"allowed":true,"policy":"# } else { r#"{"allowed":false,"policy":"# },
    );
    number(json, &spelled.policy, tightest.limit);
    number(json, r#","remaining":"#, tightest.remaining);
    number(json, r#","reset_after_ms":"#, tightest.reset_after_ms);
    match decision.retry_after_ms() {
        Some(ms) => {
            number(json, RETRY_AFTER, ms);
            text(json, r#","violated":["#);
        }
        None => text(json, r#","retry_after_ms":null,"violated":["#),
    }
    for (index, place) in decision.violated().enumerate() {
        text(json, if index == 0 { "" } else { "," });
        text(json, &spelled.quotas[place].name);
    }
    text(json, r#"],"source":""#);
    text(json, source.name());
    text(
        json,
        match (decided.verb(), decision.is_found()) {
            (Verb::Reset, true) => r#"","found":true,"quotas":["#,
            (Verb::Reset, false) => r#"","found":false,"quotas":["#,
            _ => r#"","quotas":["#,
        },
    );
    let is_peek = decided.verb() == Verb::Peek;
    for (index, (report, spelled)) in decision.quotas().iter().zip(&spelled.quotas).enumerate() {
        if index > 0 {
            json.push(b',');
        }
        numbers(json, report, spelled);
        if is_peek {
            parts(json, report);
        }
        json.push(b'}');
    }
    text(json, if decision.is_never() { r#"],"never":true}"# } else { "]}" });
    Ok(())
}

const RETRY_AFTER: &str = r#","retry_after_ms":"#;

fn numbers(json: &mut Vec<u8>, report: &QuotaReport, spelled: &QuotaFragments) {
    number(json, &spelled.start, report.limit);
    number(json, &spelled.window, report.used);
    number(json, r#","remaining":"#, report.remaining);
    number(json, r#","reset_after_ms":"#, report.reset_after_ms);
    match report.retry {
        Some(Retry::AfterMs(ms)) => {
            number(json, RETRY_AFTER, ms);
        }
        Some(Retry::Never) | None => text(json, r#","retry_after_ms":null"#),
    }
}

/// What a count is made of.
fn parts(json: &mut Vec<u8>, report: &QuotaReport) {
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

#[cfg(test)]
mod tests {
    use slidegate::{Decision, MAX_NAME_BYTES, MAX_QUOTAS, Policy, QuotaReport, Reason, Source};

    use super::*;
    use crate::protocols::http::Problem;

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
            two([denial, denial], Source::Fallback(Reason::Resting)),
        ];
        all.push(all[1].clone().in_shadow());
        all.push(all[0].clone().with_candidate(&all[2]));
        all
    }

    /// The response's bytes are reserved before the first decision.
    #[test]
    fn nothing_that_is_said_takes_more_room_than_was_made() {
        let name = "\"".repeat(MAX_NAME_BYTES);
        let quotas = |count: usize| {
            (0..count).map(|place| {
                let name = format!("{place:02}{}", &name[..MAX_NAME_BYTES - 2]);
                (name, "5/1m".parse().unwrap())
            })
        };
        let mut most = QuotaReport::unused(u64::MAX).with_retry(Some(Retry::AfterMs(u64::MAX)));
        (most.used, most.previous, most.current) = (u64::MAX, u64::MAX, u64::MAX);
        (most.more_after_ms, most.reset_after_ms) = (u64::MAX, u64::MAX);
        most.oldest_age_ms = Some(u64::MAX);
        for count in [1, MAX_QUOTAS] {
            let configured = Policy::with_names(name.as_str(), quotas(count)).unwrap();
            let anonymous = Policy::anonymous_with_names(quotas(count)).unwrap();
            let source = Source::Fallback(Reason::Resting);
            let denied = Decision::new(false, source, vec![most; count]);
            let never = Decision::new(false, source, vec![most.with_retry(Some(Retry::Never)); count]);
            for decision in [
                denied.clone().with_candidate(&denied),
                never.clone().with_candidate(&never),
                denied.in_shadow(),
            ] {
                for decided in [
                    Decided::configured(configured.clone(), decision.clone()).by_verb(Verb::Peek),
                    Decided::from_request(anonymous.clone(), decision.clone()).by_verb(Verb::Peek),
                ] {
                    let mut json = vec![b','];
                    write(&mut json, &decided).unwrap();
                    let most = most_bytes(&Ok(decided.into_chosen()));
                    assert!(json.len() <= most, "{} of {most}: {}", json.len(), json.escape_ascii());
                    assert!(json.len() >= most / 4, "too much is too few at once: {} of {most}", json.len());
                }
            }
        }
        for text in ["", "a", "\u{1}\u{1}\u{1}"] {
            let rejection =
                Rejection { field: Some(text.to_owned()), ..Rejection::malformed(text.repeat(100)) };
            let json = serde_json::to_string(&Problem::from(rejection.clone())).unwrap();
            let most = most_bytes(&Err(rejection));
            assert!(json.len() < most, "{} of {most}: {json}", json.len());
        }
    }

    #[test]
    fn it_is_what_serde_would_write() {
        let quotas = ["say \"hi\" \\ größe 限", "5/1m"].map(|name| (name, "5/1m".parse().unwrap()));
        let configured = Policy::with_names("a \"policy\"", quotas).unwrap();
        let anonymous = Policy::anonymous_with_names(quotas).unwrap();
        let with_each_verb =
            |decision: Decision| Verb::ALL.map(|verb| (decision.clone().with_found(true), verb));
        for (decision, verb) in decisions().into_iter().flat_map(with_each_verb) {
            for decided in [
                Decided::configured(configured.clone(), decision.clone()),
                Decided::from_request(anonymous.clone(), decision.clone()),
            ] {
                let decided = decided.by_verb(verb);
                let mut json = b"before".to_vec();
                write(&mut json, &decided).unwrap();
                let expected = serde_json::to_string(&DecisionJson::from(&decided)).unwrap();
                assert_eq!(str::from_utf8(&json).unwrap(), format!("before{expected}"));
            }
        }
    }
}
