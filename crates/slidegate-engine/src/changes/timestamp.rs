//! Timestamps in RFC 3339, for requests, responses and the audit log.

use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// Milliseconds since 1970, written as `2026-11-20T18:00:00Z`. A date such as `2026-11-20` means midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn parse(text: &str) -> Result<Self, String> {
        let timestamp = text.parse::<jiff::Timestamp>().ok().or_else(|| {
            // Without a time zone, only a date is accepted: a time of day would be ambiguous.
            let is_day = text.len() == "2026-11-20".len();
            let midnight = is_day.then_some(text)?.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok()?;
            Some(midnight.timestamp())
        });
        timestamp
            .and_then(|timestamp| u64::try_from(timestamp.as_millisecond()).ok())
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a timestamp: write 2026-11-20T18:00:00Z or 2026-11-20"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timestamp = i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match timestamp {
            Some(timestamp) => timestamp.fmt(f),
            None => f.write_str("after the year 9999"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_timestamps_that_it_writes() {
        let table = [
            ("2026-11-20T18:00:00Z", "2026-11-20T18:00:00Z"),
            ("2026-11-20T18:00:00.25+02:00", "2026-11-20T16:00:00.25Z"),
            ("2026-11-20", "2026-11-20T00:00:00Z"),
        ];
        for (text, shown) in table {
            let timestamp = Timestamp::parse(text).unwrap();
            assert_eq!(timestamp.to_string(), shown);
            assert_eq!(Timestamp::parse(shown), Ok(timestamp));
        }
        for text in ["", "friday", "2026-13-01", "2026-11-20T18:00:00", "1969-12-31T23:59:59Z", "5"] {
            assert!(Timestamp::parse(text).unwrap_err().contains("write 2026-11-20"), "{text}");
        }
        assert_eq!(Timestamp(u64::MAX).to_string(), "after the year 9999");
    }
}
