//! Meaning of the database's errors for the caller.

use std::io::{self, ErrorKind};

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::error::StoreError;

/// Error code of `sql/guard.sql` for a schema of a newer version.
const NEWER_SCHEMA: &str = "SG001";

/// Returns whether the transaction was rolled back because of a concurrent one, so that the same statement may succeed now.
pub(super) fn is_retryable(error: &Error) -> bool {
    matches!(error.code(), Some(code) if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

/// Returns whether the connection can serve further statements. A standby, or a primary that has become one, cannot.
pub(super) fn is_connection_usable(error: &Error) -> bool {
    let ends_connection = |severity| matches!(severity, Severity::Fatal | Severity::Panic);
    error.as_db_error().is_some_and(|error| {
        !error.parsed_severity().is_some_and(ends_connection)
            && *error.code() != SqlState::READ_ONLY_SQL_TRANSACTION
    })
}

/// Returns whether the timeout of the message has passed, which concerns its remaining statements too.
pub(super) fn is_timeout(error: &Error) -> bool {
    matches!(error.code(), Some(code) if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code))
}

/// Returns whether the record of a key is invalid.
pub(super) fn is_invalid_record(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("22"))
}

/// Converts the error of a statement that was sent.
pub(super) fn statement_error(error: &Error) -> StoreError {
    let Some(database) = error.as_db_error() else {
        // The connection broke, or the reply violates the protocol: the statement may have been executed.
        return StoreError::lost(format!("postgres: the reply was lost: {}", chain(error)));
    };
    let code = database.code();
    let message = format!("postgres: {} ({})", database.message(), code.code());
    match code.code() {
        "53100" | "53200" => StoreError::full(message),
        // The schema, a function or a table is missing.
        "3F000" | "42883" | "42P01" => {
            StoreError::permanent(format!("{message}; has `slidegate migrate` been run?"))
        }
        NEWER_SCHEMA => StoreError::permanent(format!("{message}: update this program")),
        "42501" => StoreError::permanent(format!(
            "{message}; run `slidegate migrate` as the owner of the database, and grant the role the permissions that \
             docs/postgres.md lists"
        )),
        // A standby, a conflict with a concurrent transaction, too many connections, a failing disk.
        "25006" | "40001" | "40P01" | "53300" | "58030" => StoreError::transient(message),
        // A timeout of a lock or of a statement.
        "55P03" | "57014" => StoreError::transient(message).too_late(),
        // The server is stopping, has crashed or is starting, or a pooler has lost it: the statement may have been executed.
        state if state.starts_with("57P") || state.starts_with("08") => StoreError::lost(message),
        state if state.starts_with("53") => StoreError::transient(message),
        _ => StoreError::permanent(message),
    }
}

/// Converts the error of a failed connection. No request was counted.
pub(super) fn connect_error(server: &str, error: &Error) -> StoreError {
    let message = match error.code() {
        // The server's own message names the user.
        Some(code) if code.code().starts_with("28") => {
            let code = code.code();
            format!("postgres at {server}: the server rejects the user, the password or this host ({code})")
        }
        None if is_not_protocol(error) => {
            format!("postgres at {server}: the server does not speak the PostgreSQL protocol; check the port")
        }
        None if is_closed_early(error) => {
            format!("postgres at {server}: the server closed the connection without a reply; check the port")
        }
        _ => format!("postgres at {server}: {}", chain(error)),
    };
    let is_permanent = error.code().is_some_and(|code| {
        let code = code.code();
        code.starts_with("28") || code.starts_with("3D") || code.starts_with("42")
    });
    // The server offers no TLS although the URL requires it, or its certificate is not trusted.
    let is_permanent = is_permanent || message.contains("TLS handshake") || message.contains("certificate");
    if is_permanent { StoreError::permanent(message) } else { StoreError::transient(message) }
}

fn io_cause(error: &Error) -> Option<&io::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Returns whether the reply is shorter than any message of the protocol.
fn is_not_protocol(error: &Error) -> bool {
    io_cause(error).is_some_and(|cause| match cause.kind() {
        ErrorKind::InvalidInput => true,
        // The decoder has no error kind of its own for an incomplete frame.
        ErrorKind::Other => cause.to_string() == "bytes remaining on stream",
        _ => false,
    })
}

/// Returns whether the connection was closed before a reply.
fn is_closed_early(error: &Error) -> bool {
    error.is_closed() || io_cause(error).is_some_and(|cause| cause.kind() == ErrorKind::UnexpectedEof)
}

/// Formats an error with its causes, because the driver's own messages do not contain them.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
