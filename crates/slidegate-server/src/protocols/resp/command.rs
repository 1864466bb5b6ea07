//! Commands that the store executes.

use std::sync::Arc;

use slidegate::{MAX_WINDOW_MS, Verb};
use slidegate_engine::{Policies, PolicyView, Rejection, RejectionKind, valid_key};

use super::super::rates::Dialect;
use super::check::{self, CheckArguments};
use super::decision_reply::ReplyFormat;
use super::frame::Arguments;
use super::grammar::{CommandError, Keyword, PolicySelector};
use super::throttle::{RedisCellRequest, parse_throttlecrab};

/// Command for one key, with the format of its reply.
pub(super) struct StoreCommand<'a> {
    pub(super) format: ReplyFormat,
    pub(super) verb: Verb,
    pub(super) policy: PolicySelector<'a>,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

/// Parses a command for the store; `None` for the name of any other command.
#[inline]
pub(super) fn parse<'a>(
    name: &Keyword,
    words: Arguments<'a, '_>,
) -> Option<Result<StoreCommand<'a>, CommandError>> {
    let (verb, name) = match name.as_bytes() {
        b"SLIDEGATE.BLOCK" => return Some(block(words)),
        b"CL.THROTTLE" => return Some(redis_cell(words)),
        b"THROTTLE" => return Some(throttlecrab(words)),
        b"SLIDEGATE.CHECK" => (Verb::Check, "slidegate.check"),
        b"SLIDEGATE.PEEK" => (Verb::Peek, "slidegate.peek"),
        b"SLIDEGATE.INSPECT" => return Some(inspect(words)),
        b"SLIDEGATE.CHARGE" => (Verb::Charge, "slidegate.charge"),
        b"SLIDEGATE.REFUND" => (Verb::Refund, "slidegate.refund"),
        b"SLIDEGATE.RESET" => (Verb::Reset, "slidegate.reset"),
        _ => return None,
    };
    Some(check(verb, name, words))
}

#[inline]
fn redis_cell<'a>(words: Arguments<'a, '_>) -> Result<StoreCommand<'a>, CommandError> {
    let request = RedisCellRequest::parse(words).map_err(CommandError::RedisCell)?;
    Ok(StoreCommand {
        format: ReplyFormat::RedisCell,
        verb: request.verb(),
        policy: PolicySelector::Rate(request.rate),
        key: valid_key(Some(request.key))?,
        cost: request.cost(),
    })
}

fn throttlecrab<'a>(words: Arguments<'a, '_>) -> Result<StoreCommand<'a>, CommandError> {
    if !(5..=6).contains(&words.len()) {
        return Err(CommandError::Arity("throttle"));
    }
    let request = parse_throttlecrab(words)
        .map_err(|message| CommandError::invalid_rate(Dialect::Throttlecrab, message))?;
    Ok(StoreCommand {
        format: ReplyFormat::Throttlecrab(request),
        verb: Verb::Check,
        policy: PolicySelector::Rate(request.rate),
        key: valid_key(Some(words.word(1)))?,
        cost: request.cost,
    })
}

#[inline]
fn check<'a>(
    verb: Verb,
    name: &'static str,
    words: Arguments<'a, '_>,
) -> Result<StoreCommand<'a>, CommandError> {
    let CheckArguments { policy, key, cost } = check::parse(words, name)?;
    let format = if verb == Verb::Reset { ReplyFormat::Reset } else { ReplyFormat::Check };
    Ok(StoreCommand { format, verb, policy, key: valid_key(Some(key))?, cost })
}

/// Parses a peek whose reply includes the parts of the count.
fn inspect<'a>(words: Arguments<'a, '_>) -> Result<StoreCommand<'a>, CommandError> {
    let command = check(Verb::Peek, "slidegate.inspect", words)?;
    Ok(StoreCommand { format: ReplyFormat::Inspect, ..command })
}

/// Parses `SLIDEGATE.BLOCK policy key ms`.
fn block<'a>(words: Arguments<'a, '_>) -> Result<StoreCommand<'a>, CommandError> {
    if words.len() != 4 {
        return Err(CommandError::Arity("slidegate.block"));
    }
    let ms = check::parse_integer("ms", words.word(3), MAX_WINDOW_MS)?;
    let policy = PolicySelector::Configured { name: words.word(1), tier: None };
    Ok(StoreCommand {
        format: ReplyFormat::Check,
        verb: Verb::Block,
        policy,
        key: valid_key(Some(words.word(2)))?,
        cost: ms,
    })
}

/// Returns a policy of the configuration. If it is unknown and the key is `QUOTAS`, the error explains the form of the
/// command with quotas.
pub(super) fn find_policy<'p>(
    policies: &'p Policies,
    name: &[u8],
    tier: Option<&[u8]>,
    key: &[u8],
) -> Result<&'p Arc<PolicyView>, Rejection> {
    let tier = tier.map(String::from_utf8_lossy);
    let found = policies.find(&String::from_utf8_lossy(name), tier.as_deref(), str::from_utf8(key).ok());
    found.map_err(|rejection| match rejection.kind {
        RejectionKind::UnknownPolicy if key.eq_ignore_ascii_case(b"QUOTAS") => {
            let detail = format!(
                "{}; quotas of the request follow QUOTAS as LIMIT/WINDOW, such as 100/1m",
                rejection.detail
            );
            Rejection { detail, ..rejection }
        }
        _ => rejection,
    })
}
