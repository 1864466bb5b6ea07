//! Statements as text, and the rows they return.
//!
//! A text message may hold several statements, which are one transaction and take one round trip. A call's
//! `statement_timeout` depends on this: the server applies the value that is set when a statement begins, so the statement
//! before sets it, and it ends with the transaction, so that it is independent of a pooler in between.
//!
//! A message may also hold several transactions. After an error the server skips the rest of the message, so nothing of it
//! is executed after its timeout, not even behind a pooler. Separate messages would not have this property.
//!
//! The texts contain only numbers, hashes of keys and names of this library, so nothing needs to be escaped.

use std::fmt::{self, Display, Write as _};
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};

use crate::error::StoreError;

/// Executes a statement that returns one row. The server cancels it after `timeout`.
pub(super) async fn query(
    client: &Client,
    statement: &str,
    timeout: Duration,
) -> Result<Option<SimpleQueryRow>, Error> {
    let mut replies = send_all(client, &[statement.to_owned()], timeout).await?;
    Ok(replies.next().await?.and_then(Result::ok))
}

/// Sends statements that return one row each, each as a transaction, in one message. The server cancels the message after
/// `timeout`. A transaction of several that fails stays open until a `ROLLBACK`.
pub(super) async fn send_all(
    client: &Client,
    statements: &[String],
    timeout: Duration,
) -> Result<Replies, Error> {
    let timeout_ms = whole_ms(timeout);
    let text = match statements {
        [statement] => format!("SET LOCAL statement_timeout = {timeout_ms}; {statement}"),
        _ => statements.iter().fold(String::new(), |mut text, statement| {
            let _ = write!(text, "BEGIN; {}; {statement}; COMMIT; ", set_remaining_timeout(timeout_ms));
            text
        }),
    };
    let stream = Box::pin(client.simple_query_raw(&text).await?);
    Ok(Replies { stream, is_single: statements.len() == 1, is_finished: false })
}

/// Returns a statement that sets the timeout to the rest of `timeout_ms` since the message arrived. If none is left, the
/// statement cancels the message as a timeout would. The limits protect against a clock that is set meanwhile.
fn set_remaining_timeout(timeout_ms: i32) -> String {
    let left = format!("{timeout_ms} - 1000 * extract(epoch FROM clock_timestamp() - statement_timestamp())");
    format!(
        "SELECT CASE WHEN {left} > 0 \
         THEN set_config('statement_timeout', least({timeout_ms}, greatest(1, {left}))::int::text, true) \
         ELSE pg_cancel_backend(pg_backend_pid())::text END"
    )
}

/// Number of statements of a transaction: `BEGIN`, the timeout, the statement, `COMMIT`.
const STATEMENTS_EACH: usize = 4;

/// Replies to the statements of a message, in order.
pub(super) struct Replies {
    stream: Pin<Box<SimpleQueryStream>>,
    /// Whether the message holds a single statement, without `BEGIN` and `COMMIT`.
    is_single: bool,
    is_finished: bool,
}

impl Replies {
    /// Waits until the next statement is committed, and returns its row.
    pub(super) async fn next(&mut self) -> Result<Option<Reply>, Error> {
        let (mut row, mut completed) = (Err(UnexpectedFormat), 0);
        while !self.is_finished {
            match self.stream.next().await.transpose()? {
                // The row of the statement follows that of the timeout.
                Some(SimpleQueryMessage::Row(last)) => row = Ok(last),
                Some(SimpleQueryMessage::CommandComplete(_)) => completed += 1,
                Some(_) => {}
                None => {
                    self.is_finished = true;
                    return Ok(self.is_single.then_some(row));
                }
            }
            if !self.is_single && completed == STATEMENTS_EACH {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// Row of a statement.
pub(super) type Reply = Result<SimpleQueryRow, UnexpectedFormat>;

/// Converts a timeout to the milliseconds of a setting. The least is 1, because 0 disables a timeout.
pub(super) fn whole_ms(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Array literal.
pub(super) struct Array<'a, T>(pub(super) &'a [T]);

impl<T: Display> Display for Array<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("'{")?;
        for (place, element) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_char(',')?;
            }
            element.fmt(f)?;
        }
        f.write_str("}'")
    }
}

/// Literal of an optional value.
pub(super) struct OrNull<T>(pub(super) Option<T>);

impl<T: Display> Display for OrNull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("NULL"),
        }
    }
}

/// Error of a result that no function of this version returns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnexpectedFormat;

impl From<UnexpectedFormat> for StoreError {
    fn from(_: UnexpectedFormat) -> Self {
        Self::permanent("postgres: the function's result has an unexpected format")
    }
}

/// Reads an integer; `None` if it is null.
pub(super) fn number<T: FromStr>(row: &SimpleQueryRow, column: &str) -> Result<Option<T>, UnexpectedFormat> {
    text(row, column)?.map(|text| text.parse().map_err(|_| UnexpectedFormat)).transpose()
}

/// Reads an array of integers; `None` if it is null.
pub(super) fn numbers<T: FromStr>(
    row: &SimpleQueryRow,
    column: &str,
) -> Result<Option<Vec<T>>, UnexpectedFormat> {
    text(row, column)?.map(|text| read_array(text, |element| element.parse().ok())).transpose()
}

/// Reads an array of booleans, each of which may be null.
pub(super) fn booleans(row: &SimpleQueryRow, column: &str) -> Result<Vec<Option<bool>>, UnexpectedFormat> {
    read_array(text(row, column)?.ok_or(UnexpectedFormat)?, |element| match element {
        "t" => Some(Some(true)),
        "f" => Some(Some(false)),
        "NULL" => Some(None),
        _ => None,
    })
}

fn text<'a>(row: &'a SimpleQueryRow, column: &str) -> Result<Option<&'a str>, UnexpectedFormat> {
    row.try_get(column).map_err(|_| UnexpectedFormat)
}

fn read_array<T>(text: &str, read: impl FnMut(&str) -> Option<T>) -> Result<Vec<T>, UnexpectedFormat> {
    let elements = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or(UnexpectedFormat)?;
    if elements.is_empty() {
        return Ok(Vec::new());
    }
    elements.split(',').map(read).collect::<Option<_>>().ok_or(UnexpectedFormat)
}

#[cfg(test)]
mod tests {
    use slidegate_testkit::Postgres;

    use super::{Array, Duration, OrNull, UnexpectedFormat, read_array, set_remaining_timeout, whole_ms};

    #[test]
    fn the_remaining_timeout_counts_from_the_arrival_of_the_message() {
        let server = Postgres::start();
        let run = |slept: &str, timeout_ms: i32| {
            let set_timeout = set_remaining_timeout(timeout_ms);
            let set = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'";
            server.try_sql(&format!("BEGIN; SELECT pg_sleep({slept}); {set_timeout}; {set}; COMMIT"))
        };
        let set = |rows: Vec<Vec<Option<String>>>| rows[2][0].as_ref().unwrap().parse::<i32>().unwrap();
        assert!((1..=3_599_900).contains(&set(run("0.1", 3_600_000).unwrap())));
        assert!((1..=i32::MAX).contains(&set(run("0", i32::MAX).unwrap())));
        let cancelled = run("0.1", 50).unwrap_err();
        assert!(cancelled.starts_with("ERROR 57014: "), "{cancelled}");
    }

    #[test]
    fn arrays_are_written_and_read_as_literals() {
        assert_eq!(Array(&[1, -2, 3]).to_string(), "'{1,-2,3}'");
        assert_eq!(Array::<i64>(&[]).to_string(), "'{}'");
        let read = |text| read_array(text, |element| element.parse::<i64>().ok());
        assert_eq!(read("{1,-2,3}"), Ok(vec![1, -2, 3]));
        assert_eq!(read("{}"), Ok(Vec::new()));
        for invalid in ["", "{", "1,2", "{1,}", "{1,NULL}", "{{1}}"] {
            assert_eq!(read(invalid), Err(UnexpectedFormat), "{invalid:?}");
        }
    }

    #[test]
    fn timeouts_are_within_the_range_of_the_setting() {
        let table = [(Duration::ZERO, 1), (Duration::from_millis(20), 20), (Duration::MAX, i32::MAX)];
        for (span, ms) in table {
            assert_eq!(whole_ms(span), ms);
        }
    }

    #[test]
    fn a_missing_value_is_null() {
        assert_eq!(OrNull(Some(5)).to_string(), "5");
        assert_eq!(OrNull::<i64>(None).to_string(), "NULL");
    }
}
