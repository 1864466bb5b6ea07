//! Bounded integers of the configuration and of JSON requests. Their errors name the range.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Whole number with the range `MIN` to `MAX`.
///
/// Deserialization accepts any whole number from 0; [`checked`](Self::checked) tests the range. So a file with several
/// numbers out of range gets an error for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedInteger<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> BoundedInteger<MIN, MAX> {
    /// Returns the number, or an error if it is out of range.
    pub fn checked(self) -> Result<u64, String> {
        if (MIN..=MAX).contains(&self.0) {
            return Ok(self.0);
        }
        Err(format!("{} is not a whole number between {MIN} and {MAX}", self.0))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedInteger<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BoundedIntegerVisitor)
    }
}

struct BoundedIntegerVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for BoundedIntegerVisitor<MIN, MAX> {
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
