//! `CL.THROTTLE key max_burst count period [quantity]`, as the module redis-cell has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::tower::HeaderStyle;
use slidegate::{Algorithm, MAX_LIMIT, Policy, Quota, QuotaError, Verb};

use super::frame::Arguments;
use crate::policies::Named;
use crate::signals::OF_THROTTLE;

/// The policy of all keys: what a key has spent stays its own when it comes with other numbers.
const NAME: &str = "CL.THROTTLE";
/// How many policies are kept for those who come next.
const MOST_KEPT: usize = 1024;

/// What is allowed, as the command says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rate {
    max_burst: i64,
    count: i64,
    period_s: i64,
}

/// A command that was understood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle<'a> {
    pub(super) key: &'a [u8],
    pub(super) rate: Rate,
    quantity: i64,
}

impl<'a> Throttle<'a> {
    /// Reads the words, or says what is wrong with them in the words of redis-cell.
    pub(super) fn read(words: Arguments<'a, '_>) -> Result<Self, String> {
        if !(5..=6).contains(&words.len()) {
            return Err(
                "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".to_owned()
            );
        }
        let rate = Rate {
            max_burst: whole(words.word(2))?,
            count: whole(words.word(3))?,
            period_s: whole(words.word(4))?,
        };
        let quantity = if words.len() == 6 { whole(words.word(5))? } else { 1 };
        if quantity.unsigned_abs() > MAX_LIMIT {
            return Err(format!("quantity: {quantity} is not between -2^48 and 2^48"));
        }
        Ok(Self { key: words.word(1), rate, quantity })
    }

    /// Less than nothing gives back.
    #[inline]
    pub(super) fn verb(&self) -> Verb {
        if self.quantity < 0 { Verb::Refund } else { Verb::Check }
    }

    #[inline]
    pub(super) fn cost(&self) -> u64 {
        self.quantity.unsigned_abs()
    }
}

#[inline]
fn whole(word: &[u8]) -> Result<i64, String> {
    // As almost everybody writes them: no sign, and too few digits to be too many.
    if !(1..=18).contains(&word.len()) {
        return any_whole(word);
    }
    let mut number = 0;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return any_whole(word);
        }
        number = 10 * number + i64::from(digit);
    }
    Ok(number)
}

fn any_whole(word: &[u8]) -> Result<i64, String> {
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("Couldn't parse as integer: {}", String::from_utf8_lossy(word)))
}

impl Rate {
    /// A bucket of `max_burst + 1` that fills by `count` in a period.
    fn policy(self) -> Result<Policy, String> {
        let Self { max_burst, count, period_s } = self;
        if count == 0 || period_s == 0 {
            return Err("Zero rates are not supported".to_owned());
        }
        let positive = |name: &str, number: i64| {
            u64::try_from(number).map_err(|_| format!("{name}: {number} is less than 0"))
        };
        let burst = positive("max_burst", max_burst)?.saturating_add(1);
        let (count, period_s) = (positive("count per period", count)?, positive("period", period_s)?);
        if burst > MAX_LIMIT {
            return Err(format!("max_burst: {max_burst} is more than {}", MAX_LIMIT - 1));
        }
        let quota = Quota::new(count, Duration::from_secs(period_s))
            .and_then(|quota| quota.with_algorithm(Algorithm::TokenBucket).with_burst(burst));
        let named = |error: QuotaError| match error.field() {
            "window" => format!("period: {period_s} is more than 366 days of seconds"),
            _ => format!("count per period: {}", error.message()),
        };
        let policy = quota.and_then(|quota| Policy::with_names(NAME, [("rate", quota)]));
        policy.map_err(named)
    }
}

/// Policies that were built, for all connections: one and the same, so that a key's record is not written anew because the
/// next one to ask has another copy.
#[derive(Debug, Default)]
pub(super) struct Throttles(Mutex<HashMap<Rate, Arc<Named>>>);

impl Throttles {
    fn find(&self, rate: Rate) -> Result<Arc<Named>, String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(named) = kept.get(&rate) {
            return Ok(Arc::clone(named));
        }
        let named = Arc::new(Named::new(rate.policy()?, HeaderStyle::None, Arc::clone(&OF_THROTTLE)));
        // Whoever comes with ever new numbers has them built each time, and takes no memory.
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(rate, Arc::clone(&named));
        Ok(named)
    }
}

/// The policy that a connection asked for last: most ask for no other.
#[derive(Debug, Default)]
pub(super) struct Recent(Option<(Rate, Arc<Named>)>);

impl Recent {
    #[inline]
    pub(super) fn find(&mut self, rate: Rate, all: &Throttles) -> Result<&Arc<Named>, String> {
        if !self.0.as_ref().is_some_and(|(recent, _)| *recent == rate) {
            self.0 = Some((rate, all.find(rate)?));
        }
        match &self.0 {
            Some((_, named)) => Ok(named),
            None => Err("no policy".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_rust_reads() {
        let longest = ["9".repeat(18), "1".repeat(19), "9".repeat(19), "0".repeat(30)];
        let texts =
            ["", "0", "7", "42", "007", "-1", "+5", "-", "1x", "x1", " 1", "1.0", "9223372036854775807"];
        for text in texts.into_iter().chain(longest.iter().map(String::as_str)) {
            assert_eq!(whole(text.as_bytes()).ok(), text.parse().ok(), "{text:?}");
        }
        assert!(whole(b"\xff").is_err());
    }
}
