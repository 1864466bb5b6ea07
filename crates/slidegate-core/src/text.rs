//! Quotas as text: `100/1m`, `10/s`, `1000/1h strict-window`, `50/1s token-bucket burst=200`.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::quota::{Algorithm, Anchor, DEFAULT_SLOTS, MAX_WINDOW_MS, Quota, QuotaError};

/// Units of time and their milliseconds. The first spelling of each length is printed.
const UNITS: [(&str, u64); 9] = [
    ("d", 86_400_000),
    ("day", 86_400_000),
    ("h", 3_600_000),
    ("hour", 3_600_000),
    ("m", 60_000),
    ("min", 60_000),
    ("s", 1000),
    ("sec", 1000),
    ("ms", 1),
];

/// Parses `1m`, `30s`, `500ms` or a bare unit (`s` is one second).
///
/// ```
/// use std::time::Duration;
/// assert_eq!(slidegate_core::parse_window("15m")?, Duration::from_secs(900));
/// assert!(slidegate_core::parse_window("15 fortnights").is_err());
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
pub fn parse_window(text: &str) -> Result<Duration, QuotaError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = text.split_at(digits);
    let error = || {
        let has_no_unit = unit.is_empty() && (1..=9).contains(&count.len());
        let hint = if has_no_unit { format!("; {count} seconds are {count}s") } else { String::new() };
        let message = format!(
            "{text:?} is not a window: write a whole number and one of ms, s, m, h, d (or sec, min, hour, day), \
             between 1ms and 366d{hint}"
        );
        QuotaError::new("window", message)
    };
    let (_, unit_ms) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
    let count: u64 = if count.is_empty() { 1 } else { count.parse().map_err(|_| error())? };
    match count.checked_mul(unit_ms) {
        Some(ms) if (1..=MAX_WINDOW_MS).contains(&ms) => Ok(Duration::from_millis(ms)),
        _ => Err(error()),
    }
}

impl TryFrom<&str> for Quota {
    type Error = QuotaError;

    fn try_from(text: &str) -> Result<Self, QuotaError> {
        text.parse()
    }
}

impl TryFrom<&String> for Quota {
    type Error = QuotaError;

    fn try_from(text: &String) -> Result<Self, QuotaError> {
        text.parse()
    }
}

impl TryFrom<String> for Quota {
    type Error = QuotaError;

    fn try_from(text: String) -> Result<Self, QuotaError> {
        text.parse()
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let mut words = text.split_whitespace();
        let rate = words.next().unwrap_or_default();
        let Some((limit, window)) = rate.split_once('/') else {
            let message =
                format!("{text:?} is not a quota: write LIMIT/WINDOW, such as 100/1m, 10/s or 5/15m");
            return Err(QuotaError::new("quota", message));
        };
        let limit = parse_number("limit", limit)?;
        let mut quota = Self::new(limit, parse_window(window)?)?;
        let mut seen: Vec<&str> = Vec::new();
        for word in words {
            let (name, value) =
                word.split_once('=').map_or(("algorithm", word), |(name, value)| (name, value));
            if seen.contains(&name) || (name == "algorithm" && !seen.is_empty()) {
                let message = format!(
                    "{word:?} is out of place: write LIMIT/WINDOW, an algorithm, then each option once"
                );
                return Err(QuotaError::new("quota", message));
            }
            seen.push(name);
            quota = match name {
                "algorithm" if !word.contains('=') => quota.with_algorithm(value.parse()?),
                "burst" => quota.with_burst(parse_number("burst", value)?)?,
                "slots" => quota.with_slots(parse_slots(value)?)?,
                "anchor" => quota.with_anchor(value.parse::<Anchor>()?)?,
                other => {
                    let message = format!("unknown option {other:?}; known: burst, slots, anchor");
                    return Err(QuotaError::new("quota", message));
                }
            };
        }
        Ok(quota)
    }
}

fn parse_number(field: &'static str, text: &str) -> Result<u64, QuotaError> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if is_plain { text.parse().ok() } else { None };
    let least = u8::from(field != "limit");
    let message = || format!("{text:?} is not a whole number between {least} and 2^48");
    number.ok_or_else(|| QuotaError::new(field, message()))
}

fn parse_slots(text: &str) -> Result<u64, QuotaError> {
    parse_number("slots", text)
        .map_err(|_| QuotaError::new("slots", format!("{text:?} is not an even number between 4 and 64")))
}

impl Quota {
    /// Returns the limit and the window, such as `100/1m`: the default name of a quota.
    pub fn label(&self) -> String {
        let window_ms = self.window_ms();
        let (unit, unit_ms) =
            UNITS.into_iter().find(|(_, unit_ms)| window_ms.is_multiple_of(*unit_ms)).unwrap_or(("ms", 1));
        format!("{}/{}{unit}", self.limit(), window_ms / unit_ms)
    }
}

/// Writes the whole quota. Parsing the text returns the same quota.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())?;
        if self.algorithm() != Algorithm::default() {
            write!(f, " {}", self.algorithm())?;
        }
        if self.capacity() != self.limit() {
            write!(f, " burst={}", self.capacity())?;
        }
        if self.slots() != DEFAULT_SLOTS {
            write!(f, " slots={}", self.slots())?;
        }
        if self.anchor() != Anchor::default() {
            write!(f, " anchor={}", self.anchor().name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_and_limit_parses() {
        let table = [
            ("100/1m", 100, 60_000),
            ("10/s", 10, 1000),
            ("5/15m", 5, 900_000),
            ("1000/1h", 1000, 3_600_000),
            ("50/30s", 50, 30_000),
            ("7/250ms", 7, 250),
            ("1/d", 1, 86_400_000),
            ("3/2sec", 3, 2000),
            ("3/2min", 3, 120_000),
            ("3/2hour", 3, 7_200_000),
            ("3/366day", 3, MAX_WINDOW_MS),
            ("281474976710656/1ms", 1 << 48, 1),
        ];
        for (text, limit, window_ms) in table {
            let quota: Quota = text.parse().unwrap();
            assert_eq!((quota.limit(), quota.window_ms()), (limit, window_ms), "{text}");
            assert_eq!(quota.algorithm(), Algorithm::SlidingWindow, "{text}");
        }
    }

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in [
            "100/1m",
            "90/90s",
            "1/1500ms",
            "1000/1h strict-window",
            "1000/1h strict-window slots=32",
            "9/1d sliding-log",
            "9/1d fixed-window anchor=first-request",
            "9/1d anchor=first-request",
            "50/1s token-bucket burst=200",
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota.to_string(), text);
        }
    }

    #[test]
    fn an_error_names_the_field_and_the_allowed_values() {
        let table = [
            ("", "quota: \"\" is not a quota: write LIMIT/WINDOW, such as 100/1m, 10/s or 5/15m"),
            ("100", "quota: \"100\" is not a quota: write LIMIT/WINDOW, such as 100/1m, 10/s or 5/15m"),
            ("0/1m token-bucket burst=5", "burst: requires a limit of at least 1, which refills the bucket"),
            ("281474976710657/1m", "limit: 281474976710657 is not between 0 and 2^48 (281474976710656)"),
            ("+5/1m", "limit: \"+5\" is not a whole number between 0 and 2^48"),
            (
                "99999999999999999999/1m",
                "limit: \"99999999999999999999\" is not a whole number between 0 and 2^48",
            ),
            ("1/1m burst=2", "burst: requires token-bucket; the algorithm is sliding-window"),
            ("1/1m token-bucket burst=0", "burst: 0 is not between 1 and 2^48 (281474976710656)"),
            ("1/1m strict-window slots=5", "slots: 5 is not an even number between 4 and 64"),
            (
                "1/1m sliding-log anchor=epoch",
                "anchor: requires sliding-window or fixed-window; the algorithm is sliding-log",
            ),
            ("1/1m anchor=noon", "anchor: \"noon\" is not one of epoch, first-request"),
            (
                "1/1m strict-window sliding-log",
                "quota: \"sliding-log\" is out of place: write LIMIT/WINDOW, an algorithm, then each option once",
            ),
            (
                "1/1m token-bucket burst=5 burst=6",
                "quota: \"burst=6\" is out of place: write LIMIT/WINDOW, an algorithm, then each option once",
            ),
            (
                "1/1m anchor=epoch fixed-window",
                "quota: \"fixed-window\" is out of place: write LIMIT/WINDOW, an algorithm, then each option once",
            ),
            ("1/1m color=red", "quota: unknown option \"color\"; known: burst, slots, anchor"),
            (
                "1/1m leaky",
                "algorithm: \"leaky\" is not one of sliding-window, strict-window, sliding-log, fixed-window, token-bucket",
            ),
        ];
        for (text, message) in table {
            assert_eq!(text.parse::<Quota>().unwrap_err().to_string(), message, "{text}");
        }
        for window in ["", "0s", "1", "367d", "1.5s", "-1s", "1 s", "99999999999999999999d", "1w"] {
            let error = format!("1/{window}").parse::<Quota>().unwrap_err();
            assert_eq!(error.field(), "window", "{window:?}: {error}");
        }
    }
}
