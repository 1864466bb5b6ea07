//! A moment as people write it.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// Milliseconds since 1970, written as `2026-11-20T18:00:00Z`. A day alone, `2026-11-20`, is its beginning in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let timestamp = text.parse::<Timestamp>().ok().or_else(|| {
            // A time without a zone is nobody's: only a day stands by itself.
            let is_day = text.len() == "2026-11-20".len();
            let midnight = is_day.then_some(text)?.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok()?;
            Some(midnight.timestamp())
        });
        timestamp
            .and_then(|timestamp| u64::try_from(timestamp.as_millisecond()).ok())
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a moment: write 2026-11-20T18:00:00Z or 2026-11-20"))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timestamp = i64::try_from(self.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        match timestamp {
            Some(timestamp) => timestamp.fmt(f),
            None => f.write_str("the end of time"),
        }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_as_it_is_written() {
        let table = [
            ("2026-11-20T18:00:00Z", "2026-11-20T18:00:00Z"),
            ("2026-11-20T18:00:00.25+02:00", "2026-11-20T16:00:00.25Z"),
            ("2026-11-20", "2026-11-20T00:00:00Z"),
        ];
        for (text, shown) in table {
            let moment = Moment::parse(text).unwrap();
            assert_eq!(moment.to_string(), shown);
            assert_eq!(Moment::parse(shown), Ok(moment));
        }
        for text in ["", "friday", "2026-13-01", "2026-11-20T18:00:00", "1969-12-31T23:59:59Z", "5"] {
            assert!(Moment::parse(text).unwrap_err().contains("write 2026-11-20"), "{text}");
        }
        assert_eq!(Moment(u64::MAX).to_string(), "the end of time");
    }
}
