//! Requests and replies of throttlecrab: `THROTTLE` and `POST /throttle`.

use serde::Serialize;
use slidegate::{Decision, MAX_LIMIT, QuotaReport};
use utoipa::ToSchema;

use super::rates::{Dialect, Rate, throttlecrab_error};

/// Request of throttlecrab, without its key. [`slidegate_engine::RatePolicies::find`] validates the rate.
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
        let cost = u64::try_from(quantity)
            .map_err(|_| throttlecrab_error(&format!("negative quantity: {quantity}")))?;
        if cost > MAX_LIMIT {
            let detail = format!("quantity: {quantity} is not between 0 and {MAX_LIMIT}");
            return Err(throttlecrab_error(&detail));
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

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
