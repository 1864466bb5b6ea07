//! Reply of the script, and the responses it contains.

use redis::{ServerError, Value};

pub(crate) const UNEXPECTED_FORMAT: &str = "redis: the script's reply has an unexpected format";

/// Response of the script to one request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) now_ms: u64,
    pub(crate) is_allowed: bool,
    pub(crate) prior: PriorRecord,
}

/// Record of a key before the decision.
#[derive(Debug)]
pub(crate) enum PriorRecord {
    Absent,
    /// Record in decimal form.
    Number(u64),
    /// Record in binary form.
    Bytes(Vec<u8>),
}

impl PriorRecord {
    fn parse(record: &[u8]) -> Self {
        if record.is_empty() {
            return Self::Absent;
        }
        let number = std::str::from_utf8(record).ok().and_then(|digits| digits.parse().ok());
        number.map_or_else(|| Self::Bytes(record.to_vec()), Self::Number)
    }
}

/// State of the server as a script call's reply shows it.
#[derive(Default)]
pub(crate) struct CallSummary {
    /// Time of the server.
    pub(crate) server_ms: Option<u64>,
    /// Error of a single key.
    pub(crate) key_error: Option<ServerError>,
    pub(crate) has_written: bool,
}

/// Prior records of a script call's keys, in the order of the keys.
pub(super) enum PriorRecords {
    /// Numbers only, separated by commas.
    Text {
        text: Vec<u8>,
        at: usize,
    },
    Parts(std::vec::IntoIter<Value>),
}

impl PriorRecords {
    pub(super) fn new(value: Value, keys: usize) -> Self {
        match value {
            // A text of another length is discarded: its numbers could not be assigned to keys.
            Value::BulkString(text) if text.split(|byte| *byte == b',').count() == keys => {
                Self::Text { text, at: 0 }
            }
            Value::Array(parts) => Self::Parts(parts.into_iter()),
            _ => Self::Parts(Vec::new().into_iter()),
        }
    }

    /// Returns the next record; `None` if it is missing or malformed.
    pub(super) fn next(&mut self) -> Option<Result<PriorRecord, ServerError>> {
        match self {
            Self::Text { text, at } => {
                let number = text.get(*at..)?.split(|byte| *byte == b',').next()?;
                *at += number.len() + 1;
                Some(Ok(PriorRecord::parse(number)))
            }
            Self::Parts(parts) => match parts.next()? {
                Value::BulkString(record) => Some(Ok(PriorRecord::parse(&record))),
                Value::ServerError(error) => Some(Err(error)),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(value: Value, keys: usize) -> Vec<Option<u64>> {
        let mut records = PriorRecords::new(value, keys);
        let number = |record| match record {
            Some(Ok(PriorRecord::Number(number))) => Some(number),
            Some(Ok(PriorRecord::Absent)) => Some(0),
            _ => None,
        };
        (0..keys).map(|_| number(records.next())).collect()
    }

    #[test]
    fn numbers_are_read_from_one_text_or_from_parts() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(numbers(text("12,,7"), 3), [Some(12), Some(0), Some(7)]);
        assert_eq!(numbers(text(""), 1), [Some(0)]);
        let parts = Value::Array(vec![text("12"), text(""), text("\u{1}")]);
        assert_eq!(numbers(parts, 4), [Some(12), Some(0), None, None]);
    }

    #[test]
    fn a_text_with_a_wrong_number_of_records_is_discarded() {
        let text = Value::BulkString(b"12,1,7".to_vec());
        assert_eq!(numbers(text, 2), [None, None]);
    }
}
