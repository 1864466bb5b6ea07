//! Decisions, as they are told.

use slidegate::{Decision, QuotaReport};

use super::keys::{self, DecisionCounts};
use super::reply;
use crate::request::Rejection;
use crate::throttle::{ThrottleReply, Throttlecrab};

/// The reply that a decision is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Limited, limit, remaining, seconds until a retry, seconds until it is whole.
    RedisCell,
    /// Allowed, limit, remaining, seconds until it is whole, seconds until a retry.
    Throttlecrab(Throttlecrab),
    /// Allowed, limit, remaining, milliseconds until a retry, milliseconds until it is whole.
    Check,
    /// As of a check, and the previous and the current count and the milliseconds since the oldest entry.
    Parts,
    /// Whether the key was found, and the rest as of a check.
    Reset,
    /// The time to live in this unit.
    Life { unit_ms: u64 },
    /// How many of the command's keys were found, behind the last one.
    Found { is_last: bool },
    /// How many of them were deleted.
    Deleted { is_last: bool },
}

/// Writes the reply, if this was the last decision that it takes.
#[inline]
pub(super) fn write(
    out: &mut Vec<u8>,
    shape: Shape,
    decision: Result<Decision, Rejection>,
    tally: &mut DecisionCounts,
) -> Result<(), Rejection> {
    let is_last = match shape {
        Shape::RedisCell => {
            seconds(out, &decision?);
            return Ok(());
        }
        Shape::Check => {
            let decision = decision?;
            milliseconds(out, decision.is_allowed(), &decision);
            return Ok(());
        }
        Shape::Reset => {
            let decision = decision?;
            milliseconds(out, decision.is_found(), &decision);
            return Ok(());
        }
        Shape::Parts => {
            parts(out, &decision?);
            return Ok(());
        }
        Shape::Throttlecrab(request) => {
            throttlecrab(out, request.reply(&decision?));
            return Ok(());
        }
        Shape::Life { unit_ms } => {
            reply::integer(out, keys::time_to_live(&decision?, unit_ms)?);
            return Ok(());
        }
        Shape::Found { is_last } => {
            tally.add(decision.and_then(|decision| keys::is_found(&decision)));
            is_last
        }
        Shape::Deleted { is_last } => {
            tally.add(decision.map(|decision| decision.is_found()));
            is_last
        }
    };
    if is_last {
        reply::integer(out, tally.take()?);
    }
    Ok(())
}

/// Rounded up: a fraction earlier is too early.
#[inline]
fn seconds(out: &mut Vec<u8>, decision: &Decision) {
    five(out, !decision.is_allowed(), decision, 1000);
}

#[inline]
fn milliseconds(out: &mut Vec<u8>, is_one: bool, decision: &Decision) {
    five(out, is_one, decision, 1);
}

#[inline]
fn five(out: &mut Vec<u8>, is_one: bool, decision: &Decision, unit_ms: u64) {
    let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
    let retry_after = decision.retry_after_ms().map_or(-1, |ms| signed(ms.div_ceil(unit_ms)));
    let reset_after = signed(reset_after_ms.div_ceil(unit_ms));
    reply::five(out, [i64::from(is_one), signed(limit), signed(remaining), retry_after, reset_after]);
}

fn parts(out: &mut Vec<u8>, decision: &Decision) {
    let QuotaReport { limit, used, remaining, reset_after_ms, previous, current, oldest_age_ms, .. } =
        decision.tightest();
    let retry_after = decision.retry_after_ms().map_or(-1, signed);
    out.extend_from_slice(b"*9\r\n");
    for number in [
        i64::from(decision.is_allowed()),
        signed(limit),
        signed(remaining),
        retry_after,
        signed(reset_after_ms),
        signed(used),
        signed(previous),
        signed(current),
        oldest_age_ms.map_or(-1, signed),
    ] {
        reply::integer(out, number);
    }
}

fn throttlecrab(out: &mut Vec<u8>, reply: ThrottleReply) {
    let ThrottleReply { allowed, limit, remaining, reset_after, retry_after } = reply;
    reply::five(out, [i64::from(allowed), limit, remaining, reset_after, retry_after]);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
