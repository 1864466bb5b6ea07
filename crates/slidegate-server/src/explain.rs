//! What a request would meet under a configuration, and why.

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

/// What is asked of a proxy, instead of a key.
struct Asked {
    peer: Option<IpAddr>,
    headers: HeaderMap,
}

/// One line for each step of the choice. The request is the body of `/v1/check`; in place of its key it may have a `peer`
/// and `headers`, from which the policy makes the key of what a proxy asks about.
pub(crate) fn explain(config: &Config, request: &str) -> Result<String, Rejection> {
    let mut body: Value = decode(request)?;
    let asked = asked(&mut body)?;
    let body = body.to_string();
    let mut request: Request<'_> = decode(&body).map_err(with_what_else_there_is)?;
    let mut lines = Lines::default();
    let policies = &Policies::from(&config.policies);
    match &request.policy {
        Some(name) => lines.add("policy", format!("{name}, which the request names")),
        None => lines.add("policy", "none: the quotas come with the request"),
    }
    let made = asked.map(|asked| make_key(policies, &request, &asked)).transpose()?;
    let why_key = match made {
        Some((key, why)) => {
            request.key = Some(key.into());
            why
        }
        None => "which the request names".to_owned(),
    };
    let found = preview(policies, &request)?;
    lines.add("key", format!("{}, {why_key}", request.key.as_deref().unwrap_or_default()));
    if let Some(name) = &request.policy {
        add_key_rule(&mut lines, policies.key_rule(name)?);
        add_choice(&mut lines, policies.quota_source(name, request.tier.as_deref(), request.key.as_deref())?);
    }
    add_quotas(&mut lines, "quotas", &found.policy);
    let is_never = found.policy.quotas().iter().any(|quota| found.cost > quota.capacity());
    let never = if is_never { "; more than a quota ever allows" } else { "" };
    lines.add("cost", format!("{}, of each quota{never}", found.cost));
    let switches = &config.degrade.switches;
    let switch = switches.iter().find(|(name, _)| request.policy.as_deref() == Some(name.as_str()));
    add_switch(&mut lines, switch.map(|(_, switch)| switch), request.key.as_deref().unwrap_or_default());
    add_failure(&mut lines, config, request.policy.as_deref());
    add_headers(&mut lines, policies, &found);
    Ok(lines.0)
}

/// Who is told the fields of a request is told those that there are only here, too.
fn with_what_else_there_is(rejection: Rejection) -> Rejection {
    let is_outermost = rejection.field.as_ref().is_some_and(|field| !field.contains(['.', '[']));
    if is_outermost && rejection.detail.starts_with("unknown field") {
        return Rejection { detail: rejection.detail + ", `peer`, `headers`", ..rejection };
    }
    rejection
}

/// Lines with a word before each.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, what: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "{what:<14}{}", text.as_ref());
    }
}

/// Takes `peer` and `headers` out of the request.
fn asked(body: &mut Value) -> Result<Option<Asked>, Rejection> {
    let Some(fields) = body.as_object_mut() else { return Ok(None) };
    let (peer, lines) = (fields.remove("peer"), fields.remove("headers"));
    if peer.is_none() && lines.is_none() {
        return Ok(None);
    }
    if fields.contains_key("key") {
        return Err(Rejection::out_of_range("key", "give either key, or peer and headers"));
    }
    let peer = peer.map(|peer| {
        let address = peer.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| Rejection::out_of_range("peer", "not an address, such as 203.0.113.7"))
    });
    Ok(Some(Asked { peer: peer.transpose()?, headers: headers(lines.as_ref())? }))
}

fn headers(lines: Option<&Value>) -> Result<HeaderMap, Rejection> {
    let wrong = |detail: String| Rejection::out_of_range("headers", detail);
    let mut headers = HeaderMap::new();
    let Some(lines) = lines else { return Ok(headers) };
    let lines = lines.as_object().ok_or_else(|| wrong("not an object of names and values".to_owned()))?;
    for (name, values) in lines {
        let known = HeaderName::try_from(name).map_err(|_| wrong(format!("{name:?} is not a name")))?;
        let values = values.as_array().map_or_else(|| std::slice::from_ref(values), Vec::as_slice);
        for value in values {
            let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
            let value = value.ok_or_else(|| wrong(format!("{name}: not a value, or a list of values")))?;
            headers.append(known.clone(), value);
        }
    }
    Ok(headers)
}

fn make_key(
    policies: &Policies,
    request: &Request<'_>,
    asked: &Asked,
) -> Result<(String, String), Rejection> {
    let Some(name) = &request.policy else {
        return Err(Rejection::out_of_range("policy", "missing; peer and headers go with a policy"));
    };
    let by_address = KeyRule::address();
    let said = policies.key_rule(name)?;
    let rule = said.unwrap_or(&by_address);
    let key = request_key(rule, policies.client(), asked.peer, &asked.headers).map_err(|part| {
        Rejection::out_of_range("key", format!("made of {rule}, and the request has no {part}, or two"))
    })?;
    let mut why = format!("made of {rule}");
    if said.is_none() {
        why.push_str(", which is what a policy without key goes by");
    }
    if rule.parts().contains(&KeyPart::Address) {
        let is_peer = policies.client().find(asked.peer, &asked.headers)
            == ClientAddress::peer().find(asked.peer, &asked.headers);
        let is_believed = asked.peer.is_some_and(|peer| policies.client().trusts(peer));
        why.push_str(if is_peer && !is_believed && asked.headers.contains_key("x-forwarded-for") {
            "; the address is the peer's, whose X-Forwarded-For is not believed: it is not in trusted_proxies"
        } else if is_peer {
            "; the address is the peer's"
        } else {
            "; the address is what X-Forwarded-For says, because the peer is a trusted proxy"
        });
    }
    Ok((key, why))
}

fn add_key_rule(lines: &mut Lines, rule: Option<&KeyRule>) {
    if let Some(rule) = rule {
        lines.add("forward-auth", format!("takes {rule} for the key"));
    }
}

fn add_choice(lines: &mut Lines, choice: QuotaSource<'_>) {
    let (own, tier) = match choice {
        QuotaSource::OwnQuotas => {
            ("the key has quotas of its own", "none: what the key has goes over it".to_owned())
        }
        QuotaSource::OwnTier(tier) => {
            ("the key has a tier of its own", format!("{tier}, which is the key's"))
        }
        QuotaSource::Tier(tier) => ("none for this key", format!("{tier}, which the request names")),
        QuotaSource::Standard => ("none for this key", "none: the request names none".to_owned()),
    };
    lines.add("override", own);
    lines.add("tier", tier);
}

fn add_quotas(lines: &mut Lines, what: &str, policy: &Policy) {
    let name = |index| policy.quota_name(index);
    let width = (0..policy.quotas().len()).map(|index| name(index).chars().count()).max().unwrap_or(0);
    for (index, quota) in policy.quotas().iter().enumerate() {
        let what = if index == 0 { what } else { "" };
        lines.add(what, format!("{:<width$}  {}", name(index), described(quota)));
    }
}

fn described(quota: &Quota) -> String {
    let label = quota.label();
    let window = label.split_once('/').map_or("", |(_, window)| window);
    let mut text = format!("{} in {window}, {}", quota.limit(), quota.algorithm());
    if quota.capacity() != quota.limit() {
        let _ = write!(text, ", holds {}", quota.capacity());
    }
    if quota.algorithm() == slidegate::Algorithm::StrictWindow {
        let _ = write!(text, ", {} slots", quota.slots());
    }
    if quota.anchor() == Anchor::FirstRequest {
        text.push_str(", from a key's first request");
    }
    text
}

fn add_switch(lines: &mut Lines, switch: Option<&PolicySwitch>, key: &str) {
    let usual = PolicySwitch::default();
    let switch = switch.unwrap_or(&usual);
    let mode = match switch.mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow: it is decided, counted and told, and nobody is denied",
        Mode::Off => "off: everything is allowed, and nothing is counted",
    };
    lines.add("mode", mode);
    let is_on = |keys: &std::collections::HashSet<Vec<u8>>| keys.contains(key.as_bytes());
    let list = match (switch.mode, is_on(&switch.denied_keys), is_on(&switch.allowed_keys)) {
        (Mode::Off, true, _) | (Mode::Off, _, true) => {
            "the key is on one, which does not matter while it is off"
        }
        (Mode::Shadow, true, _) => "the key is on that of those denied, which is told and not enforced",
        (_, true, true) => "the key is on both; that of those denied goes over the other: it is denied",
        (_, true, false) => "the key is on that of those denied: it is denied, whatever it has spent",
        (_, false, true) => "the key is on that of those allowed: it is allowed, and not counted",
        (_, false, false) => "the key is on none",
    };
    lines.add("list", list);
    if let Some(candidate) = switch.candidate() {
        add_quotas(lines, "candidate", candidate);
    }
}

fn add_failure(lines: &mut Lines, config: &Config, policy: Option<&str>) {
    let store = config.store.clone().unwrap_or_default();
    if matches!(store, StoreUrl::Memory) {
        return lines.add("on failure", "counts are in memory, which does not fail like a store elsewhere");
    }
    let usual = config.degrade.default_rule(&store);
    let own = policy
        .and_then(|name| config.degrade.overrides.get(name))
        .and_then(|values| values.failure_rule(usual));
    let rule = own.unwrap_or(usual);
    let what = match rule.on_failure {
        OnFailure::Open => "it is allowed",
        OnFailure::Closed => "it is refused with 503",
        OnFailure::Local => "it is decided by this server's share of the limits",
    };
    let whose = if own.is_some() { "the policy's own rule" } else { "as for all policies" };
    let (name, budget) = (rule.on_failure.name(), rule.budget);
    lines.add("on failure", format!("{name}: {what} if {store} does not answer within {budget:?}; {whose}"));
}

fn add_headers(lines: &mut Lines, policies: &Policies, found: &Preview) {
    let whose =
        if found.headers == policies.headers() { "as for all policies" } else { "the policy's own style" };
    lines.add("headers", format!("{}, {whose}", found.headers.keyword()));
}
