//! `CL.THROTTLE key max_burst count period [quantity]` of the module redis-cell, and `THROTTLE key max_burst count_per_period
//! period [quantity]` of throttlecrab's server.

use std::sync::Arc;

use slidegate::{MAX_LIMIT, Verb};
use slidegate_engine::{PolicyView, RatePolicies};

use super::super::rates::{Dialect, Rate};

use super::frame::Arguments;
use crate::protocols::throttlecrab::ThrottlecrabRequest;

/// Arguments of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisCellRequest<'a> {
    pub(super) key: &'a [u8],
    pub(super) rate: Rate,
    quantity: i64,
}

impl<'a> RedisCellRequest<'a> {
    /// Parses the arguments. Errors have the texts of redis-cell.
    pub(super) fn parse(words: Arguments<'a, '_>) -> Result<Self, String> {
        if !(5..=6).contains(&words.len()) {
            return Err(
                "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".to_owned()
            );
        }
        let rate = Rate {
            dialect: Dialect::RedisCell,
            max_burst: parse_integer(words.word(2))?,
            count: parse_integer(words.word(3))?,
            period_s: parse_integer(words.word(4))?,
        };
        let quantity = if words.len() == 6 { parse_integer(words.word(5))? } else { 1 };
        if quantity.unsigned_abs() > MAX_LIMIT {
            return Err(format!("quantity: {quantity} is not between -2^48 and 2^48"));
        }
        Ok(Self { key: words.word(1), rate, quantity })
    }

    /// Returns the verb: a negative quantity is a refund.
    #[inline]
    pub(super) fn verb(&self) -> Verb {
        if self.quantity < 0 { Verb::Refund } else { Verb::Check }
    }

    #[inline]
    pub(super) fn cost(&self) -> u64 {
        self.quantity.unsigned_abs()
    }
}

/// Parses the four or five numbers of `THROTTLE`. Errors begin with the texts of throttlecrab.
pub(super) fn parse_throttlecrab(words: Arguments<'_, '_>) -> Result<ThrottlecrabRequest, String> {
    let number =
        |index: usize, name: &str| parse_integer(words.word(index)).map_err(|_| format!("invalid {name}"));
    let (max_burst, count) = (number(2, "max_burst")?, number(3, "count_per_period")?);
    let period_s = number(4, "period")?;
    let quantity = if words.len() == 6 { number(5, "quantity")? } else { 1 };
    ThrottlecrabRequest::new(max_burst, count, period_s, quantity)
}

#[inline]
fn parse_integer(word: &[u8]) -> Result<i64, String> {
    // Fast path: 18 digits without a sign cannot overflow.
    if !(1..=18).contains(&word.len()) {
        return parse_any_integer(word);
    }
    let mut number = 0;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return parse_any_integer(word);
        }
        number = 10 * number + i64::from(digit);
    }
    Ok(number)
}

fn parse_any_integer(word: &[u8]) -> Result<i64, String> {
    let number = str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("Couldn't parse as integer: {}", String::from_utf8_lossy(word)))
}

/// Cache of the policy for a connection's last rate. Most connections send the same rate each time.
#[derive(Debug, Default)]
pub(super) struct LastRatePolicy(Option<(Rate, Arc<PolicyView>)>);

impl LastRatePolicy {
    /// Returns the policy for `rate`, which is taken from `policies` if the last command had another rate.
    #[inline]
    pub(super) fn find(&mut self, rate: Rate, policies: &RatePolicies) -> Result<&Arc<PolicyView>, String> {
        if !self.0.as_ref().is_some_and(|(last, _)| *last == rate) {
            self.0 = Some((rate, rate.policy(policies)?));
        }
        match &self.0 {
            Some((_, policy)) => Ok(policy),
            None => Err("no policy".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_as_by_the_standard_library() {
        let long = ["9".repeat(18), "1".repeat(19), "9".repeat(19), "0".repeat(30)];
        let texts =
            ["", "0", "7", "42", "007", "-1", "+5", "-", "1x", "x1", " 1", "1.0", "9223372036854775807"];
        for text in texts.into_iter().chain(long.iter().map(String::as_str)) {
            assert_eq!(parse_integer(text.as_bytes()).ok(), text.parse().ok(), "{text:?}");
        }
        assert!(parse_integer(b"\xff").is_err());
    }
}
