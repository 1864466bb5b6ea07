//! Explanation of how a configuration resolves a request.

use std::fmt::Write;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use slidegate::resilience::{Mode, OnFailure, PolicySwitch};
use slidegate::tower::ClientAddress;
use slidegate::{Anchor, Policy, Quota};

use crate::app::{Preview, preview};
use crate::policies::{Policies, QuotaSource};
use crate::protocols::http::decode;
use crate::request::{Rejection, Request};
use crate::request_key::request_key;
use slidegate_config::{Config, Keyword, StoreUrl};
use slidegate_config::{KeyPart, KeyRule};

/// Client of a forward-auth request, instead of a key.
struct ProxiedClient {
    peer: Option<IpAddr>,
    headers: HeaderMap,
}

/// Explains how a configuration resolves a request, with one line per step. The request is a body of `/v1/check`. Instead of
/// the key, it can contain the `peer` and the `headers` of a forward-auth request, from which the policy derives the key.
pub(crate) fn explain(config: &Config, request: &str) -> Result<String, Rejection> {
    let mut body: Value = decode(request)?;
    let client = take_client(&mut body)?;
    let body = body.to_string();
    let mut request: Request<'_> = decode(&body).map_err(with_own_fields)?;
    let mut lines = Lines::default();
    let policies = &Policies::from(&config.policies);
    match &request.policy {
        Some(name) => lines.add("policy", format!("{name}, from the request")),
        None => lines.add("policy", "none: the quotas come with the request"),
    }
    let derived = client.map(|client| derive_key(policies, &request, &client)).transpose()?;
    let key_origin = match derived {
        Some((key, origin)) => {
            request.key = Some(key.into());
            origin
        }
        None => "from the request".to_owned(),
    };
    let found = preview(policies, &request)?;
    lines.add("key", format!("{}, {key_origin}", request.key.as_deref().unwrap_or_default()));
    if let Some(name) = &request.policy {
        add_key_rule(&mut lines, policies.key_rule(name)?);
        let source = policies.quota_source(name, request.tier.as_deref(), request.key.as_deref())?;
        add_quota_source(&mut lines, source);
    }
    add_quotas(&mut lines, "quotas", &found.policy);
    let is_never = found.policy.quotas().iter().any(|quota| found.cost > quota.capacity());
    let never = if is_never { ", more than the capacity of a quota" } else { "" };
    lines.add("cost", format!("{} from each quota{never}", found.cost));
    let switches = &config.degrade.switches;
    let switch = switches.iter().find(|(name, _)| request.policy.as_deref() == Some(name.as_str()));
    add_switch(&mut lines, switch.map(|(_, switch)| switch), request.key.as_deref().unwrap_or_default());
    add_failure(&mut lines, config, request.policy.as_deref());
    add_headers(&mut lines, policies, &found);
    Ok(lines.0)
}

/// Adds the fields that only this command accepts to the list of known fields in an error.
fn with_own_fields(rejection: Rejection) -> Rejection {
    let is_outermost = rejection.field.as_ref().is_some_and(|field| !field.contains(['.', '[']));
    if is_outermost && rejection.detail.starts_with("unknown field") {
        return Rejection { detail: rejection.detail + ", `peer`, `headers`", ..rejection };
    }
    rejection
}

/// Lines of the output, each with a label.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "{label:<14}{}", text.as_ref());
    }
}

/// Removes `peer` and `headers` from the request and parses them.
fn take_client(body: &mut Value) -> Result<Option<ProxiedClient>, Rejection> {
    let Some(fields) = body.as_object_mut() else { return Ok(None) };
    let (peer, headers) = (fields.remove("peer"), fields.remove("headers"));
    if peer.is_none() && headers.is_none() {
        return Ok(None);
    }
    if fields.contains_key("key") {
        return Err(Rejection::out_of_range("key", "give either key, or peer and headers"));
    }
    let peer = peer.map(|peer| {
        let address = peer.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| Rejection::out_of_range("peer", "not an address, such as 203.0.113.7"))
    });
    Ok(Some(ProxiedClient { peer: peer.transpose()?, headers: parse_headers(headers.as_ref())? }))
}

fn parse_headers(fields: Option<&Value>) -> Result<HeaderMap, Rejection> {
    let invalid = |detail: String| Rejection::out_of_range("headers", detail);
    let mut headers = HeaderMap::new();
    let Some(fields) = fields else { return Ok(headers) };
    let fields = fields.as_object().ok_or_else(|| invalid("not an object of names and values".to_owned()))?;
    for (name, values) in fields {
        let header = HeaderName::try_from(name).map_err(|_| invalid(format!("{name:?} is not a name")))?;
        let values = values.as_array().map_or_else(|| std::slice::from_ref(values), Vec::as_slice);
        for value in values {
            let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
            let value = value.ok_or_else(|| invalid(format!("{name}: not a value, or a list of values")))?;
            headers.append(header.clone(), value);
        }
    }
    Ok(headers)
}

/// Returns the key of a forward-auth request and its origin.
fn derive_key(
    policies: &Policies,
    request: &Request<'_>,
    client: &ProxiedClient,
) -> Result<(String, String), Rejection> {
    let Some(name) = &request.policy else {
        return Err(Rejection::out_of_range("policy", "missing; peer and headers require a policy"));
    };
    let by_address = KeyRule::address();
    let configured = policies.key_rule(name)?;
    let rule = configured.unwrap_or(&by_address);
    let key = request_key(rule, policies.client(), client.peer, &client.headers).map_err(|part| {
        Rejection::out_of_range("key", format!("derived from {rule}; the request needs exactly one {part}"))
    })?;
    let mut origin = format!("derived from {rule}");
    if configured.is_none() {
        origin.push_str(", the default of a policy without key");
    }
    if rule.parts().contains(&KeyPart::Address) {
        let is_peer = policies.client().find(client.peer, &client.headers)
            == ClientAddress::peer().find(client.peer, &client.headers);
        let is_trusted = client.peer.is_some_and(|peer| policies.client().trusts(peer));
        origin.push_str(if is_peer && !is_trusted && client.headers.contains_key("x-forwarded-for") {
            "; the address is that of the peer, whose X-Forwarded-For is ignored because it is not in trusted_proxies"
        } else if is_peer {
            "; the address is that of the peer"
        } else {
            "; the address is from X-Forwarded-For, because the peer is a trusted proxy"
        });
    }
    Ok((key, origin))
}

fn add_key_rule(lines: &mut Lines, rule: Option<&KeyRule>) {
    if let Some(rule) = rule {
        lines.add("forward-auth", format!("derives the key from {rule}"));
    }
}

fn add_quota_source(lines: &mut Lines, source: QuotaSource<'_>) {
    let (key_override, tier) = match source {
        QuotaSource::OwnQuotas => ("the quotas of the key", "none: the override takes precedence".to_owned()),
        QuotaSource::OwnTier(tier) => ("the tier of the key", format!("{tier}, from the override")),
        QuotaSource::Tier(tier) => ("none for this key", format!("{tier}, from the request")),
        QuotaSource::Standard => ("none for this key", "none in the request".to_owned()),
    };
    lines.add("override", key_override);
    lines.add("tier", tier);
}

fn add_quotas(lines: &mut Lines, label: &str, policy: &Policy) {
    let name = |index| policy.quota_name(index);
    let width = (0..policy.quotas().len()).map(|index| name(index).chars().count()).max().unwrap_or(0);
    for (index, quota) in policy.quotas().iter().enumerate() {
        let label = if index == 0 { label } else { "" };
        lines.add(label, format!("{:<width$}  {}", name(index), description(quota)));
    }
}

fn description(quota: &Quota) -> String {
    let label = quota.label();
    let window = label.split_once('/').map_or("", |(_, window)| window);
    let mut text = format!("{} in {window}, {}", quota.limit(), quota.algorithm());
    if quota.capacity() != quota.limit() {
        let _ = write!(text, ", capacity {}", quota.capacity());
    }
    if quota.algorithm() == slidegate::Algorithm::StrictWindow {
        let _ = write!(text, ", {} slots", quota.slots());
    }
    if quota.anchor() == Anchor::FirstRequest {
        text.push_str(", starting at the key's first request");
    }
    text
}

fn add_switch(lines: &mut Lines, switch: Option<&PolicySwitch>, key: &str) {
    let default_switch = PolicySwitch::default();
    let switch = switch.unwrap_or(&default_switch);
    let mode = match switch.mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow: decisions are counted and reported, but not enforced",
        Mode::Off => "off: all requests are allowed without being counted",
    };
    lines.add("mode", mode);
    let contains = |keys: &std::collections::HashSet<Vec<u8>>| keys.contains(key.as_bytes());
    let list = match (switch.mode, contains(&switch.denied_keys), contains(&switch.allowed_keys)) {
        (Mode::Off, true, _) | (Mode::Off, _, true) => {
            "the key is on a list, which has no effect in this mode"
        }
        (Mode::Shadow, true, _) => "the key is on the deny list: the denial is reported, but not enforced",
        (_, true, true) => "the key is on both lists: it is denied, because the deny list takes precedence",
        (_, true, false) => "the key is on the deny list: it is always denied",
        (_, false, true) => "the key is on the allow list: it is always allowed, without being counted",
        (_, false, false) => "the key is on no list",
    };
    lines.add("list", list);
    if let Some(candidate) = switch.candidate() {
        add_quotas(lines, "candidate", candidate);
    }
}

fn add_failure(lines: &mut Lines, config: &Config, policy: Option<&str>) {
    let store = config.store.clone().unwrap_or_default();
    if matches!(store, StoreUrl::Memory) {
        return lines.add("on failure", "none: the memory store does not fail like a remote store");
    }
    let default_rule = config.degrade.default_rule(&store);
    let own_rule = policy
        .and_then(|name| config.degrade.overrides.get(name))
        .and_then(|values| values.failure_rule(default_rule));
    let rule = own_rule.unwrap_or(default_rule);
    let effect = match rule.on_failure {
        OnFailure::Open => "the request is allowed",
        OnFailure::Closed => "the request is rejected with 503",
        OnFailure::Local => "this server's share of the limits decides",
    };
    let origin = if own_rule.is_some() { "the policy's own rule" } else { "the default of all policies" };
    let (name, budget) = (rule.on_failure.name(), rule.budget);
    lines.add(
        "on failure",
        format!("{name}: {effect} if {store} does not respond within {budget:?}; {origin}"),
    );
}

fn add_headers(lines: &mut Lines, policies: &Policies, found: &Preview) {
    let origin = if found.headers == policies.headers() {
        "the default of all policies"
    } else {
        "the policy's own style"
    };
    lines.add("headers", format!("{}, {origin}", found.headers.keyword()));
}
