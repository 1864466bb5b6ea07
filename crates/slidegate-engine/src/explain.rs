//! Explanation of how a configuration resolves a request.

use std::fmt::Write;

use slidegate::headers::HeaderStyle;
use slidegate::resilience::{Mode, OnFailure, PolicySwitch};
use slidegate::{Anchor, Policy, Quota, Verb};
use slidegate_config::{Config, KeyRule, Keyword, StoreUrl};

use crate::policies::{Policies, QuotaSource};
use crate::request::{Rejection, UncheckedRequest};

/// Explains how a configuration resolves a check, with one line per step. `policies` are those of the configuration;
/// `key_origin` describes the origin of the request's key.
pub fn explain(
    config: &Config,
    policies: &Policies,
    request: &UncheckedRequest<'_>,
    key_origin: &str,
) -> Result<String, Rejection> {
    let mut lines = Lines::default();
    match &request.policy {
        Some(name) => lines.add("policy", format!("{name}, from the request")),
        None => lines.add("policy", "none: the quotas come with the request"),
    }
    let selection = policies.select(Verb::Check, request)?;
    lines.add("key", format!("{}, {key_origin}", request.key.as_deref().unwrap_or_default()));
    if let Some(name) = &request.policy {
        add_key_rule(&mut lines, policies.key_rule(name)?);
        let source = policies.quota_source(name, request.tier.as_deref(), request.key.as_deref())?;
        add_quota_source(&mut lines, source);
    }
    let policy = selection.policy.policy();
    add_quotas(&mut lines, "quotas", policy);
    let is_never = policy.quotas().iter().any(|quota| selection.cost > quota.capacity());
    let never = if is_never { ", more than the capacity of a quota" } else { "" };
    lines.add("cost", format!("{} from each quota{never}", selection.cost));
    let switches = &config.degrade.switches;
    let switch = switches.iter().find(|(name, _)| request.policy.as_deref() == Some(name.as_str()));
    add_switch(&mut lines, switch.map(|(_, switch)| switch), request.key.as_deref().unwrap_or_default());
    add_failure(&mut lines, config, request.policy.as_deref());
    add_headers(&mut lines, policies.headers(), selection.policy.headers());
    Ok(lines.0)
}

/// Lines of the output, each with a label.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "{label:<14}{}", text.as_ref());
    }
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
        other => other.name(),
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
        other => other.name(),
    };
    let origin = if own_rule.is_some() { "the policy's own rule" } else { "the default of all policies" };
    let (name, budget) = (rule.on_failure.name(), rule.budget);
    lines.add(
        "on failure",
        format!("{name}: {effect} if {store} does not respond within {budget:?}; {origin}"),
    );
}

fn add_headers(lines: &mut Lines, default: HeaderStyle, headers: HeaderStyle) {
    let origin = if headers == default { "the default of all policies" } else { "the policy's own style" };
    lines.add("headers", format!("{}, {origin}", headers.keyword()));
}
