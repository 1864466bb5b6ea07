//! Rates that come with a request: `CL.THROTTLE` of redis-cell, and `THROTTLE` and `POST /throttle` of throttlecrab.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use slidegate::tower::HeaderStyle;
use slidegate::{Algorithm, Decision, MAX_LIMIT, Policy, Quota, QuotaError, QuotaReport};
use utoipa::ToSchema;

use crate::policies::PolicyView;
use crate::policy_metrics::PolicyMetrics;

/// The longest period in seconds, 366 days.
const MAX_PERIOD_S: u64 = 366 * 86_400;
/// How many policies are cached.
const MAX_CACHED: usize = 1024;

/// The software whose commands state the rate. Each has keys of its own, and its own words for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    RedisCell,
    Throttlecrab,
}

impl Dialect {
    /// The policy of all keys: what a key has spent stays its own when it comes with other numbers.
    pub(crate) const fn policy_name(self) -> &'static str {
        match self {
            Self::RedisCell => "CL.THROTTLE",
            Self::Throttlecrab => "THROTTLE",
        }
    }
}

/// A rate as the request states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) dialect: Dialect,
    pub(crate) max_burst: i64,
    pub(crate) count: i64,
    pub(crate) period_s: i64,
}

impl Rate {
    /// A bucket that fills by `count` in a period.
    fn policy(&self) -> Result<Policy, String> {
        let (burst, count, period_s) = match self.dialect {
            Dialect::RedisCell => self.of_redis_cell()?,
            Dialect::Throttlecrab => self.of_throttlecrab()?,
        };
        let quota = Quota::new(count, Duration::from_secs(period_s))
            .and_then(|quota| quota.with_algorithm(Algorithm::TokenBucket).with_burst(burst));
        let named = |error: QuotaError| match error.field() {
            "window" => format!("period: {period_s} is more than 366 days of seconds"),
            _ => error.to_string(),
        };
        quota
            .and_then(|quota| Policy::with_names(self.dialect.policy_name(), [("rate", quota)]))
            .map_err(named)
    }

    /// Capacity, count and period: the capacity is one more than the burst.
    fn of_redis_cell(&self) -> Result<(u64, u64, u64), String> {
        let Self { max_burst, count, period_s, .. } = *self;
        if count == 0 || period_s == 0 {
            return Err("Zero rates are not supported".to_owned());
        }
        let positive = |name: &str, number: i64| {
            u64::try_from(number).map_err(|_| format!("{name}: {number} is less than 0"))
        };
        let burst = positive("max_burst", max_burst)?.saturating_add(1);
        if burst > MAX_LIMIT {
            return Err(format!("max_burst: {max_burst} is more than {}", MAX_LIMIT - 1));
        }
        let (count, period_s) = (positive("count per period", count)?, positive("period", period_s)?);
        if count > MAX_LIMIT {
            return Err(format!("count per period: {count} is not between 1 and 2^48 ({MAX_LIMIT})"));
        }
        Ok((burst, count, period_s))
    }

    /// The same where the burst is the capacity.
    fn of_throttlecrab(&self) -> Result<(u64, u64, u64), String> {
        let within = |name: &str, number: i64, most: u64| {
            let valid = u64::try_from(number).ok().filter(|number| (1..=most).contains(number));
            valid.ok_or_else(|| {
                let why = format!("{name}: {number} is not between 1 and {most}");
                check_failed(&format!("invalid rate limit parameters: {why}"))
            })
        };
        Ok((
            within("max_burst", self.max_burst, MAX_LIMIT)?,
            within("count_per_period", self.count, MAX_LIMIT)?,
            within("period", self.period_s, MAX_PERIOD_S)?,
        ))
    }

    /// The milliseconds in which `tokens` flow in, rounded up.
    fn inflow_ms(&self, tokens: u64) -> u64 {
        let (count, period_ms) = (self.count.unsigned_abs().max(1), self.period_s.unsigned_abs() * 1000);
        let ms = (u128::from(tokens) * u128::from(period_ms)).div_ceil(u128::from(count));
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}

/// Policies that were built, for all connections and listeners: the same one each time, so that a key's record is not written
/// anew because the next request has another copy.
#[derive(Debug, Default)]
pub(crate) struct Throttles(Mutex<HashMap<Rate, Arc<PolicyView>>>);

impl Throttles {
    /// The policy of a rate, or the field that is out of range.
    pub(crate) fn find(&self, rate: Rate) -> Result<Arc<PolicyView>, String> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(named) = cached.get(&rate) {
            return Ok(Arc::clone(named));
        }
        let policy_metrics = PolicyMetrics::of_throttle(rate.dialect);
        let named = Arc::new(PolicyView::new(rate.policy()?, HeaderStyle::None, policy_metrics));
        // A client with ever new numbers takes no memory.
        if cached.len() >= MAX_CACHED {
            cached.clear();
        }
        cached.insert(rate, Arc::clone(&named));
        Ok(named)
    }
}

/// A request of throttlecrab that is within its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttlecrab {
    pub(crate) rate: Rate,
    pub(crate) cost: u64,
}

/// A decision as throttlecrab's server replies it, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ThrottleResponse)]
pub(crate) struct ThrottleReply {
    /// Whether the request may proceed.
    pub(crate) allowed: bool,
    /// `max_burst`.
    pub(crate) limit: i64,
    /// The tokens that are left.
    pub(crate) remaining: i64,
    /// Seconds until the key is forgotten; 0 if nothing is counted.
    pub(crate) reset_after: i64,
    /// Seconds until the request can be repeated, rounded up; 0 if it is allowed.
    pub(crate) retry_after: i64,
}

impl Throttlecrab {
    /// A rate and a quantity, or throttlecrab's error with the field that is out of range.
    pub(crate) fn new(max_burst: i64, count: i64, period_s: i64, quantity: i64) -> Result<Self, String> {
        let rate = Rate { dialect: Dialect::Throttlecrab, max_burst, count, period_s };
        let cost =
            u64::try_from(quantity).map_err(|_| check_failed(&format!("negative quantity: {quantity}")))?;
        if cost > MAX_LIMIT {
            let why = format!("quantity: {quantity} is not between 0 and {MAX_LIMIT}");
            return Err(check_failed(&why));
        }
        Ok(Self { rate, cost })
    }

    pub(crate) fn reply(&self, decision: &Decision) -> ThrottleReply {
        let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
        let retry_after_ms = match decision.retry_after_ms() {
            _ if decision.is_allowed() => 0,
            Some(ms) => ms,
            // Never, for which throttlecrab has no reply: the time in which as many tokens flow in.
            None => reset_after_ms.saturating_add(self.rate.inflow_ms(self.cost.saturating_sub(limit))),
        };
        ThrottleReply {
            allowed: decision.is_allowed(),
            limit: signed(limit),
            remaining: signed(remaining),
            reset_after: signed(self.reset_after_s(limit, reset_after_ms)),
            retry_after: signed(retry_after_ms.div_ceil(1000)),
        }
    }

    /// throttlecrab keeps a key for `max_burst - 2` intervals after the bucket is whole, and cuts off the fraction of a
    /// second. That is the reply, unless the bucket is whole later than that.
    fn reset_after_s(&self, limit: u64, whole_after_ms: u64) -> u64 {
        if whole_after_ms == 0 {
            return 0;
        }
        let kept_ms = whole_after_ms.saturating_add(self.rate.inflow_ms(limit.saturating_sub(2)));
        (kept_ms / 1000).max(whole_after_ms.div_ceil(1000))
    }
}

/// As throttlecrab's server words what its library refuses.
fn check_failed(error: &str) -> String {
    format!("Rate limit check failed: {error}")
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
