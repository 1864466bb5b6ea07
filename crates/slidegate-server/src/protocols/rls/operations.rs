//! Limits of a request's descriptors, and their operations.

use std::sync::Arc;

use slidegate::store::Operation;
use slidegate::{Algorithm, MAX_LIMIT, Policy, Verb};
use slidegate_config::envoy::{Amount, CounterKey, LimitedAmount, Rule, Unit, quota};
use slidegate_engine::{EnvoyLimits, IN_REQUEST_METRICS, PolicyMetrics, Prepared, Rejection};
use tracing::warn;

use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use crate::log_once::LogOnce;

/// Maximum number of descriptors in a request. Envoy sends one for each rate limit of a route.
const MAX_DESCRIPTORS: usize = 100;

/// Limits of a request, one for each descriptor in their order.
pub(super) struct RequestLimits<'a>(pub(super) Vec<DescriptorLimit<'a>>);

/// Limit of a descriptor.
pub(super) enum DescriptorLimit<'a> {
    /// No limit, or a limit that another rule of the request replaces.
    NoLimit,
    /// A rule that decides without the store.
    Constant(ConstantLimit<'a>),
    /// An override of the descriptor with a limit of 0.
    ZeroOverride(Unit),
    /// A limit that the store counts.
    Counted(CountedLimit<'a>),
}

/// Rule that allows or denies all requests.
pub(super) struct ConstantLimit<'a> {
    pub(super) rule: &'a Rule,
    metrics: Arc<PolicyMetrics>,
    verb: Verb,
}

/// Limit that the store counts, with its operation.
pub(super) struct CountedLimit<'a> {
    /// `None` for an override.
    pub(super) rule: Option<&'a Rule>,
    source: LimitSource<'a>,
    metrics: Arc<PolicyMetrics>,
    key: Vec<u8>,
    verb: Verb,
    cost: u64,
}

enum LimitSource<'a> {
    Configured(&'a LimitedAmount),
    /// A limit in the descriptor.
    Override {
        requests_per_unit: u32,
        unit: Unit,
        policy: Policy,
    },
}

impl CountedLimit<'_> {
    pub(super) fn policy(&self) -> &Policy {
        match &self.source {
            LimitSource::Configured(limited) => &limited.policy,
            LimitSource::Override { policy, .. } => policy,
        }
    }

    /// Returns the name in responses.
    pub(super) fn display_name(&self) -> &str {
        self.policy().quota_name(0)
    }

    pub(super) fn requests_per_unit(&self) -> u32 {
        match &self.source {
            LimitSource::Configured(limited) => limited.requests_per_unit,
            LimitSource::Override { requests_per_unit, .. } => *requests_per_unit,
        }
    }

    pub(super) fn unit(&self) -> Unit {
        match &self.source {
            LimitSource::Configured(limited) => limited.unit,
            LimitSource::Override { unit, .. } => *unit,
        }
    }
}

impl DescriptorLimit<'_> {
    pub(super) fn rule(&self) -> Option<&Rule> {
        match self {
            Self::NoLimit | Self::ZeroOverride(_) => None,
            Self::Constant(constant) => Some(constant.rule),
            Self::Counted(counted) => counted.rule,
        }
    }
}

impl<'a> RequestLimits<'a> {
    /// Finds the limits of all descriptors, or rejects an invalid request.
    pub(super) fn find(domains: &'a EnvoyLimits, request: &RateLimitRequest) -> Result<Self, Rejection> {
        if request.domain.is_empty() {
            return Err(Rejection::out_of_range("domain", "must not be empty"));
        }
        let count = request.descriptors.len();
        if !(1..=MAX_DESCRIPTORS).contains(&count) {
            let detail = format!("{count} are given; 1 to {MAX_DESCRIPTORS} are allowed");
            return Err(Rejection::out_of_range("descriptors", detail));
        }
        let mut limits = Vec::with_capacity(count);
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let with_index = |rejection: Rejection| {
                let field = rejection.field.as_deref().unwrap_or_default();
                Rejection { field: Some(format!("descriptors[{index}].{field}")), ..rejection }
            };
            limits.push(descriptor_limit(domains, request, descriptor).map_err(with_index)?);
        }
        if matches!(limits[0], DescriptorLimit::NoLimit) {
            warn_about_unknown_domain(domains, &request.domain);
        }
        remove_replaced(&mut limits);
        Ok(Self(limits))
    }

    /// Counts the decisions of constant limits. A charge or a refund is no decision.
    pub(super) fn count_constants(&self) {
        for limit in &self.0 {
            if let DescriptorLimit::Constant(ConstantLimit {
                rule,
                metrics,
                verb: Verb::Check | Verb::Peek,
            }) = limit
            {
                let is_denied = matches!(rule.amount, Amount::Zero(_));
                metrics.count_by_rule(is_denied, rule.is_shadow);
            }
        }
    }

    /// Returns the operations of the counted limits, in their order.
    pub(super) fn prepared(&self) -> Vec<Prepared<'_>> {
        let counted = self.0.iter().filter_map(|limit| match limit {
            DescriptorLimit::Counted(counted) => Some(counted),
            DescriptorLimit::NoLimit | DescriptorLimit::Constant(_) | DescriptorLimit::ZeroOverride(_) => {
                None
            }
        });
        let prepared = counted.map(|counted| {
            let check = counted.policy().key(&counted.key).cost(counted.cost);
            // A peek decides about a request whose cost is charged later.
            Prepared {
                is_shadow: counted.rule.is_some_and(|rule| rule.is_shadow),
                records_peek: true,
                ..Prepared::new(Operation::new(counted.verb, check), &counted.metrics)
            }
        });
        prepared.collect()
    }
}

/// Removes the limits that other rules of the request replace.
fn remove_replaced(limits: &mut [DescriptorLimit<'_>]) {
    let names: Vec<&String> =
        limits.iter().filter_map(DescriptorLimit::rule).flat_map(|rule| &rule.replaces).collect();
    if names.is_empty() {
        return;
    }
    let is_replaced =
        |limit: &DescriptorLimit<'_>| limit.rule().is_some_and(|rule| names.contains(&&rule.name));
    let are_replaced: Vec<bool> = limits.iter().map(is_replaced).collect();
    for (limit, is_replaced) in limits.iter_mut().zip(are_replaced) {
        if is_replaced {
            *limit = DescriptorLimit::NoLimit;
        }
    }
}

/// Logs the first request for a domain without limits. A misspelt domain has no other symptom.
fn warn_about_unknown_domain(domains: &EnvoyLimits, domain: &[u8]) {
    static WARNING: LogOnce = LogOnce::new();
    if !domains.contains(domain) && WARNING.is_first() {
        let (domain, known) = (String::from_utf8_lossy(domain), domains.names().join(", "));
        warn!(
            ?domain,
            known, "the domain of a request from Envoy has no limits, so all its requests are allowed"
        );
    }
}

/// Finds the limit of a descriptor: its own override, or the rule that matches.
fn descriptor_limit<'a>(
    domains: &'a EnvoyLimits,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<DescriptorLimit<'a>, Rejection> {
    let (verb, cost) = verb_and_cost(request, descriptor)?;
    if let Some(limit) = descriptor.limit {
        // As in envoyproxy/ratelimit, an unknown domain has no limits, even with an override.
        if !domains.contains(&request.domain) {
            return Ok(DescriptorLimit::NoLimit);
        }
        let unit = unit_of(limit)?;
        if limit.requests_per_unit == 0 {
            return Ok(DescriptorLimit::ZeroOverride(unit));
        }
        let source = override_source(limit.requests_per_unit, unit, domains.settings().algorithm)?;
        let key = override_key(request, descriptor);
        return Ok(DescriptorLimit::Counted(CountedLimit {
            rule: None,
            source,
            metrics: Arc::clone(&IN_REQUEST_METRICS),
            key,
            verb,
            cost,
        }));
    }
    let entries = descriptor.entries.iter().map(|entry| (entry.key.as_slice(), entry.value.as_slice()));
    let Some(matched) = domains.find(&request.domain, entries) else { return Ok(DescriptorLimit::NoLimit) };
    let rule = matched.rule;
    let metrics = matched.metrics;
    Ok(match &rule.amount {
        Amount::Unlimited | Amount::Zero(_) => {
            DescriptorLimit::Constant(ConstantLimit { rule, metrics, verb })
        }
        Amount::Limited(limited) => DescriptorLimit::Counted(CountedLimit {
            rule: Some(rule),
            source: LimitSource::Configured(limited),
            metrics,
            key: matched.key.into_bytes(),
            verb,
            cost,
        }),
    })
}

/// Returns the verb and the cost. Hits of the descriptor have already happened, such as those that Envoy reports at the end of a
/// response: they are charged even beyond the limit, and 0 hits are a peek. Hits of the request are checked.
fn verb_and_cost(
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<(Verb, u64), Rejection> {
    match descriptor.hits_addend {
        Some(0) => Ok((Verb::Peek, 0)),
        Some(hits) if hits > MAX_LIMIT => {
            let detail = format!("{hits} is not between 0 and {MAX_LIMIT}");
            Err(Rejection::out_of_range("hits_addend", detail))
        }
        Some(hits) => Ok((if descriptor.is_negative_hits { Verb::Refund } else { Verb::Charge }, hits)),
        None => {
            let verb = if descriptor.is_negative_hits { Verb::Refund } else { Verb::Check };
            Ok((verb, request.hits_addend.max(1).into()))
        }
    }
}

/// Returns the verbs that the token must allow: `check`, `charge` if a descriptor has its own hits, and `refund` if hits are
/// negative.
pub(crate) fn required_verbs(request: &RateLimitRequest) -> impl Iterator<Item = Verb> {
    let has = |is_negative: bool, has_hits: bool| {
        request.descriptors.iter().any(|descriptor| {
            descriptor.is_negative_hits == is_negative
                && descriptor.hits_addend.is_some_and(|hits| hits > 0) == has_hits
        })
    };
    let is_refund = has(true, true) || has(true, false);
    let is_charge = has(false, true);
    [(Verb::Check, true), (Verb::Charge, is_charge), (Verb::Refund, is_refund)]
        .into_iter()
        .filter_map(|(verb, is_required)| is_required.then_some(verb))
}

fn unit_of(limit: RateLimitOverride) -> Result<Unit, Rejection> {
    Ok(match limit.unit() {
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
        RateLimitUnit::Unknown => {
            let detail = format!("{} is not one of 1 (SECOND) to 6 (YEAR)", limit.unit);
            return Err(Rejection::out_of_range("limit.unit", detail));
        }
    })
}

/// Returns the limit of an override. Its name is the text of its quota.
fn override_source(
    requests_per_unit: u32,
    unit: Unit,
    algorithm: Algorithm,
) -> Result<LimitSource<'static>, Rejection> {
    let policy = quota(requests_per_unit, unit, algorithm)
        .and_then(|quota| Policy::anonymous([quota]))
        .map_err(|error| Rejection::out_of_range("limit.requests_per_unit", error.message()))?;
    Ok(LimitSource::Override { requests_per_unit, unit, policy })
}

/// Returns the counter key of an override, which includes the domain because equal quotas share a policy.
fn override_key(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = CounterKey::default();
    key.push(b"", &request.domain);
    descriptor.entries.iter().for_each(|entry| key.push(&entry.key, &entry.value));
    key.into_bytes()
}
