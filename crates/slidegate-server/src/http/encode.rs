//! A decision as JSON, in one go.
//!
//! Says what serde makes of an [`Answer`], which is what is described and what clients read. To have serde write it means
//! to look for what must be escaped in the name of every field, which took longer than to decide.

use serde::Serialize;
use slidegate::{QuotaReport, Retry};

use crate::answer::Answer;
use crate::app::Decided;

/// Most answers have one quota and are shorter.
pub(super) const ANSWER_BYTES: usize = 512;

/// Appends the answer. It is an error if a name cannot be written, which no string is.
pub(super) fn write(json: &mut Vec<u8>, decided: &Decided) -> serde_json::Result<()> {
    let decision = &decided.decision;
    let source = decision.source();
    // What is rare may take its time.
    if source.reason().is_some() || decision.shadow().is_some() {
        return serde_json::to_writer(json, &Answer::from(decided));
    }
    let (policy, tightest) = (decided.policy(), decision.tightest());
    text(
        json,
        if decision.is_allowed() { r#"{"allowed":true,"policy":"# } else { r#"{"allowed":false,"policy":"# },
    );
    value(json, &decided.policy_name())?;
    number(json, r#","limit":"#, tightest.limit);
    number(json, r#","remaining":"#, tightest.remaining);
    number(json, r#","reset_after_ms":"#, tightest.reset_after_ms);
    number_or_null(json, r#","retry_after_ms":"#, decision.retry_after_ms());
    text(json, r#","violated":["#);
    for (index, place) in decision.violated().enumerate() {
        text(json, if index == 0 { "" } else { "," });
        value(json, policy.quota_name(place))?;
    }
    text(json, r#"],"source":""#);
    text(json, source.name());
    text(json, r#"","quotas":["#);
    for (index, report) in decision.quotas().iter().enumerate() {
        text(json, if index == 0 { r#"{"name":"# } else { r#",{"name":"# });
        value(json, policy.quota_name(index))?;
        numbers(json, report, policy.quotas()[index].window_ms());
    }
    text(json, if decision.is_never() { r#"],"never":true}"# } else { "]}" });
    Ok(())
}

fn numbers(json: &mut Vec<u8>, report: &QuotaReport, window_ms: u64) {
    number(json, r#","limit":"#, report.limit);
    number(json, r#","window_ms":"#, window_ms);
    number(json, r#","used":"#, report.used);
    number(json, r#","remaining":"#, report.remaining);
    number(json, r#","reset_after_ms":"#, report.reset_after_ms);
    let retry_after_ms = match report.retry {
        Some(Retry::AfterMs(ms)) => Some(ms),
        Some(Retry::Never) | None => None,
    };
    number_or_null(json, r#","retry_after_ms":"#, retry_after_ms);
    text(json, "}");
}

fn text(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(text.as_bytes());
}

fn number(json: &mut Vec<u8>, before: &str, number: u64) {
    text(json, before);
    text(json, itoa::Buffer::new().format(number));
}

fn number_or_null(json: &mut Vec<u8>, before: &str, some: Option<u64>) {
    match some {
        Some(some) => number(json, before, some),
        None => {
            text(json, before);
            text(json, "null");
        }
    }
}

fn value(json: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    serde_json::to_writer(json, value)
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
