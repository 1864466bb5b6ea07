//! Calls as text, and what comes back of them.
//!
//! A message of text may hold several statements, which are one transaction, and take one round trip. That is how a call
//! gets its own `statement_timeout`: the server looks at it when a statement begins, so that the statement before has to
//! set it, and it ends with the transaction, so that a pooler between us and the server need not remember it. It may as
//! well hold several transactions. When one of them fails the server leaves out the rest of the message, so that nothing
//! of a message goes on when its time is over, not even behind a pooler; that is why they do not go in messages of their own.
//! All that goes into a text is a number, the hash of a key, or a name of ours.

use std::fmt::{self, Display, Write as _};
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};

/// Sends a statement that answers with one row. The server ends it by itself after `most`.
pub(super) async fn query(
    client: &Client,
    statement: &str,
    most: Duration,
) -> Result<Option<SimpleQueryRow>, Error> {
    let mut replies = send_all(client, &[statement.to_owned()], most).await?;
    Ok(replies.next().await?.and_then(Result::ok))
}

/// Sends statements that answer with one row each, every one of them a transaction. The server ends all of it by itself
/// after `most`. If a transaction of several fails it stays open until there is a `ROLLBACK`.
pub(super) async fn send_all(
    client: &Client,
    statements: &[String],
    most: Duration,
) -> Result<Replies, Error> {
    let most_ms = whole_ms(most);
    let text = match statements {
        [statement] => format!("SET LOCAL statement_timeout = {most_ms}; {statement}"),
        _ => statements.iter().fold(String::new(), |mut text, statement| {
            let _ = write!(text, "BEGIN; {}; {statement}; COMMIT; ", time_left(most_ms));
            text
        }),
    };
    let stream = Box::pin(client.simple_query_raw(&text).await?);
    Ok(Replies { stream, is_one: statements.len() == 1, is_over: false })
}

/// Sets the timeout to what is left of so much since the message came, by a clock that may be set meanwhile; if it is over,
/// ends the message as a timeout would.
fn time_left(most_ms: i32) -> String {
    let left = format!("{most_ms} - 1000 * extract(epoch FROM clock_timestamp() - statement_timestamp())");
    format!(
        "SELECT CASE WHEN {left} > 0 \
         THEN set_config('statement_timeout', least({most_ms}, greatest(1, {left}))::int::text, true) \
         ELSE pg_cancel_backend(pg_backend_pid())::text END"
    )
}

/// BEGIN, the timeout, the statement, COMMIT.
const STATEMENTS_EACH: usize = 4;

/// What statements are answered with, one after the other.
pub(super) struct Replies {
    stream: Pin<Box<SimpleQueryStream>>,
    /// Whether it is the only one, and has no transaction of its own beside that of the message.
    is_one: bool,
    is_over: bool,
}

impl Replies {
    /// The next one's row, when it is certain that it holds.
    pub(super) async fn next(&mut self) -> Result<Option<Reply>, Error> {
        let (mut row, mut completed) = (Err(Unreadable), 0);
        while !self.is_over {
            match self.stream.next().await.transpose()? {
                // The last one is that of the statement.
                Some(SimpleQueryMessage::Row(last)) => row = Ok(last),
                Some(SimpleQueryMessage::CommandComplete(_)) => completed += 1,
                Some(_) => {}
                None => {
                    self.is_over = true;
                    return Ok(self.is_one.then_some(row));
                }
            }
            if !self.is_one && completed == STATEMENTS_EACH {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// What a statement is answered with.
pub(super) type Reply = Result<SimpleQueryRow, Unreadable>;

/// As many milliseconds as a setting can have, and at least one: none would be no limit.
pub(super) fn whole_ms(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// An array, as PostgreSQL reads it.
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

/// A value that may be missing.
pub(super) struct OrNull<T>(pub(super) Option<T>);

impl<T: Display> Display for OrNull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("NULL"),
        }
    }
}

/// It is not what the functions of this version answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// A whole number; `None` if it is null.
pub(super) fn number<T: FromStr>(row: &SimpleQueryRow, column: &str) -> Result<Option<T>, Unreadable> {
    text(row, column)?.map(|text| text.parse().map_err(|_| Unreadable)).transpose()
}

/// An array of them; `None` if it is null.
pub(super) fn numbers<T: FromStr>(row: &SimpleQueryRow, column: &str) -> Result<Option<Vec<T>>, Unreadable> {
    text(row, column)?.map(|text| read_array(text, |element| element.parse().ok())).transpose()
}

/// An array of truths, each of which may be null.
pub(super) fn truths(row: &SimpleQueryRow, column: &str) -> Result<Vec<Option<bool>>, Unreadable> {
    read_array(text(row, column)?.ok_or(Unreadable)?, |element| match element {
        "t" => Some(Some(true)),
        "f" => Some(Some(false)),
        "NULL" => Some(None),
        _ => None,
    })
}

fn text<'a>(row: &'a SimpleQueryRow, column: &str) -> Result<Option<&'a str>, Unreadable> {
    row.try_get(column).map_err(|_| Unreadable)
}

fn read_array<T>(text: &str, read: impl FnMut(&str) -> Option<T>) -> Result<Vec<T>, Unreadable> {
    let elements = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or(Unreadable)?;
    if elements.is_empty() {
        return Ok(Vec::new());
    }
    elements.split(',').map(read).collect::<Option<_>>().ok_or(Unreadable)
}

#[cfg(test)]
mod tests {
    use slidegate_testkit::Postgres;

    use super::{Array, Duration, OrNull, Unreadable, read_array, time_left, whole_ms};

    #[test]
    fn what_is_left_of_the_time_is_counted_from_the_message() {
        let server = Postgres::start();
        let ask = |slept: &str, most_ms: i32| {
            let left = time_left(most_ms);
            let set = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'";
            server.try_sql(&format!("BEGIN; SELECT pg_sleep({slept}); {left}; {set}; COMMIT"))
        };
        let set = |rows: Vec<Vec<Option<String>>>| rows[2][0].as_ref().unwrap().parse::<i32>().unwrap();
        assert!((1..=3_599_900).contains(&set(ask("0.1", 3_600_000).unwrap())));
        assert!((1..=i32::MAX).contains(&set(ask("0", i32::MAX).unwrap())));
        let over = ask("0.1", 50).unwrap_err();
        assert!(over.starts_with("ERROR 57014: "), "{over}");
    }

    #[test]
    fn arrays_are_written_and_read_as_postgres_does() {
        assert_eq!(Array(&[1, -2, 3]).to_string(), "'{1,-2,3}'");
        assert_eq!(Array::<i64>(&[]).to_string(), "'{}'");
        let read = |text| read_array(text, |element| element.parse::<i64>().ok());
        assert_eq!(read("{1,-2,3}"), Ok(vec![1, -2, 3]));
        assert_eq!(read("{}"), Ok(Vec::new()));
        for odd in ["", "{", "1,2", "{1,}", "{1,NULL}", "{{1}}"] {
            assert_eq!(read(odd), Err(Unreadable), "{odd:?}");
        }
    }

    #[test]
    fn a_timeout_is_always_one_that_the_server_takes() {
        let table = [(Duration::ZERO, 1), (Duration::from_millis(20), 20), (Duration::MAX, i32::MAX)];
        for (span, ms) in table {
            assert_eq!(whole_ms(span), ms);
        }
    }

    #[test]
    fn what_is_missing_is_null() {
        assert_eq!(OrNull(Some(5)).to_string(), "5");
        assert_eq!(OrNull::<i64>(None).to_string(), "NULL");
    }
}
