//! Integers of a range in the configuration and in JSON, with an error that names the range.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A whole number that is meant to be between `MIN` and `MAX`.
///
/// Decoding refuses what is no whole number at all; the range is left to whoever uses it, so that a config file
/// with several numbers out of range has them all reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedInteger<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> BoundedInteger<MIN, MAX> {
    /// The number, or what is wrong with it.
    pub fn checked(self) -> Result<u64, String> {
        if (MIN..=MAX).contains(&self.0) {
            return Ok(self.0);
        }
        Err(format!("{} is not a whole number between {MIN} and {MAX}", self.0))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedInteger<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As it comes: YAML would otherwise make a number of a quoted string.
        deserializer.deserialize_any(WholeVisitor)
    }
}

struct WholeVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = BoundedInteger<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number between {MIN} and {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(BoundedInteger(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let unexpected = || E::invalid_value(Unexpected::Signed(number), &self);
        u64::try_from(number).map(BoundedInteger).map_err(|_| unexpected())
    }
}
