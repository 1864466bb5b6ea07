//! The response to a rate limit request.

use prost_types::Duration;
use slidegate::{Algorithm, Decision};
use slidegate_config::envoy::{Amount, DenialBody, EnvoySettings, Rule, Unit};

use super::operations::{CountedLimit, DescriptorLimit, RequestLimits};
use super::proto::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::response_fields;
use super::verdict::{LimitDecision, verdict};

/// Builds the response, with a status for each descriptor in their order. A decision is `None` if the store failed and the limit is
/// in shadow mode.
pub(super) fn build(
    settings: EnvoySettings,
    request: &RateLimitRequest,
    limits: &RequestLimits<'_>,
    decisions: Vec<Option<Decision>>,
    now_ms: u64,
) -> RateLimitResponse {
    let mut statuses = Vec::with_capacity(limits.0.len());
    let mut limit_decisions = Vec::with_capacity(decisions.len());
    let mut decisions = decisions.into_iter();
    for limit in &limits.0 {
        statuses.push(match limit {
            DescriptorLimit::NoLimit => ok_status(),
            DescriptorLimit::Constant(constant) => constant_status(constant.rule),
            DescriptorLimit::ZeroOverride(unit) => zero_status(*unit, String::new(), Code::OverLimit),
            DescriptorLimit::Counted(limit) => match decisions.next().flatten() {
                Some(decision) => {
                    let status = counted_status(limit, &decision, now_ms);
                    limit_decisions.push(LimitDecision { limit, decision });
                    status
                }
                None => ok_status(),
            },
        });
    }
    let verdict = verdict(limits, &statuses);
    let code = if verdict.is_over_limit { Code::OverLimit } else { Code::Ok };
    let body = if verdict.is_over_limit { settings.body } else { DenialBody::Off };
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: response_fields::headers(settings, verdict, &limit_decisions),
        request_headers_to_add: Vec::new(),
        raw_body: response_fields::body(body, verdict, limits, &statuses, &limit_decisions),
        dynamic_metadata: response_fields::metadata(request, limits, &statuses),
        statuses,
    }
}

fn ok_status() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

fn constant_status(rule: &Rule) -> DescriptorStatus {
    match rule.amount {
        Amount::Zero(unit) => {
            let code = if rule.is_shadow { Code::Ok } else { Code::OverLimit };
            zero_status(unit, rule.name.clone(), code)
        }
        Amount::Unlimited | Amount::Limited(_) => {
            DescriptorStatus { limit_remaining: u32::MAX, ..ok_status() }
        }
    }
}

/// Returns the status of a limit of 0.
fn zero_status(unit: Unit, name: String, code: Code) -> DescriptorStatus {
    let limit = RateLimit { requests_per_unit: 0, unit: wire_unit(unit).into(), name };
    DescriptorStatus { code: code.into(), current_limit: Some(limit), ..DescriptorStatus::default() }
}

fn counted_status(limit: &CountedLimit<'_>, decision: &Decision, now_ms: u64) -> DescriptorStatus {
    let code = if decision.is_allowed() { Code::Ok } else { Code::OverLimit };
    let tightest = decision.tightest();
    // Rounded up, because Envoy ignores the nanoseconds.
    let seconds = reset_after_ms(limit, tightest.reset_after_ms, now_ms).div_ceil(1000).cast_signed();
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: limit.requests_per_unit(),
            unit: wire_unit(limit.unit()).into(),
            name: limit.rule.map(|rule| rule.name.clone()).unwrap_or_default(),
        }),
        limit_remaining: u32::try_from(tightest.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(Duration { seconds, nanos: 0 }),
    }
}

/// Returns the time until the reset. Without a count, it is the end of a fixed window, as in envoyproxy/ratelimit.
fn reset_after_ms(limit: &CountedLimit<'_>, reset_after_ms: u64, now_ms: u64) -> u64 {
    let quota = limit.policy().quotas()[0];
    if reset_after_ms == 0 && quota.algorithm() == Algorithm::FixedWindow {
        quota.window_ms() - now_ms % quota.window_ms()
    } else {
        reset_after_ms
    }
}

const fn wire_unit(unit: Unit) -> WireUnit {
    match unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    }
}
