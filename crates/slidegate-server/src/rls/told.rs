//! What a proxy tells others: headers and a body for clients, metadata for its other filters.

use std::cmp::Reverse;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use slidegate::rate_limit_headers;

use super::answer::{Outcome, Verdict, is_status_over};
use super::ask::{Asked, Item};
use super::proto::rate_limit_response::DescriptorStatus;
use super::proto::{HeaderValue, RateLimitRequest};
use crate::envoy::{Settings, Tell};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The rate-limit headers of all limits that were met and have a say, each header once and each name once in it.
pub(super) fn headers(settings: Settings, verdict: Verdict, outcomes: &[Outcome<'_>]) -> Vec<HeaderValue> {
    let is_over = verdict.is_over;
    let mut headers: Vec<HeaderValue> = Vec::new();
    let mut longest_wait_s = None;
    let is_told = match settings.headers {
        Tell::Off => false,
        Tell::Denied => is_over,
        Tell::Always => true,
    };
    let heeded = outcomes.iter().filter(|outcome| is_told && verdict.heeds(outcome.counted.rule));
    for Outcome { counted, decision } in tightest_by_name(heeded) {
        for (name, value) in rate_limit_headers(counted.policy(), decision) {
            match headers.iter_mut().find(|header| header.key == name) {
                _ if name == "retry-after" => longest_wait_s = longest_wait_s.max(value.parse::<u64>().ok()),
                Some(header) => header.value.extend([", ", &value]),
                None => headers.push(HeaderValue { key: name.to_owned(), value }),
            }
        }
    }
    if is_over {
        headers.extend(longest_wait_s.map(|seconds| header("retry-after", seconds.to_string())));
        if settings.has_body {
            headers.push(header("content-type", "application/problem+json".to_owned()));
        }
    }
    headers
}

/// Of limits of one name, such as one that two descriptors have met, that which keeps the client waiting for longest.
fn tightest_by_name<'a>(outcomes: impl Iterator<Item = &'a Outcome<'a>>) -> Vec<&'a Outcome<'a>> {
    let rank = |outcome: &Outcome<'_>| {
        let decision = &outcome.decision;
        (Reverse(decision.retry_after_ms()), decision.tightest().remaining)
    };
    let mut tightest: Vec<&Outcome<'_>> = Vec::new();
    for outcome in outcomes {
        match tightest.iter_mut().find(|known| known.counted.shown() == outcome.counted.shown()) {
            Some(known) if rank(outcome) < rank(known) => *known = outcome,
            Some(_) => {}
            None => tightest.push(outcome),
        }
    }
    tightest
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value }
}

/// A problem that names the limits that deny the request, each once.
pub(super) fn body(verdict: Verdict, asked: &Asked<'_>, statuses: &[DescriptorStatus]) -> Vec<u8> {
    let mut violated: Vec<&str> = Vec::new();
    for (item, status) in asked.0.iter().zip(statuses) {
        let name = match item {
            Item::Counted(counted) => counted.shown(),
            Item::Ruled(rule) => &rule.shown,
            Item::Refused(_) | Item::Nothing => continue,
        };
        if is_status_over(status) && verdict.heeds(item.rule()) && !violated.contains(&name) {
            violated.push(name);
        }
    }
    let problem = serde_json::json!({
        "type": QUOTA_EXCEEDED,
        "title": "Too Many Requests",
        "status": 429,
        "violated-policies": violated,
    });
    problem.to_string().into_bytes()
}

/// What envoyproxy/ratelimit says to other filters about limits in quota mode, and what the configuration adds to limits
/// that are not reached. Nothing if there is neither.
pub(super) fn metadata(
    request: &RateLimitRequest,
    asked: &Asked<'_>,
    statuses: &[DescriptorStatus],
) -> Option<Struct> {
    let says = |item: &Item<'_>| item.rule().is_some_and(|rule| rule.is_quota || rule.metadata.is_some());
    if !asked.0.iter().any(says) {
        return None;
    }
    let mut fields = Struct::default().fields;
    let mut violations = Vec::new();
    let mut has_quota = false;
    for (index, (item, status)) in asked.0.iter().zip(statuses).enumerate() {
        let Some(rule) = item.rule() else { continue };
        has_quota |= rule.is_quota;
        if !is_status_over(status) {
            fields.extend(rule.metadata.iter().flat_map(|metadata| metadata.fields.clone()));
        } else if rule.is_quota {
            violations.push(number(index as u32));
        }
    }
    if has_quota {
        let entries = |descriptor: &super::proto::RateLimitDescriptor| {
            let pair = |entry: &super::proto::rate_limit_descriptor::Entry| {
                let (key, value) =
                    (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
                text(if value.is_empty() { key.into_owned() } else { format!("{key}={value}") })
            };
            let entries = list(descriptor.entries.iter().map(pair).collect());
            of(Kind::StructValue(Struct { fields: [("entries".to_owned(), entries)].into() }))
        };
        let mut say = |name: &str, value| fields.insert(name.to_owned(), value);
        say("domain", text(String::from_utf8_lossy(&request.domain).into_owned()));
        say("descriptors", list(request.descriptors.iter().map(entries).collect()));
        if request.hits_addend > 0 {
            say("hitsAddend", number(request.hits_addend));
        }
        say("quotaModeEnabled", of(Kind::BoolValue(true)));
        if !violations.is_empty() {
            say("quotaModeViolations", list(violations));
        }
    }
    Some(Struct { fields })
}

fn of(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: String) -> Value {
    of(Kind::StringValue(text))
}

fn number(number: u32) -> Value {
    of(Kind::NumberValue(number.into()))
}

fn list(values: Vec<Value>) -> Value {
    of(Kind::ListValue(ListValue { values }))
}
