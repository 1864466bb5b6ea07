//! A decision as JSON, in one go.
//!
//! Says what serde makes of an [`Answer`], which is what is described and what clients read. To have serde write it means
//! to look for what must be escaped in the name of every field, which took longer than to decide.

use slidegate::{QuotaReport, Retry};

use crate::answer::Answer;
use crate::app::Decided;
use crate::spelled::SpelledQuota;

/// Most answers have one quota and are shorter.
pub(super) const ANSWER_BYTES: usize = 512;

/// Appends the answer. It is an error if serde cannot write it.
pub(super) fn write(json: &mut Vec<u8>, decided: &Decided) -> serde_json::Result<()> {
    let decision = &decided.decision;
    let source = decision.source();
    // What is rare may take its time.
    if source.reason().is_some() || decision.shadow().is_some() {
        return serde_json::to_writer(json, &Answer::from(decided));
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
    text(json, r#"","quotas":["#);
    for (index, (report, spelled)) in decision.quotas().iter().zip(&spelled.quotas).enumerate() {
        if index > 0 {
            json.push(b',');
        }
        numbers(json, report, spelled);
    }
    text(json, if decision.is_never() { r#"],"never":true}"# } else { "]}" });
    Ok(())
}

const RETRY_AFTER: &str = r#","retry_after_ms":"#;

fn numbers(json: &mut Vec<u8>, report: &QuotaReport, spelled: &SpelledQuota) {
    number(json, &spelled.start, report.limit);
    number(json, &spelled.window, report.used);
    number(json, r#","remaining":"#, report.remaining);
    number(json, r#","reset_after_ms":"#, report.reset_after_ms);
    match report.retry {
        Some(Retry::AfterMs(ms)) => {
            number(json, RETRY_AFTER, ms);
            json.push(b'}');
        }
        Some(Retry::Never) | None => text(json, r#","retry_after_ms":null}"#),
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
    use slidegate::{Decision, Policy, QuotaReport, Reason, Source};

    use super::*;

    fn report(retry: Option<Retry>) -> QuotaReport {
        let (used, remaining) = if retry.is_some() { (10, 0) } else { (u64::MAX, 7) };
        QuotaReport { limit: 10, used, remaining, more_after_ms: 100, reset_after_ms: 900, retry }
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
        all.push(all[0].clone().beside(&all[2]));
        all
    }

    #[test]
    fn it_is_what_serde_would_write() {
        let quotas = ["say \"hi\" \\ größe 限", "5/1m"].map(|name| (name, "5/1m".parse().unwrap()));
        let configured = Policy::with_names("a \"policy\"", quotas).unwrap();
        let anonymous = Policy::anonymous_with_names(quotas).unwrap();
        for decision in decisions() {
            for decided in [
                Decided::configured(configured.clone(), decision.clone()),
                Decided::from_request(anonymous.clone(), decision.clone()),
            ] {
                let mut json = b"before".to_vec();
                write(&mut json, &decided).unwrap();
                let expected = serde_json::to_string(&Answer::from(&decided)).unwrap();
                assert_eq!(str::from_utf8(&json).unwrap(), format!("before{expected}"));
            }
        }
    }
}
