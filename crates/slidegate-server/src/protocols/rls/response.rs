//! From decisions to Envoy's answer.

use prost_types::Duration;
use slidegate::{Algorithm, Decision};

use super::operations::{Asked, Counted, Item};
use super::proto::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::response_fields;
use slidegate_config::envoy::{Amount, DenialBody, Rule, Settings, Unit};

/// A limit that was counted, and what was decided.
pub(super) struct Outcome<'a> {
    pub(super) counted: &'a Counted<'a>,
    pub(super) decision: Decision,
}

/// What denies a request.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    pub(super) is_over: bool,
    /// Whether limits in quota mode do: all of them are over.
    do_quotas: bool,
}

impl Verdict {
    /// Whether a limit of that kind has a say.
    pub(super) fn heeds(self, rule: Option<&Rule>) -> bool {
        rule.is_none_or(|rule| !rule.is_shadow && (!rule.is_quota || self.do_quotas))
    }
}

/// The answer, with a status for each descriptor in their order. A decision that could not be had, and need not be, is
/// none.
pub(super) fn answer(
    settings: Settings,
    request: &RateLimitRequest,
    asked: &Asked<'_>,
    decisions: Vec<Option<Decision>>,
    now_ms: u64,
) -> RateLimitResponse {
    let mut statuses = Vec::with_capacity(asked.0.len());
    let mut outcomes = Vec::with_capacity(decisions.len());
    let mut decisions = decisions.into_iter();
    for item in &asked.0 {
        statuses.push(match item {
            Item::Nothing => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
            Item::Ruled(met) => ruled(met.rule),
            Item::Refused(unit) => nothing(*unit, String::new(), Code::OverLimit),
            Item::Counted(counted) => match decisions.next().flatten() {
                Some(decision) => {
                    let status = counted_status(counted, &decision, now_ms);
                    outcomes.push(Outcome { counted, decision });
                    status
                }
                None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
            },
        });
    }
    let verdict = verdict(asked, &statuses);
    let code = if verdict.is_over { Code::OverLimit } else { Code::Ok };
    let body = if verdict.is_over { settings.body } else { DenialBody::Off };
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: response_fields::headers(settings, verdict, &outcomes),
        request_headers_to_add: Vec::new(),
        raw_body: response_fields::body(body, verdict, asked, &statuses, &outcomes),
        dynamic_metadata: response_fields::metadata(request, asked, &statuses),
        statuses,
    }
}

pub(super) fn is_status_over(status: &DescriptorStatus) -> bool {
    status.code == Code::OverLimit as i32
}

/// One that is over denies the request; those in quota mode only if all of them are.
fn verdict(asked: &Asked<'_>, statuses: &[DescriptorStatus]) -> Verdict {
    let (mut quotas, mut quotas_over, mut others_over) = (0_usize, 0_usize, false);
    for (item, status) in asked.0.iter().zip(statuses) {
        let is_over = is_status_over(status);
        if item.rule().is_some_and(|rule| rule.is_quota) {
            quotas += 1;
            quotas_over += usize::from(is_over);
        } else {
            others_over |= is_over;
        }
    }
    let do_quotas = quotas > 0 && quotas == quotas_over;
    Verdict { is_over: others_over || do_quotas, do_quotas }
}

fn ruled(rule: &Rule) -> DescriptorStatus {
    match rule.amount {
        Amount::Zero(unit) => {
            let code = if rule.is_shadow { Code::Ok } else { Code::OverLimit };
            nothing(unit, rule.name.clone(), code)
        }
        Amount::Unlimited | Amount::Limited(_) => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        },
    }
}

/// The status of a limit that lets nobody in.
fn nothing(unit: Unit, name: String, code: Code) -> DescriptorStatus {
    let limit = RateLimit { requests_per_unit: 0, unit: on_wire(unit).into(), name };
    DescriptorStatus { code: code.into(), current_limit: Some(limit), ..DescriptorStatus::default() }
}

fn counted_status(counted: &Counted<'_>, decision: &Decision, now_ms: u64) -> DescriptorStatus {
    let code = if decision.is_allowed() { Code::Ok } else { Code::OverLimit };
    let tightest = decision.tightest();
    // Envoy takes the whole seconds of it alone, hence rounded up.
    let seconds = reset_after_ms(counted, tightest.reset_after_ms, now_ms).div_ceil(1000).cast_signed();
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: counted.requests_per_unit(),
            unit: on_wire(counted.unit()).into(),
            name: counted.rule.map(|rule| rule.name.clone()).unwrap_or_default(),
        }),
        limit_remaining: u32::try_from(tightest.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(Duration { seconds, nanos: 0 }),
    }
}

/// With nothing counted there is nothing to wait for; but a fixed window ends all the same, and that is what
/// envoyproxy/ratelimit says.
fn reset_after_ms(counted: &Counted<'_>, reset_after_ms: u64, now_ms: u64) -> u64 {
    let quota = counted.policy().quotas()[0];
    if reset_after_ms == 0 && quota.algorithm() == Algorithm::FixedWindow {
        quota.window_ms() - now_ms % quota.window_ms()
    } else {
        reset_after_ms
    }
}

const fn on_wire(unit: Unit) -> WireUnit {
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
