//! What a command asks of the store, if anything.

use slidegate::{MAX_LIMIT, Verb};

use super::decided::Shape;
use super::frame::Arguments;
use super::throttle::{Rate, Throttle};
use crate::app::asked;
use crate::request::Refusal;

/// No name is longer.
const MOST_NAME_BYTES: usize = 24;

/// A command's name in capitals, which is how it is compared.
pub(super) struct Name {
    bytes: [u8; MOST_NAME_BYTES],
    length: usize,
}

impl Name {
    /// Of a word that is too long to be any name, nothing.
    #[inline]
    pub(super) fn of(word: &[u8]) -> Self {
        let mut bytes = [0; MOST_NAME_BYTES];
        let length = if word.len() <= MOST_NAME_BYTES { word.len() } else { 0 };
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
    /// One of the file.
    Name(&'a [u8]),
}

/// Why a command is not executed.
pub(super) enum Wrong {
    /// In the words of redis-cell.
    Cell(String),
    /// Not called like this.
    Arity(&'static str),
    /// In our own.
    Refused(Refusal),
}

impl From<Refusal> for Wrong {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What the command wants to have decided; `None` if it is one of the others.
#[inline]
pub(super) fn wanted<'a>(name: &Name, words: Arguments<'a, '_>) -> Option<Result<Wanted<'a>, Wrong>> {
    let (verb, name) = match name.as_bytes() {
        b"CL.THROTTLE" => return Some(throttle(words)),
        b"SLIDEGATE.CHECK" => (Verb::Check, "slidegate.check"),
        b"SLIDEGATE.PEEK" => (Verb::Peek, "slidegate.peek"),
        b"SLIDEGATE.REFUND" => (Verb::Refund, "slidegate.refund"),
        b"SLIDEGATE.RESET" => (Verb::Reset, "slidegate.reset"),
        _ => return None,
    };
    Some(check(verb, name, words))
}

#[inline]
fn throttle<'a>(words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    let throttle = Throttle::read(words).map_err(Wrong::Cell)?;
    Ok(Wanted {
        shape: Shape::Throttle,
        verb: throttle.verb(),
        under: Under::Rate(throttle.rate),
        key: asked::key(throttle.key)?,
        cost: throttle.cost(),
    })
}

/// `SLIDEGATE.CHECK policy key [cost]`.
#[inline]
fn check<'a>(verb: Verb, name: &'static str, words: Arguments<'a, '_>) -> Result<Wanted<'a>, Wrong> {
    if !(3..=4).contains(&words.len()) {
        return Err(Wrong::Arity(name));
    }
    let cost = if words.len() == 4 { cost(words.word(3))? } else { 1 };
    let under = Under::Name(words.word(1));
    Ok(Wanted { shape: Shape::Check, verb, under, key: asked::key(words.word(2))?, cost })
}

fn cost(word: &[u8]) -> Result<u64, Refusal> {
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.filter(|cost| *cost <= MAX_LIMIT).ok_or_else(|| {
        let shown = String::from_utf8_lossy(word);
        Refusal::out_of_range("cost", format!("{shown:?} is not a whole number between 0 and {MAX_LIMIT}"))
    })
}
