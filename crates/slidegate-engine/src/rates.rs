//! Policies of rates that come with requests, as redis-cell and throttlecrab state them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use slidegate::tower::HeaderStyle;
use slidegate::{Algorithm, MAX_LIMIT, Policy, Quota, QuotaError};

use crate::policies::PolicyView;
use crate::policy_metrics::PolicyMetrics;

/// Longest period: 366 days.
const MAX_PERIOD_S: u64 = 366 * 86_400;
/// Maximum number of cached policies.
const MAX_CACHED_POLICIES: usize = 1024;

/// Software whose commands state the rate. Each has separate keys and its own error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    RedisCell,
    Throttlecrab,
}

impl Dialect {
    /// Returns the policy name for all rates, so that the count of a key carries over to another rate.
    pub const fn policy_name(self) -> &'static str {
        match self {
            Self::RedisCell => "CL.THROTTLE",
            Self::Throttlecrab => "THROTTLE",
        }
    }

    fn metrics(self) -> Arc<PolicyMetrics> {
        Arc::clone(match self {
            Self::RedisCell => &REDIS_CELL_METRICS,
            Self::Throttlecrab => &THROTTLECRAB_METRICS,
        })
    }
}

/// Metrics of all rates that come with `CL.THROTTLE`.
static REDIS_CELL_METRICS: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| Arc::new(PolicyMetrics::for_rates(Dialect::RedisCell.policy_name())));
/// Metrics of all rates that come with `THROTTLE` or `POST /throttle`.
static THROTTLECRAB_METRICS: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| Arc::new(PolicyMetrics::for_rates(Dialect::Throttlecrab.policy_name())));

/// Rate of a request, before validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub dialect: Dialect,
    pub max_burst: i64,
    pub count: i64,
    pub period_s: i64,
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
    pub fn refill_ms(&self, tokens: u64) -> u64 {
        let (count, period_ms) = (self.count.unsigned_abs().max(1), self.period_s.unsigned_abs() * 1000);
        let ms = (u128::from(tokens) * u128::from(period_ms)).div_ceil(u128::from(count));
        u64::try_from(ms).unwrap_or(u64::MAX)
    }
}

/// Cache of the policies for rates, which all listeners share. Equal rates get the same policy object: the memory store would
/// rewrite a key's record for another one.
#[derive(Debug, Default)]
pub struct RatePolicies(Mutex<HashMap<Rate, Arc<PolicyView>>>);

impl RatePolicies {
    /// Returns the policy of a rate, or a message about the field that is out of range.
    pub fn find(&self, rate: Rate) -> Result<Arc<PolicyView>, String> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = cached.get(&rate) {
            return Ok(Arc::clone(policy));
        }
        let policy_metrics = rate.dialect.metrics();
        let policy = Arc::new(PolicyView::new(rate.policy()?, HeaderStyle::None, policy_metrics));
        // Bounds the memory when clients send many different rates.
        if cached.len() >= MAX_CACHED_POLICIES {
            cached.clear();
        }
        cached.insert(rate, Arc::clone(&policy));
        Ok(policy)
    }
}

/// Formats an error of throttlecrab's library as its server does.
pub fn throttlecrab_error(error: &str) -> String {
    format!("Rate limit check failed: {error}")
}
