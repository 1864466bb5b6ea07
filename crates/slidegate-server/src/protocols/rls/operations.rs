//! From descriptors to what the store is asked.

use std::sync::Arc;

use slidegate::{Algorithm, MAX_LIMIT, Operation, Policy, Verb};
use tracing::warn;

use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use crate::app::Prepared;
use crate::envoy_limits::EnvoyLimits;
use crate::log_once::LogOnce;
use crate::policy_metrics::{OF_REQUESTS, PolicyMetrics};
use crate::request::Rejection;
use slidegate_config::envoy::{Amount, CounterKey, Limited, Rule, Unit, quota};

/// The most descriptors in a request. Envoy sends one for each of a route's rate limits.
const MAX_DESCRIPTORS: usize = 100;

/// What is asked for each descriptor, in their order.
pub(super) struct Asked<'a>(pub(super) Vec<Item<'a>>);

/// What a descriptor has met.
pub(super) enum Item<'a> {
    /// No limit, or one that another replaces.
    Nothing,
    /// A rule that needs no store.
    Ruled(Ruled<'a>),
    /// A limit of nothing that came with the descriptor.
    Refused(Unit),
    /// A limit that is counted.
    Counted(Counted<'a>),
}

pub(super) struct Ruled<'a> {
    pub(super) rule: &'a Rule,
    metrics: Arc<PolicyMetrics>,
    verb: Verb,
}

pub(super) struct Counted<'a> {
    /// The rule; none if the limit came with the descriptor.
    pub(super) rule: Option<&'a Rule>,
    limit: CountedLimit<'a>,
    metrics: Arc<PolicyMetrics>,
    key: Vec<u8>,
    verb: Verb,
    cost: u64,
}

enum CountedLimit<'a> {
    Configured(&'a Limited),
    FromRequest { requests_per_unit: u32, unit: Unit, policy: Policy },
}

impl Counted<'_> {
    pub(super) fn policy(&self) -> &Policy {
        match &self.limit {
            CountedLimit::Configured(limited) => &limited.policy,
            CountedLimit::FromRequest { policy, .. } => policy,
        }
    }

    /// What clients know it by.
    pub(super) fn shown(&self) -> &str {
        self.policy().quota_name(0)
    }

    pub(super) fn requests_per_unit(&self) -> u32 {
        match &self.limit {
            CountedLimit::Configured(limited) => limited.requests_per_unit,
            CountedLimit::FromRequest { requests_per_unit, .. } => *requests_per_unit,
        }
    }

    pub(super) fn unit(&self) -> Unit {
        match &self.limit {
            CountedLimit::Configured(limited) => limited.unit,
            CountedLimit::FromRequest { unit, .. } => *unit,
        }
    }
}

impl Item<'_> {
    pub(super) fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Nothing | Self::Refused(_) => None,
            Self::Ruled(ruled) => Some(ruled.rule),
            Self::Counted(counted) => counted.rule,
        }
    }
}

impl<'a> Asked<'a> {
    pub(super) fn new(domains: &'a EnvoyLimits, request: &RateLimitRequest) -> Result<Self, Rejection> {
        if request.domain.is_empty() {
            return Err(Rejection::out_of_range("domain", "it must not be empty"));
        }
        let found = request.descriptors.len();
        if !(1..=MAX_DESCRIPTORS).contains(&found) {
            let detail = format!("{found} are given; 1 to {MAX_DESCRIPTORS} are allowed");
            return Err(Rejection::out_of_range("descriptors", detail));
        }
        let mut items = Vec::with_capacity(found);
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let place = |rejection: Rejection| {
                let field = rejection.field.as_deref().unwrap_or_default();
                Rejection { field: Some(format!("descriptors[{index}].{field}")), ..rejection }
            };
            items.push(item(domains, request, descriptor).map_err(place)?);
        }
        if matches!(items[0], Item::Nothing) {
            warn_if_unknown(domains, &request.domain);
        }
        replace(&mut items);
        Ok(Self(items))
    }

    /// Counts what rules alone decide. Reports and refunds decide nothing.
    pub(super) fn count_by_rule(&self) {
        for item in &self.0 {
            if let Item::Ruled(Ruled { rule, metrics, verb: Verb::Check | Verb::Peek }) = item {
                let is_denied = matches!(rule.amount, Amount::Zero(_));
                metrics.count_by_rule(is_denied, rule.is_shadow);
            }
        }
    }

    /// What is to be decided, in order.
    pub(super) fn prepared(&self) -> Vec<Prepared<'_>> {
        let counted = self.0.iter().filter_map(|item| match item {
            Item::Counted(counted) => Some(counted),
            Item::Nothing | Item::Ruled(_) | Item::Refused(_) => None,
        });
        let prepared = counted.map(|counted| {
            let check = counted.policy().key(&counted.key).cost(counted.cost);
            // A peek decides a request whose cost is charged later.
            Prepared {
                is_shadow: counted.rule.is_some_and(|rule| rule.is_shadow),
                records_peek: true,
                ..Prepared::new(Operation { verb: counted.verb, check }, &counted.metrics)
            }
        });
        prepared.collect()
    }
}

/// Takes away what a rule that was met replaces.
fn replace(items: &mut [Item<'_>]) {
    let names: Vec<&String> = items.iter().filter_map(Item::rule).flat_map(|rule| &rule.replaces).collect();
    if names.is_empty() {
        return;
    }
    let is_replaced = |item: &Item<'_>| item.rule().is_some_and(|rule| names.contains(&&rule.name));
    let gone: Vec<bool> = items.iter().map(is_replaced).collect();
    for (item, gone) in items.iter_mut().zip(gone) {
        if gone {
            *item = Item::Nothing;
        }
    }
}

/// Says so, once, if a domain has no limits at all: somebody may have misspelt it, and nothing else would show.
fn warn_if_unknown(domains: &EnvoyLimits, domain: &[u8]) {
    static SAID: LogOnce = LogOnce::new();
    if !domains.knows(domain) && SAID.is_first() {
        let (domain, known) = (String::from_utf8_lossy(domain), domains.names().join(", "));
        warn!(?domain, known, "Envoy asks for a domain without limits, and all its requests are let through");
    }
}

fn item<'a>(
    domains: &'a EnvoyLimits,
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
) -> Result<Item<'a>, Rejection> {
    let (verb, cost) = hits(request, descriptor)?;
    if let Some(limit) = descriptor.limit {
        // As that project does: a domain that nobody has configured has no limits, whoever asks for them.
        if !domains.knows(&request.domain) {
            return Ok(Item::Nothing);
        }
        let unit = unit_of(limit)?;
        if limit.requests_per_unit == 0 {
            return Ok(Item::Refused(unit));
        }
        let limit = from_request(limit.requests_per_unit, unit, domains.settings().algorithm)?;
        let key = override_key(request, descriptor);
        return Ok(Item::Counted(Counted {
            rule: None,
            limit,
            metrics: Arc::clone(&OF_REQUESTS),
            key,
            verb,
            cost,
        }));
    }
    let entries = descriptor.entries.iter().map(|entry| (entry.key.as_slice(), entry.value.as_slice()));
    let Some(met) = domains.find(&request.domain, entries) else { return Ok(Item::Nothing) };
    let metrics = met.metrics;
    Ok(match &met.rule.amount {
        Amount::Unlimited | Amount::Zero(_) => Item::Ruled(Ruled { rule: met.rule, metrics, verb }),
        Amount::Limited(limited) => Item::Counted(Counted {
            rule: Some(met.rule),
            limit: CountedLimit::Configured(limited),
            metrics,
            key: met.key.into_bytes(),
            verb,
            cost,
        }),
    })
}

/// The verb and its cost. Hits of the descriptor itself have happened, such as those that Envoy reports when a response has
/// ended: they count in full, and 0 of them is a look. Hits of the request are asked for.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Result<(Verb, u64), Rejection> {
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

/// The verbs that a token has to be for: `check`, and `charge` or `refund` if hits are reported or given back.
pub(crate) fn verbs(request: &RateLimitRequest) -> impl Iterator<Item = Verb> {
    let has = |is_negative: bool, is_reported: bool| {
        request.descriptors.iter().any(|descriptor| {
            descriptor.is_negative_hits == is_negative
                && descriptor.hits_addend.is_some_and(|hits| hits > 0) == is_reported
        })
    };
    let is_refund = has(true, true) || has(true, false);
    let is_charge = has(false, true);
    [(Verb::Check, true), (Verb::Charge, is_charge), (Verb::Refund, is_refund)]
        .into_iter()
        .filter_map(|(verb, is_needed)| is_needed.then_some(verb))
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

/// The quota itself is what such a limit is called by, for it has no other name.
fn from_request(
    requests_per_unit: u32,
    unit: Unit,
    algorithm: Algorithm,
) -> Result<CountedLimit<'static>, Rejection> {
    let policy = quota(requests_per_unit, unit, algorithm)
        .and_then(|quota| Policy::anonymous([quota]))
        .map_err(|error| Rejection::out_of_range("limit.requests_per_unit", error.message()))?;
    Ok(CountedLimit::FromRequest { requests_per_unit, unit, policy })
}

/// The same quota in another domain is another count.
fn override_key(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = CounterKey::default();
    key.push(b"", &request.domain);
    descriptor.entries.iter().for_each(|entry| key.push(&entry.key, &entry.value));
    key.into_bytes()
}
