//! Fields of a response that the proxy passes on: headers and body for its clients, metadata for its other filters.

use std::cmp::Reverse;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use slidegate::{rate_limit_headers, retry_after_seconds};
use slidegate_config::envoy::{DenialBody, EnvoySettings, HeaderMode};

use super::metadata::{self, merge};
use super::operations::{DescriptorLimit, RequestLimits};
use super::proto::rate_limit_response::DescriptorStatus;
use super::proto::{HeaderValue, RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};
use super::verdict::{LimitDecision, Verdict, is_over_limit};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Returns the rate-limit headers of the enforced limits. Each header occurs once, and each limit once in a header.
pub(super) fn headers(
    settings: EnvoySettings,
    verdict: Verdict,
    decisions: &[LimitDecision<'_>],
) -> Vec<HeaderValue> {
    let mut headers: Vec<HeaderValue> = Vec::new();
    let mut longest_retry_s = None;
    let has_limit_headers = match settings.headers {
        HeaderMode::Off => false,
        HeaderMode::Denied => verdict.is_over_limit,
        HeaderMode::Always => true,
    };
    let enforced = decisions
        .iter()
        .filter(|limit_decision| has_limit_headers && verdict.enforces(limit_decision.limit.rule));
    for LimitDecision { limit, decision } in tightest_by_name(enforced) {
        for (name, value) in rate_limit_headers(limit.policy(), decision) {
            match headers.iter_mut().find(|header| header.key == name) {
                _ if name == "retry-after" => {
                    longest_retry_s = longest_retry_s.max(value.parse::<u64>().ok());
                }
                Some(header) => header.value.extend([", ", &value]),
                None => headers.push(HeaderValue { key: name.to_owned(), value }),
            }
        }
    }
    if verdict.is_over_limit {
        headers.extend(longest_retry_s.map(|seconds| header("retry-after", seconds.to_string())));
        let content_type = match settings.body {
            DenialBody::Text => Some("text/plain; charset=utf-8"),
            DenialBody::Problem => Some("application/problem+json"),
            DenialBody::Off => None,
        };
        headers.extend(content_type.map(|content_type| header("content-type", content_type.to_owned())));
    }
    headers
}

/// Returns the tightest decision for each name. Several descriptors can match one limit.
fn tightest_by_name<'a>(
    decisions: impl Iterator<Item = &'a LimitDecision<'a>>,
) -> Vec<&'a LimitDecision<'a>> {
    let rank = |limit_decision: &LimitDecision<'_>| {
        let decision = &limit_decision.decision;
        (Reverse(decision.retry_after_ms()), decision.tightest().remaining)
    };
    let mut tightest: Vec<&LimitDecision<'_>> = Vec::new();
    for limit_decision in decisions {
        match tightest
            .iter_mut()
            .find(|other| other.limit.display_name() == limit_decision.limit.display_name())
        {
            Some(other) if rank(limit_decision) < rank(other) => *other = limit_decision,
            Some(_) => {}
            None => tightest.push(limit_decision),
        }
    }
    tightest
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value }
}

/// Returns the body of a denial, which names the limits that deny the request. The default is a sentence, because Envoy sends the
/// body as `grpc-message` to clients of gRPC.
pub(super) fn body(
    form: DenialBody,
    verdict: Verdict,
    limits: &RequestLimits<'_>,
    statuses: &[DescriptorStatus],
    decisions: &[LimitDecision<'_>],
) -> Vec<u8> {
    let violated = violated(verdict, limits, statuses);
    match form {
        DenialBody::Off => Vec::new(),
        DenialBody::Text => sentence(&violated, longest_retry_s(verdict, decisions)).into_bytes(),
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

fn sentence(violated: &[&str], retry_s: Option<u64>) -> String {
    let names = violated.join(", ");
    match retry_s {
        None => format!("rate limit exceeded: {names}"),
        Some(1) => format!("rate limit exceeded: {names}; retry in 1 second"),
        Some(seconds) => format!("rate limit exceeded: {names}; retry in {seconds} seconds"),
    }
}

fn longest_retry_s(verdict: Verdict, decisions: &[LimitDecision<'_>]) -> Option<u64> {
    let enforced = decisions.iter().filter(|limit_decision| verdict.enforces(limit_decision.limit.rule));
    enforced.filter_map(|limit_decision| retry_after_seconds(&limit_decision.decision)).max()
}

/// Returns the names of the limits that deny the request, each once.
fn violated<'a>(
    verdict: Verdict,
    limits: &'a RequestLimits<'_>,
    statuses: &[DescriptorStatus],
) -> Vec<&'a str> {
    let mut violated: Vec<&str> = Vec::new();
    for (limit, status) in limits.0.iter().zip(statuses) {
        let name = match limit {
            DescriptorLimit::Counted(counted) => counted.display_name(),
            DescriptorLimit::Constant(constant) => &constant.rule.display_name,
            DescriptorLimit::ZeroOverride(_) | DescriptorLimit::NoLimit => continue,
        };
        if is_over_limit(status) && verdict.enforces(limit.rule()) && !violated.contains(&name) {
            violated.push(name);
        }
    }
    violated
}

/// Returns metadata for Envoy's other filters, in the form of envoyproxy/ratelimit: the request, and under `metadata` the merged
/// metadata of the rules that are not exceeded. `None` if no matched rule has metadata or is in quota mode.
pub(super) fn metadata(
    request: &RateLimitRequest,
    limits: &RequestLimits<'_>,
    statuses: &[DescriptorStatus],
) -> Option<Struct> {
    let needs_metadata = |limit: &DescriptorLimit<'_>| {
        limit.rule().is_some_and(|rule| rule.is_quota || rule.metadata.is_some())
    };
    if !limits.0.iter().any(needs_metadata) {
        return None;
    }
    let mut fields = Struct::default().fields;
    let mut insert = |name: &str, value| fields.insert(name.to_owned(), value);
    insert("domain", string(String::from_utf8_lossy(&request.domain).into_owned()));
    insert("descriptors", list(request.descriptors.iter().map(descriptor_value).collect()));
    if request.hits_addend > 0 {
        insert("hitsAddend", number(request.hits_addend.into()));
    }
    let mut merged = Struct::default();
    for (limit, status) in limits.0.iter().zip(statuses) {
        if let Some(metadata) = limit.rule().and_then(|rule| rule.metadata.as_ref())
            && !is_over_limit(status)
        {
            merge(&mut merged, &metadata::to_struct(metadata));
        }
    }
    if !merged.fields.is_empty() {
        insert("metadata", value(Kind::StructValue(merged)));
    }
    Some(Struct { fields })
}

fn descriptor_value(descriptor: &RateLimitDescriptor) -> Value {
    let pair = |entry: &rate_limit_descriptor::Entry| {
        let [key, value] = [&entry.key, &entry.value].map(|bytes| String::from_utf8_lossy(bytes));
        string(format!("{key}={value}"))
    };
    let entries = list(descriptor.entries.iter().map(pair).collect());
    let hits = descriptor.hits_addend.map(|hits| ("hitsAddend".to_owned(), number(hits)));
    let fields = [("entries".to_owned(), entries)].into_iter().chain(hits).collect();
    value(Kind::StructValue(Struct { fields }))
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn string(text: String) -> Value {
    value(Kind::StringValue(text))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of this form are floats")]
fn number(number: u64) -> Value {
    value(Kind::NumberValue(number as f64))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}
