//! Rates in requests: `CL.THROTTLE` of redis-cell, and `THROTTLE` and `POST /throttle` of throttlecrab.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use slidegate::tower::HeaderStyle;
use slidegate::{Algorithm, Decision, MAX_LIMIT, Policy, Quota, QuotaError, QuotaReport};
use utoipa::ToSchema;

use crate::policies::PolicyView;
use crate::policy_metrics::PolicyMetrics;

/// Longest period: 366 days.
const MAX_PERIOD_S: u64 = 366 * 86_400;
/// Maximum number of cached policies.
const MAX_CACHED_POLICIES: usize = 1024;

/// Software whose commands state the rate. Each has separate keys and its own error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    RedisCell,
    Throttlecrab,
}

impl Dialect {
    /// Returns the policy name for all rates, so that the count of a key carries over to another rate.
    pub(crate) const fn policy_name(self) -> &'static str {
        match self {
            Self::RedisCell => "CL.THROTTLE",
            Self::Throttlecrab => "THROTTLE",
        }
    }
}

/// Rate of a request, before validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) dialect: Dialect,
    pub(crate) max_burst: i64,
    pub(crate) count: i64,
    pub(crate) period_s: i64,
}

impl Rate {
    /// Validates the rate, and returns the policy of a token bucket that refills by `count` per period.
    fn policy(&self) -> Result<Policy, String> {
        let (burst, count, period_s) = match self.dialect {
            Dialect::RedisCell => self.validate_redis_cell()?,
            Dialect::Throttlecrab => self.validate_throttlecrab()?,
        };
        let quota = Quota::new(count, Duration::from_secs(period_s))
            .and_then(|quota| quota.with_algorithm(Algorithm::TokenBucket).with_burst(burst));
        let message = |error: QuotaError| match error.field() {
            "window" => format!("period: {period_s} is more than 366 days of seconds"),
            _ => error.to_string(),
        };
        quota
            .and_then(|quota| Policy::with_names(self.dialect.policy_name(), [("rate", quota)]))
            .map_err(message)
    }

    /// Returns capacity, count and period by the rules of redis-cell: the capacity is one more than the burst.
    fn validate_redis_cell(&self) -> Result<(u64, u64, u64), String> {
        let Self { max_burst, count, period_s, .. } = *self;
        if count == 0 || period_s == 0 {
            return Err("Zero rates are not supported".to_owned());
        }
        let non_negative = |name: &str, number: i64| {
            u64::try_from(number).map_err(|_| format!("{name}: {number} is less than 0"))
        };
        let burst = non_negative("max_burst", max_burst)?.saturating_add(1);
        if burst > MAX_LIMIT {
            return Err(format!("max_burst: {max_burst} is more than {}", MAX_LIMIT - 1));
        }
        let (count, period_s) = (non_negative("count per period", count)?, non_negative("period", period_s)?);
        if count > MAX_LIMIT {
            return Err(format!("count per period: {count} is not between 1 and 2^48 ({MAX_LIMIT})"));
        }
        Ok((burst, count, period_s))
    }

    /// Returns capacity, count and period by the rules of throttlecrab: the burst is the capacity.
    fn validate_throttlecrab(&self) -> Result<(u64, u64, u64), String> {
        let within = |name: &str, number: i64, max: u64| {
            let valid = u64::try_from(number).ok().filter(|number| (1..=max).contains(number));
            valid.ok_or_else(|| {
                let detail = format!("{name}: {number} is not between 1 and {max}");
                check_failed(&format!("invalid rate limit parameters: {detail}"))
            })
        };
        Ok((
            within("max_burst", self.max_burst, MAX_LIMIT)?,
            within("count_per_period", self.count, MAX_LIMIT)?,
            within("period", self.period_s, MAX_PERIOD_S)?,
        ))
    }

    /// Returns the time in which `tokens` are refilled, rounded up.
    fn refill_ms(&self, tokens: u64) -> u64 {
        let (count, period_ms) = (self.count.unsigned_abs().max(1), self.period_s.unsigned_abs() * 1000);
        let ms = (u128::from(tokens) * u128::from(period_ms)).div_ceil(u128::from(count));
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}

/// Cache of the policies for rates, which all listeners share. Equal rates get the same policy object: the memory store would
/// rewrite a key's record for another one.
#[derive(Debug, Default)]
pub(crate) struct RatePolicies(Mutex<HashMap<Rate, Arc<PolicyView>>>);

impl RatePolicies {
    /// Returns the policy of a rate, or a message about the field that is out of range.
    pub(crate) fn find(&self, rate: Rate) -> Result<Arc<PolicyView>, String> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = cached.get(&rate) {
            return Ok(Arc::clone(policy));
        }
        let policy_metrics = PolicyMetrics::for_throttle(rate.dialect);
        let policy = Arc::new(PolicyView::new(rate.policy()?, HeaderStyle::None, policy_metrics));
        // Bounds the memory when clients send many different rates.
        if cached.len() >= MAX_CACHED_POLICIES {
            cached.clear();
        }
        cached.insert(rate, Arc::clone(&policy));
        Ok(policy)
    }
}

/// Request of throttlecrab, without its key. [`RatePolicies::find`] validates the rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThrottlecrabRequest {
    pub(crate) rate: Rate,
    pub(crate) cost: u64,
}

/// Decision in the format of throttlecrab's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ThrottleResponse)]
pub(crate) struct ThrottleReply {
    /// Whether the request is allowed.
    pub(crate) allowed: bool,
    /// `max_burst`.
    pub(crate) limit: i64,
    /// Remaining tokens.
    pub(crate) remaining: i64,
    /// Seconds until throttlecrab would forget the key; 0 if nothing is counted.
    pub(crate) reset_after: i64,
    /// Seconds until the request can be repeated, rounded up; 0 if it is allowed.
    pub(crate) retry_after: i64,
}

impl ThrottlecrabRequest {
    /// Validates the quantity, or returns throttlecrab's error.
    pub(crate) fn new(max_burst: i64, count: i64, period_s: i64, quantity: i64) -> Result<Self, String> {
        let rate = Rate { dialect: Dialect::Throttlecrab, max_burst, count, period_s };
        let cost =
            u64::try_from(quantity).map_err(|_| check_failed(&format!("negative quantity: {quantity}")))?;
        if cost > MAX_LIMIT {
            let detail = format!("quantity: {quantity} is not between 0 and {MAX_LIMIT}");
            return Err(check_failed(&detail));
        }
        Ok(Self { rate, cost })
    }

    pub(crate) fn reply(&self, decision: &Decision) -> ThrottleReply {
        let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
        let retry_after_ms = match decision.retry_after_ms() {
            _ if decision.is_allowed() => 0,
            Some(ms) => ms,
            // The quantity exceeds the capacity. throttlecrab has no reply for "never", so the reply is the time in which
            // that many tokens are refilled.
            None => reset_after_ms.saturating_add(self.rate.refill_ms(self.cost.saturating_sub(limit))),
        };
        ThrottleReply {
            allowed: decision.is_allowed(),
            limit: signed(limit),
            remaining: signed(remaining),
            reset_after: signed(self.reset_after_s(limit, reset_after_ms)),
            retry_after: signed(retry_after_ms.div_ceil(1000)),
        }
    }

    /// Returns the seconds until throttlecrab would forget the key: `max_burst - 2` intervals after the bucket is full, rounded
    /// down, but not before the bucket is full.
    fn reset_after_s(&self, limit: u64, full_after_ms: u64) -> u64 {
        if full_after_ms == 0 {
            return 0;
        }
        let expires_after_ms = full_after_ms.saturating_add(self.rate.refill_ms(limit.saturating_sub(2)));
        (expires_after_ms / 1000).max(full_after_ms.div_ceil(1000))
    }
}

/// Formats an error of throttlecrab's library as its server does.
fn check_failed(error: &str) -> String {
    format!("Rate limit check failed: {error}")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
