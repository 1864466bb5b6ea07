//! What a failure of the database means for the caller.

use std::io::{self, ErrorKind};

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::error::StoreError;

/// What the migration says if a newer one was here before.
const IS_NEWER: &str = "SG001";

/// Whether nothing was executed because somebody else was in the way, so that the same statement may succeed now.
pub(super) fn is_worth_repeating(error: &Error) -> bool {
    matches!(error.code(), Some(code) if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

/// Whether it was refused by a server that goes on serving. One that only reads, because it is, or has become, a standby, is
/// of no use.
pub(super) fn leaves_a_connection(error: &Error) -> bool {
    let ends_it = |severity| matches!(severity, Severity::Fatal | Severity::Panic);
    error.as_db_error().is_some_and(|error| {
        !error.parsed_severity().is_some_and(ends_it) && *error.code() != SqlState::READ_ONLY_SQL_TRANSACTION
    })
}

/// Whether the time is over: for all who are still to be asked for, too.
pub(super) fn is_too_late(error: &Error) -> bool {
    matches!(error.code(), Some(code) if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code))
}

/// Whether what is stored of some key makes no sense.
pub(super) fn is_of_data(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("22"))
}

/// An error of a statement that was sent.
pub(super) fn statement_error(error: &Error) -> StoreError {
    let Some(database) = error.as_db_error() else {
        // The connection ended, or what came was not the protocol: nobody knows what became of the statement.
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
        IS_NEWER => StoreError::permanent(format!("{message}: update this program")),
        // Not even to look.
        "42501" => StoreError::permanent(format!(
            "{message}; has `slidegate migrate` been run by the owner of the database, and is the role granted what \
                 docs/postgres.md says?"
        )),
        // A standby, a repeated statement, too many connections, a disk that fails.
        "25006" | "40001" | "40P01" | "53300" | "58030" => StoreError::transient(message),
        // A lock that somebody holds, a statement that took too long.
        "55P03" | "57014" => StoreError::transient(message).too_late(),
        // It shuts down, has crashed, or starts, or a pooler has lost it: the statement may have been the last that it did.
        state if state.starts_with("57P") || state.starts_with("08") => StoreError::lost(message),
        state if state.starts_with("53") => StoreError::transient(message),
        _ => StoreError::permanent(message),
    }
}

/// Why no connection came about. Nothing was spent.
pub(super) fn connect_error(place: &str, error: &Error) -> StoreError {
    let message = match error.code() {
        // What the server says names the user.
        Some(code) if code.code().starts_with("28") => {
            let code = code.code();
            format!("postgres at {place}: it refuses the user, the password or this host ({code})")
        }
        None if is_nonsense(error) => {
            format!("postgres at {place}: the server does not speak the PostgreSQL protocol; check the port")
        }
        None if has_hung_up(error) => {
            format!("postgres at {place}: it hung up before it answered; is this the port of PostgreSQL?")
        }
        _ => format!("postgres at {place}: {}", chain(error)),
    };
    let is_permanent = error.code().is_some_and(|code| {
        let code = code.code();
        code.starts_with("28") || code.starts_with("3D") || code.starts_with("42")
    });
    // No TLS where it is asked for, or nobody vouches for the certificate.
    let is_permanent = is_permanent || message.contains("TLS handshake") || message.contains("certificate");
    if is_permanent { StoreError::permanent(message) } else { StoreError::transient(message) }
}

fn io_cause(error: &Error) -> Option<&io::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Whether what came was less than a message.
fn is_nonsense(error: &Error) -> bool {
    io_cause(error).is_some_and(|cause| match cause.kind() {
        ErrorKind::InvalidInput => true,
        // A reader of frames has no kind of its own for less than a frame.
        ErrorKind::Other => cause.to_string() == "bytes remaining on stream",
        _ => false,
    })
}

/// Whether nothing came.
fn has_hung_up(error: &Error) -> bool {
    error.is_closed() || io_cause(error).is_some_and(|cause| cause.kind() == ErrorKind::UnexpectedEof)
}

/// The error with what caused it; by itself it often says only that there was one.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(why) = cause {
        text = format!("{text}: {why}");
        cause = why.source();
    }
    text
}
