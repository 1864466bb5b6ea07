//! `CL.THROTTLE key max_burst count period [quantity]`, as the module redis-cell has it, and `THROTTLE key max_burst
//! count_per_period period [quantity]`, as throttlecrab's server has it.

use std::sync::Arc;

use slidegate::{MAX_LIMIT, Verb};

use super::frame::Arguments;
use crate::policies::PolicyView;
use crate::throttle::{Dialect, Rate, Throttlecrab, Throttles};

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
            dialect: Dialect::RedisCell,
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

/// Reads the numbers of `THROTTLE`, or refuses them as throttlecrab does. There are four or five.
pub(super) fn throttlecrab(words: Arguments<'_, '_>) -> Result<Throttlecrab, String> {
    let number = |place: usize, name: &str| whole(words.word(place)).map_err(|_| format!("invalid {name}"));
    let (max_burst, count) = (number(2, "max_burst")?, number(3, "count_per_period")?);
    let period_s = number(4, "period")?;
    let quantity = if words.len() == 6 { number(5, "quantity")? } else { 1 };
    Throttlecrab::new(max_burst, count, period_s, quantity)
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

/// The policy that a connection asked for last: most ask for no other.
#[derive(Debug, Default)]
pub(super) struct Recent(Option<(Rate, Arc<PolicyView>)>);

impl Recent {
    #[inline]
    pub(super) fn find(&mut self, rate: Rate, all: &Throttles) -> Result<&Arc<PolicyView>, String> {
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
