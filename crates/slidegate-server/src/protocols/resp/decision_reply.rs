//! Replies for decisions.

use slidegate::{Decision, QuotaReport};
use slidegate_engine::Rejection;

use super::key_reply::{self, KeyCount};
use super::reply;
use crate::protocols::throttlecrab::{ThrottleReply, ThrottlecrabRequest};

/// Format of the reply for a decision.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplyFormat {
    /// Limited, limit, remaining, seconds until a retry, seconds until all units are available.
    RedisCell,
    /// Allowed, limit, remaining, seconds until all units are available, seconds until a retry.
    Throttlecrab(ThrottlecrabRequest),
    /// Allowed, limit, remaining, milliseconds until a retry, milliseconds until all units are available.
    Check,
    /// The integers of a check, used units, previous count, current count, age of the oldest entry in milliseconds.
    Inspect,
    /// The integers of a check, with whether the key existed instead of allowed.
    Reset,
    /// The time to live in this unit.
    Ttl { unit_ms: u64 },
    /// The number of existing keys, after the command's last key.
    Exists { is_last_key: bool },
    /// The number of deleted keys, after the command's last key.
    Del { is_last_key: bool },
}

/// Writes the reply for a decision. A command with several keys has one reply, which is written for its last key.
#[inline]
pub(super) fn write(
    out: &mut Vec<u8>,
    format: ReplyFormat,
    decision: Result<Decision, Rejection>,
    key_count: &mut KeyCount,
) -> Result<(), Rejection> {
    let is_last_key = match format {
        ReplyFormat::RedisCell => {
            seconds(out, &decision?);
            return Ok(());
        }
        ReplyFormat::Check => {
            let decision = decision?;
            milliseconds(out, decision.is_allowed(), &decision);
            return Ok(());
        }
        ReplyFormat::Reset => {
            let decision = decision?;
            milliseconds(out, decision.is_found(), &decision);
            return Ok(());
        }
        ReplyFormat::Inspect => {
            inspect(out, &decision?);
            return Ok(());
        }
        ReplyFormat::Throttlecrab(request) => {
            throttlecrab(out, request.reply(&decision?));
            return Ok(());
        }
        ReplyFormat::Ttl { unit_ms } => {
            reply::integer(out, key_reply::time_to_live(&decision?, unit_ms)?);
            return Ok(());
        }
        ReplyFormat::Exists { is_last_key } => {
            key_count.add(decision.and_then(|decision| key_reply::exists(&decision)));
            is_last_key
        }
        ReplyFormat::Del { is_last_key } => {
            key_count.add(decision.map(|decision| decision.is_found()));
            is_last_key
        }
    };
    if is_last_key {
        reply::integer(out, key_count.take()?);
    }
    Ok(())
}

/// Writes times in seconds, rounded up, because a retry must not come early.
#[inline]
fn seconds(out: &mut Vec<u8>, decision: &Decision) {
    five_integers(out, !decision.is_allowed(), decision, 1000);
}

#[inline]
fn milliseconds(out: &mut Vec<u8>, first: bool, decision: &Decision) {
    five_integers(out, first, decision, 1);
}

#[inline]
fn five_integers(out: &mut Vec<u8>, first: bool, decision: &Decision, unit_ms: u64) {
    let QuotaReport { limit, remaining, reset_after_ms, .. } = decision.tightest();
    let retry_after = decision.retry_after_ms().map_or(-1, |ms| signed(ms.div_ceil(unit_ms)));
    let reset_after = signed(reset_after_ms.div_ceil(unit_ms));
    reply::five_integers(out, [i64::from(first), signed(limit), signed(remaining), retry_after, reset_after]);
}

fn inspect(out: &mut Vec<u8>, decision: &Decision) {
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
    reply::five_integers(out, [i64::from(allowed), limit, remaining, reset_after, retry_after]);
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
