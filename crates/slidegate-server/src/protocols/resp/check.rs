//! The arguments of `SLIDEGATE.CHECK` and its relatives:
//!
//! ```text
//! policy key [cost] [TIER tier]
//! key QUOTAS quota [quota …] [COST cost]
//! ```
//!
//! Keys may be anything that users are called, so none may be taken for a word of the grammar. `QUOTAS` as the second argument
//! is the key of the first form if a whole number, `TIER` or nothing follows, none of which is a quota.

use slidegate::MAX_LIMIT;

use super::command::{Under, Wrong};
use super::frame::Arguments;
use crate::request::{Rejection, RejectionKind};

/// The arguments of a command, in either form.
pub(super) struct CheckArguments<'a> {
    pub(super) under: Under<'a>,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

/// Reads what follows the name of the command.
#[inline]
pub(super) fn read<'a>(words: Arguments<'a, '_>, name: &'static str) -> Result<CheckArguments<'a>, Wrong> {
    match words.len() {
        0..=2 => Err(Wrong::Arity(name)),
        3 => Ok(CheckArguments::named(words, 1, None)),
        4 if is_whole(words.word(3)) => Ok(CheckArguments::named(words, cost(words.word(3))?, None)),
        _ if is_keyword(words.word(2), b"QUOTAS") && !is_of_policy(words.word(3)) => of_quotas(words),
        _ => of_policy(words, name),
    }
}

impl<'a> CheckArguments<'a> {
    fn named(words: Arguments<'a, '_>, cost: u64, tier: Option<&'a [u8]>) -> Self {
        Self { under: Under::Name { name: words.word(1), tier }, key: words.word(2), cost }
    }
}

/// Whether what follows the second argument belongs to the first form.
fn is_of_policy(word: &[u8]) -> bool {
    is_whole(word) || is_keyword(word, b"TIER")
}

fn is_whole(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

fn is_keyword(word: &[u8], keyword: &[u8]) -> bool {
    word.eq_ignore_ascii_case(keyword)
}

/// `policy key [cost] [TIER tier]`, with at least one of the options.
fn of_policy<'a>(words: Arguments<'a, '_>, name: &'static str) -> Result<CheckArguments<'a>, Wrong> {
    let has_cost = !is_keyword(words.word(3), b"TIER");
    let cost = if has_cost { cost(words.word(3))? } else { 1 };
    let rest = 3 + usize::from(has_cost);
    let tier = match words.len() - rest {
        0 => None,
        2 if is_keyword(words.word(rest), b"TIER") => Some(words.word(rest + 1)),
        2 => return Err(unexpected(words.word(rest), "TIER is expected here")),
        _ => return Err(Wrong::Arity(name)),
    };
    Ok(CheckArguments::named(words, cost, tier))
}

/// `key QUOTAS quota [quota …] [COST cost]`.
fn of_quotas<'a>(words: Arguments<'a, '_>) -> Result<CheckArguments<'a>, Wrong> {
    let is_end = |word: &&[u8]| !is_keyword(word, b"COST") && !is_keyword(word, b"TIER");
    let texts: Vec<&[u8]> = words.from(3).take_while(is_end).collect();
    if texts.is_empty() {
        return Err(Rejection::out_of_range("quotas", "none is given").into());
    }
    let rest = 3 + texts.len();
    let cost = match words.len() - rest {
        0 => 1,
        _ if is_keyword(words.word(rest), b"TIER") => {
            return Err(Rejection::out_of_range("tier", "goes with policy, not with quotas").into());
        }
        1 => return Err(Rejection::out_of_range("cost", "none is given").into()),
        2 => cost(words.word(rest + 1))?,
        _ => return Err(unexpected(words.word(rest + 2), "nothing is expected behind the cost")),
    };
    Ok(CheckArguments { under: Under::Quotas(texts), key: words.word(1), cost })
}

fn unexpected(word: &[u8], why: &str) -> Wrong {
    let shown = String::from_utf8_lossy(word);
    Rejection::new(RejectionKind::OutOfRange, format!("{shown:?}: {why}")).into()
}

fn cost(word: &[u8]) -> Result<u64, Rejection> {
    whole("cost", word, MAX_LIMIT)
}

/// A whole number from 0 to `most`.
pub(super) fn whole(field: &str, word: &[u8], most: u64) -> Result<u64, Rejection> {
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number <= most).ok_or_else(|| {
        let shown = String::from_utf8_lossy(word);
        Rejection::out_of_range(field, format!("{shown:?} is not a whole number between 0 and {most}"))
    })
}
