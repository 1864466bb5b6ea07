//! `DEL`, `EXISTS`, `TTL` and `PTTL` for keys of `CL.THROTTLE`.

use slidegate::{Decision, MAX_LIMIT, Source, Verb};

use super::command::{Name, Wrong};
use super::decided::Shape;
use super::frame::Arguments;
use crate::app::operation;
use crate::request::{Rejection, RejectionKind};
use crate::throttle::{Dialect, Rate};

/// The reply for a key that is not there.
const ABSENT: i64 = -2;

/// A rate for commands that name none. Under it no count is cut off.
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
    /// The command of this name, if there is one and it has as many keys as it takes.
    pub(super) fn read(name: &Name, words: Arguments<'_, '_>) -> Option<Result<Self, Wrong>> {
        let (command, name, most) = match name.as_bytes() {
            b"DEL" => (Self::Del, "del", usize::MAX),
            b"EXISTS" => (Self::Exists, "exists", usize::MAX),
            b"TTL" => (Self::Ttl { unit_ms: 1000 }, "ttl", 2),
            b"PTTL" => (Self::Ttl { unit_ms: 1 }, "pttl", 2),
            _ => return None,
        };
        Some(if (2..=most).contains(&words.len()) { Ok(command) } else { Err(Wrong::Arity(name)) })
    }
}

impl KeyCommand {
    /// The verb that is executed for each key.
    pub(super) fn verb(self) -> Verb {
        match self {
            Self::Del => Verb::Reset,
            Self::Exists | Self::Ttl { .. } => Verb::Peek,
        }
    }
}

/// What a command asks of the store, if all of its keys are valid.
pub(super) fn plan<'a>(
    command: KeyCommand,
    words: Arguments<'a, '_>,
    mut add: impl FnMut(Shape, Verb, &'a [u8]),
) -> Result<(), Rejection> {
    words.from(1).try_for_each(|key| operation::key(key).map(drop))?;
    let last = words.len() - 1;
    for (place, key) in words.from(0).enumerate().skip(1) {
        let is_last = place == last;
        match command {
            KeyCommand::Ttl { unit_ms } => add(Shape::Life { unit_ms }, command.verb(), key),
            KeyCommand::Exists => add(Shape::Found { is_last }, command.verb(), key),
            KeyCommand::Del => add(Shape::Deleted { is_last }, command.verb(), key),
        }
    }
    Ok(())
}

/// The keys of a command that were found so far, or why it cannot be said.
#[derive(Debug, Default)]
pub(super) struct DecisionCounts {
    found: i64,
    rejection: Option<Rejection>,
}

impl DecisionCounts {
    /// Counts one key.
    pub(super) fn add(&mut self, found: Result<bool, Rejection>) {
        match found {
            Ok(is_found) => self.found += i64::from(is_found),
            Err(rejection) => drop(self.rejection.get_or_insert(rejection)),
        }
    }

    /// The reply for all keys of the command; the next one begins anew.
    pub(super) fn take(&mut self) -> Result<i64, Rejection> {
        let Self { found, rejection } = std::mem::take(self);
        rejection.map_or(Ok(found), Err)
    }
}

/// Whether something of a key is counted, by a peek.
pub(super) fn is_found(decision: &Decision) -> Result<bool, Rejection> {
    life_ms(decision).map(|ms| ms > 0)
}

/// The milliseconds for which something of a key is counted, by a peek. Without the store nothing is known of it.
fn life_ms(decision: &Decision) -> Result<u64, Rejection> {
    match decision.source() {
        Source::Fallback(reason) => {
            let kind = RejectionKind::StoreUnavailable { is_transient: true, may_have_counted: false };
            Err(Rejection::new(kind, format!("the store has not answered ({})", reason.name())))
        }
        _ => Ok(decision.expires_after_ms()),
    }
}

/// The reply of `TTL`, rounded up.
pub(super) fn time_to_live(decision: &Decision, unit_ms: u64) -> Result<i64, Rejection> {
    let units = life_ms(decision)?.div_ceil(unit_ms);
    Ok(if units == 0 { ABSENT } else { i64::try_from(units).unwrap_or(i64::MAX) })
}
