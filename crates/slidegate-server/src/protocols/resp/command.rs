//! What a command asks of the store, if anything.

use std::sync::Arc;

use slidegate::{MAX_WINDOW_MS, Verb};

use super::check;
use super::decided::Shape;
use super::frame::Arguments;
use super::throttle::{Throttle, throttlecrab};
use crate::app::operation;
use crate::policies::{Policies, PolicyView};
use crate::request::{Rejection, RejectionKind};
use crate::throttle::{Dialect, Rate};

/// No name is longer.
const MAX_NAME_BYTES: usize = 24;

/// A command's name in capitals, which is how it is compared.
pub(super) struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    length: usize,
}

impl Name {
    /// Of a word that is too long to be any name, nothing.
    #[inline]
    pub(super) fn of(word: &[u8]) -> Self {
        let mut bytes = [0; MAX_NAME_BYTES];
        let length = if word.len() <= MAX_NAME_BYTES { word.len() } else { 0 };
        bytes[..length].copy_from_slice(&word[..length]);
        // All of it, which is faster than part of it.
        bytes.make_ascii_uppercase();
        Self { bytes, length }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What is to be decided.
pub(super) struct Wanted<'a> {
    pub(super) shape: Shape,
    pub(super) verb: Verb,
    pub(super) under: Under<'a>,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

/// Under which policy.
pub(super) enum Under<'a> {
    /// One that the command brings along.
    Rate(Rate),
    /// One of the file, in a tier if one is named.
    Name { name: &'a [u8], tier: Option<&'a [u8]> },
    /// That of these quotas.
    Quotas(Vec<&'a [u8]>),
}

/// Why a command is not executed.
pub(super) enum Wrong {
    /// In the words of redis-cell.
    Cell(String),
    /// Not called like this.
    Arity(&'static str),
    /// In our own.
    Refused(Rejection),
}

impl Wrong {
    /// A rate that is out of range, in the words of the software that the command is from.
    pub(super) fn rate(dialect: Dialect, why: String) -> Self {
        match dialect {
            Dialect::RedisCell => Self::Cell(why),
            Dialect::Throttlecrab => Self::Refused(Rejection::new(RejectionKind::OutOfRange, why)),
        }
    }
}

impl From<Rejection> for Wrong {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// What the command wants to have decided; `None` if it is one of the others.
#[inline]
pub(super) fn wanted<'a>(name: &Name, words: Arguments<'a, '_>) -> Option<Result<Wanted<'a>, Wrong>> {
    let (verb, name) = match name.as_bytes() {
        b"SLIDEGATE.BLOCK" => return Some(block(words)),
        b"CL.THROTTLE" => return Some(redis_cell(words)),
        b"THROTTLE" => return Some(of_throttlecrab(words)),
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
fn redis_cell<'a>(words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    let throttle = Throttle::read(words).map_err(Wrong::Cell)?;
    Ok(Wanted {
        shape: Shape::RedisCell,
        verb: throttle.verb(),
        under: Under::Rate(throttle.rate),
        key: operation::key(throttle.key)?,
        cost: throttle.cost(),
    })
}

fn of_throttlecrab<'a>(words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    if !(5..=6).contains(&words.len()) {
        return Err(Wrong::Arity("throttle"));
    }
    let request = throttlecrab(words).map_err(|why| Wrong::rate(Dialect::Throttlecrab, why))?;
    Ok(Wanted {
        shape: Shape::Throttlecrab(request),
        verb: Verb::Check,
        under: Under::Rate(request.rate),
        key: operation::key(words.word(1))?,
        cost: request.cost,
    })
}

#[inline]
fn check<'a>(verb: Verb, name: &'static str, words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    let check::CheckArguments { under, key, cost } = check::read(words, name)?;
    let shape = if verb == Verb::Reset { Shape::Reset } else { Shape::Check };
    Ok(Wanted { shape, verb, under, key: operation::key(key)?, cost })
}

/// A peek whose reply says what the count is made of.
fn inspect<'a>(words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    let wanted = check(Verb::Peek, "slidegate.inspect", words)?;
    Ok(Wanted { shape: Shape::Parts, ..wanted })
}

/// `SLIDEGATE.BLOCK policy key ms`.
fn block<'a>(words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    if words.len() != 4 {
        return Err(Wrong::Arity("slidegate.block"));
    }
    let ms = check::whole("ms", words.word(3), MAX_WINDOW_MS)?;
    let under = Under::Name { name: words.word(1), tier: None };
    Ok(Wanted {
        shape: Shape::Check,
        verb: Verb::Block,
        under,
        key: operation::key(words.word(2))?,
        cost: ms,
    })
}

/// The policy of a command. Where the key is a word of the grammar, the form without a policy may have been meant.
pub(super) fn find<'p>(
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
