//! `DEL`, `EXISTS`, `TTL` and `PTTL` for keys of `CL.THROTTLE`.

use slidegate::{MAX_LIMIT, Verb};
use slidegate_engine::{Rejection, valid_key};

use super::super::rates::{Dialect, Rate};

use super::decision_reply::ReplyFormat;
use super::frame::Arguments;
use super::grammar::{CommandError, Keyword};

/// Rate for commands without one. Its capacity is the maximum, so that it truncates no count.
pub(super) const ANY_RATE: Rate =
    Rate { dialect: Dialect::RedisCell, max_burst: MAX_LIMIT.cast_signed() - 1, count: 1, period_s: 1 };

/// A command about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCommand {
    Del,
    Exists,
    /// `TTL` or `PTTL`: the time to live in this unit.
    Ttl {
        unit_ms: u64,
    },
}

impl KeyCommand {
    /// Parses the name and checks the number of keys; `None` for the name of any other command.
    pub(super) fn parse(name: &Keyword, words: Arguments<'_, '_>) -> Option<Result<Self, CommandError>> {
        let (command, name, max_words) = match name.as_bytes() {
            b"DEL" => (Self::Del, "del", usize::MAX),
            b"EXISTS" => (Self::Exists, "exists", usize::MAX),
            b"TTL" => (Self::Ttl { unit_ms: 1000 }, "ttl", 2),
            b"PTTL" => (Self::Ttl { unit_ms: 1 }, "pttl", 2),
            _ => return None,
        };
        let is_valid = (2..=max_words).contains(&words.len());
        Some(if is_valid { Ok(command) } else { Err(CommandError::Arity(name)) })
    }
}

impl KeyCommand {
    /// Returns the verb that is executed for each key.
    pub(super) fn verb(self) -> Verb {
        match self {
            Self::Del => Verb::Reset,
            Self::Exists | Self::Ttl { .. } => Verb::Peek,
        }
    }
}

/// Calls `add` for each key, or for none if a key is invalid.
pub(super) fn add_operations<'a>(
    command: KeyCommand,
    words: Arguments<'a, '_>,
    mut add: impl FnMut(ReplyFormat, Verb, &'a [u8]),
) -> Result<(), Rejection> {
    words.iter_from(1).try_for_each(|key| valid_key(Some(key)).map(drop))?;
    let last = words.len() - 1;
    for (index, key) in words.iter_from(0).enumerate().skip(1) {
        let is_last_key = index == last;
        match command {
            KeyCommand::Ttl { unit_ms } => add(ReplyFormat::Ttl { unit_ms }, command.verb(), key),
            KeyCommand::Exists => add(ReplyFormat::Exists { is_last_key }, command.verb(), key),
            KeyCommand::Del => add(ReplyFormat::Del { is_last_key }, command.verb(), key),
        }
    }
    Ok(())
}
