//! Decisions, as they are told.

use slidegate::{Decision, QuotaReport};

use super::reply;

/// Which of the two commands is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Limited, limit, remaining, seconds until a retry, seconds until it is whole.
    Throttle,
    /// Allowed, limit, remaining, milliseconds until a retry, milliseconds until it is whole.
    Check,
}

#[inline]
pub(super) fn write(out: &mut Vec<u8>, shape: Shape, decision: &Decision) {
    let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
    let (is_one, unit_ms) = match shape {
        Shape::Throttle => (!decision.is_allowed(), 1000),
        Shape::Check => (decision.is_allowed(), 1),
    };
    // Rounded up: a fraction earlier is too early.
    let retry_after = decision.retry_after_ms().map_or(-1, |ms| signed(ms.div_ceil(unit_ms)));
    let reset_after = signed(reset_after_ms.div_ceil(unit_ms));
    reply::five(out, [i64::from(is_one), signed(limit), signed(remaining), retry_after, reset_after]);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
