//! Rates in requests, as redis-cell and throttlecrab state them.

use std::sync::Arc;

use slidegate::MAX_LIMIT;
use slidegate_engine::{BucketRate, PolicyView, RatePolicies};

/// Longest period: 366 days.
const MAX_PERIOD_S: u64 = 366 * 86_400;

/// Software whose commands state the rate. Each has separate keys and its own error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Dialect {
    RedisCell,
    Throttlecrab,
}

impl Dialect {
    /// Returns the policy name for all rates, so that the count of a key carries over to another rate.
    const fn policy_name(self) -> &'static str {
        match self {
            Self::RedisCell => "CL.THROTTLE",
            Self::Throttlecrab => "THROTTLE",
        }
    }
}

/// Rate of a request, before validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rate {
    pub(super) dialect: Dialect,
    pub(super) max_burst: i64,
    pub(super) count: i64,
    pub(super) period_s: i64,
}

impl Rate {
    /// Returns the policy of the rate, or a message about the field that is out of range.
    pub(super) fn policy(&self, policies: &RatePolicies) -> Result<Arc<PolicyView>, String> {
        let (capacity, count, period_s) = match self.dialect {
            Dialect::RedisCell => self.validate_redis_cell()?,
            Dialect::Throttlecrab => self.validate_throttlecrab()?,
        };
        let rate = BucketRate { policy_name: self.dialect.policy_name(), capacity, count, period_s };
        policies.find(rate).map_err(|error| match error.field() {
            "window" => format!("period: {period_s} is more than 366 days of seconds"),
            _ => error.to_string(),
        })
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
                throttlecrab_error(&format!("invalid rate limit parameters: {detail}"))
            })
        };
        Ok((
            within("max_burst", self.max_burst, MAX_LIMIT)?,
            within("count_per_period", self.count, MAX_LIMIT)?,
            within("period", self.period_s, MAX_PERIOD_S)?,
        ))
    }

    /// Returns the time in which `tokens` are refilled, rounded up.
    pub(super) fn refill_ms(&self, tokens: u64) -> u64 {
        let (count, period_ms) = (self.count.unsigned_abs().max(1), self.period_s.unsigned_abs() * 1000);
        let ms = (u128::from(tokens) * u128::from(period_ms)).div_ceil(u128::from(count));
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}

/// Formats an error of throttlecrab's library as its server does.
pub(super) fn throttlecrab_error(error: &str) -> String {
    format!("Rate limit check failed: {error}")
}
