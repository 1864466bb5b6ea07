//! The arguments of `SLIDEGATE.CHECK` and related commands:
//!
//! ```text
//! policy key [cost] [TIER tier]
//! key QUOTAS quota [quota …] [COST cost]
//! ```
//!
//! A key may be any text, so no key may be mistaken for a keyword. `QUOTAS` as the second argument is a key of the first form if
//! nothing, an integer or `TIER` follows, because no quota looks like these.

use slidegate::MAX_LIMIT;
use slidegate_engine::{Rejection, RejectionKind};

use super::frame::Arguments;
use super::grammar::{CommandError, PolicySelector};

/// Arguments in either form.
pub(super) struct CheckArguments<'a> {
    pub(super) policy: PolicySelector<'a>,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

/// Parses the arguments of the command `name`.
#[inline]
pub(super) fn parse<'a>(
    words: Arguments<'a, '_>,
    name: &'static str,
) -> Result<CheckArguments<'a>, CommandError> {
    match words.len() {
        0..=2 => Err(CommandError::Arity(name)),
        3 => Ok(CheckArguments::configured(words, 1, None)),
        4 if is_integer(words.word(3)) => {
            Ok(CheckArguments::configured(words, parse_cost(words.word(3))?, None))
        }
        _ if is_keyword(words.word(2), b"QUOTAS") && !is_policy_option(words.word(3)) => {
            parse_quotas_form(words)
        }
        _ => parse_policy_form(words, name),
    }
}

impl<'a> CheckArguments<'a> {
    fn configured(words: Arguments<'a, '_>, cost: u64, tier: Option<&'a [u8]>) -> Self {
        Self { policy: PolicySelector::Configured { name: words.word(1), tier }, key: words.word(2), cost }
    }
}

/// Returns whether a third argument belongs to the form with a policy.
fn is_policy_option(word: &[u8]) -> bool {
    is_integer(word) || is_keyword(word, b"TIER")
}

fn is_integer(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

fn is_keyword(word: &[u8], keyword: &[u8]) -> bool {
    word.eq_ignore_ascii_case(keyword)
}

/// Parses `policy key [cost] [TIER tier]`, with at least one of the options.
fn parse_policy_form<'a>(
    words: Arguments<'a, '_>,
    name: &'static str,
) -> Result<CheckArguments<'a>, CommandError> {
    let has_cost = !is_keyword(words.word(3), b"TIER");
    let cost = if has_cost { parse_cost(words.word(3))? } else { 1 };
    let next = 3 + usize::from(has_cost);
    let tier = match words.len() - next {
        0 => None,
        2 if is_keyword(words.word(next), b"TIER") => Some(words.word(next + 1)),
        2 => return Err(unexpected(words.word(next), "unexpected argument; TIER can follow here")),
        _ => return Err(CommandError::Arity(name)),
    };
    Ok(CheckArguments::configured(words, cost, tier))
}

/// Parses `key QUOTAS quota [quota …] [COST cost]`.
fn parse_quotas_form<'a>(words: Arguments<'a, '_>) -> Result<CheckArguments<'a>, CommandError> {
    let is_quota = |word: &&[u8]| !is_keyword(word, b"COST") && !is_keyword(word, b"TIER");
    let quotas: Vec<&[u8]> = words.iter_from(3).take_while(is_quota).collect();
    if quotas.is_empty() {
        return Err(Rejection::out_of_range("quotas", "missing after QUOTAS").into());
    }
    let next = 3 + quotas.len();
    let cost = match words.len() - next {
        0 => 1,
        _ if is_keyword(words.word(next), b"TIER") => {
            return Err(Rejection::out_of_range("tier", "is only valid with policy, not with quotas").into());
        }
        1 => return Err(Rejection::out_of_range("cost", "missing after COST").into()),
        2 => parse_cost(words.word(next + 1))?,
        _ => return Err(unexpected(words.word(next + 2), "unexpected argument after the cost")),
    };
    Ok(CheckArguments { policy: PolicySelector::Quotas(quotas), key: words.word(1), cost })
}

fn unexpected(word: &[u8], message: &str) -> CommandError {
    let word = String::from_utf8_lossy(word);
    Rejection::new(RejectionKind::OutOfRange, format!("{word:?}: {message}")).into()
}

fn parse_cost(word: &[u8]) -> Result<u64, Rejection> {
    parse_integer("cost", word, MAX_LIMIT)
}

/// Parses an integer from 0 to `max`.
pub(super) fn parse_integer(field: &str, word: &[u8], max: u64) -> Result<u64, Rejection> {
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number <= max).ok_or_else(|| {
        let word = String::from_utf8_lossy(word);
        Rejection::out_of_range(field, format!("{word:?} is not a whole number between 0 and {max}"))
    })
}
