//! What a proxy tells others: headers and a body for clients, metadata for its other filters.

use std::cmp::Reverse;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use slidegate::{rate_limit_headers, retry_after_seconds};

use super::metadata::{self, merge};
use super::operations::{Asked, Item};
use super::proto::rate_limit_response::DescriptorStatus;
use super::proto::{HeaderValue, RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};
use super::response::{Outcome, Verdict, is_status_over};
use slidegate_config::envoy::{DenialBody, HeaderMode, Settings};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The rate-limit headers of all limits that were met and have a say, each header once and each name once in it.
pub(super) fn headers(settings: Settings, verdict: Verdict, outcomes: &[Outcome<'_>]) -> Vec<HeaderValue> {
    let is_over = verdict.is_over;
    let mut headers: Vec<HeaderValue> = Vec::new();
    let mut longest_wait_s = None;
    let is_told = match settings.headers {
        HeaderMode::Off => false,
        HeaderMode::Denied => is_over,
        HeaderMode::Always => true,
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
        let content_type = match settings.body {
            DenialBody::Text => Some("text/plain; charset=utf-8"),
            DenialBody::Problem => Some("application/problem+json"),
            DenialBody::Off => None,
        };
        headers.extend(content_type.map(|content_type| header("content-type", content_type.to_owned())));
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

/// The body of a denial, which names the limits that deny the request. Envoy makes the `grpc-message` of it for clients of
/// gRPC, which is why it is a sentence unless a problem document is asked for.
pub(super) fn body(
    form: DenialBody,
    verdict: Verdict,
    asked: &Asked<'_>,
    statuses: &[DescriptorStatus],
    outcomes: &[Outcome<'_>],
) -> Vec<u8> {
    let violated = violated(verdict, asked, statuses);
    match form {
        DenialBody::Off => Vec::new(),
        DenialBody::Text => sentence(&violated, longest_wait_s(verdict, outcomes)).into_bytes(),
        DenialBody::Problem => serde_json::json!({
            "type": QUOTA_EXCEEDED,
            "title": "Too Many Requests",
            "status": 429,
            "violated-policies": violated,
        })
        .to_string()
        .into_bytes(),
    }
}

fn sentence(violated: &[&str], wait_s: Option<u64>) -> String {
    let names = violated.join(", ");
    match wait_s {
        None => format!("rate limit exceeded: {names}"),
        Some(1) => format!("rate limit exceeded: {names}; retry in 1 second"),
        Some(seconds) => format!("rate limit exceeded: {names}; retry in {seconds} seconds"),
    }
}

fn longest_wait_s(verdict: Verdict, outcomes: &[Outcome<'_>]) -> Option<u64> {
    let heeded = outcomes.iter().filter(|outcome| verdict.heeds(outcome.counted.rule));
    heeded.filter_map(|outcome| retry_after_seconds(&outcome.decision)).max()
}

/// The names of the limits that deny the request, each once.
fn violated<'a>(verdict: Verdict, asked: &'a Asked<'_>, statuses: &[DescriptorStatus]) -> Vec<&'a str> {
    let mut violated: Vec<&str> = Vec::new();
    for (item, status) in asked.0.iter().zip(statuses) {
        let name = match item {
            Item::Counted(counted) => counted.shown(),
            Item::Ruled(met) => &met.rule.display_name,
            Item::Refused(_) | Item::Nothing => continue,
        };
        if is_status_over(status) && verdict.heeds(item.rule()) && !violated.contains(&name) {
            violated.push(name);
        }
    }
    violated
}

/// Metadata for Envoy's other filters, in the form of envoyproxy/ratelimit: the request, and under `metadata` what the rules
/// of limits that are not reached say. `None` if no rule that was met has metadata or is in quota mode.
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
    let mut say = |name: &str, value| fields.insert(name.to_owned(), value);
    say("domain", text(String::from_utf8_lossy(&request.domain).into_owned()));
    say("descriptors", list(request.descriptors.iter().map(described).collect()));
    if request.hits_addend > 0 {
        say("hitsAddend", number(request.hits_addend.into()));
    }
    let mut merged = Struct::default();
    for (item, status) in asked.0.iter().zip(statuses) {
        if let Some(metadata) = item.rule().and_then(|rule| rule.metadata.as_ref())
            && !is_status_over(status)
        {
            merge(&mut merged, &metadata::to_struct(metadata));
        }
    }
    if !merged.fields.is_empty() {
        say("metadata", of(Kind::StructValue(merged)));
    }
    Some(Struct { fields })
}

fn described(descriptor: &RateLimitDescriptor) -> Value {
    let pair = |entry: &rate_limit_descriptor::Entry| {
        let [key, value] = [&entry.key, &entry.value].map(|bytes| String::from_utf8_lossy(bytes));
        text(format!("{key}={value}"))
    };
    let entries = list(descriptor.entries.iter().map(pair).collect());
    let hits = descriptor.hits_addend.map(|hits| ("hitsAddend".to_owned(), number(hits)));
    let fields = [("entries".to_owned(), entries)].into_iter().chain(hits).collect();
    of(Kind::StructValue(Struct { fields }))
}

fn of(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: String) -> Value {
    of(Kind::StringValue(text))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of this form are floats")]
fn number(number: u64) -> Value {
    of(Kind::NumberValue(number as f64))
}

fn list(values: Vec<Value>) -> Value {
    of(Kind::ListValue(ListValue { values }))
}
