//! The units of envoyproxy/ratelimit.

use std::time::Duration;

const DAY_S: u64 = 24 * 60 * 60;

/// Unit of time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Parses a name, in upper or lower case.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Returns the unit of this length.
    pub fn of_seconds(seconds: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.window() == Duration::from_secs(seconds))
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns all names, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Returns the length of the unit. As in envoyproxy/ratelimit, a month has 30 days and a year 365.
    pub const fn window(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY_S,
            Self::Week => 7 * DAY_S,
            Self::Month => 30 * DAY_S,
            Self::Year => 365 * DAY_S,
        })
    }
}
