//! Meaning of a server's errors for the caller.

use redis::{ErrorKind, RedisError, ServerError};

use crate::error::StoreError;

/// Meaning of an error reply to a script call. Nothing was executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The server does not have the script.
    NoScript,
    /// The slot is on another server: permanently, or, with `is_importing`, while it migrates there.
    Redirect { address: String, is_importing: bool },
    /// Some keys of the call have migrated and some have not: each request has to be sent by itself.
    Split,
    /// Any other error, for the caller.
    Failed(StoreError),
}

/// Classifies an error reply.
pub(super) fn rejection(error: &ServerError) -> Rejection {
    match error.code() {
        "NOSCRIPT" => Rejection::NoScript,
        "TRYAGAIN" => Rejection::Split,
        code @ ("MOVED" | "ASK") => match error.details().and_then(|details| details.split_once(' ')) {
            Some((_slot, address)) => {
                Rejection::Redirect { address: address.to_owned(), is_importing: code == "ASK" }
            }
            None => Rejection::Failed(server_error(error)),
        },
        _ => Rejection::Failed(server_error(error)),
    }
}

/// Next step for a user without the necessary permissions.
const PERMISSIONS_HINT: &str = "; docs/redis.md lists the permissions that the user needs";

/// Converts an error reply for the caller. The request was not counted.
pub(super) fn server_error(error: &ServerError) -> StoreError {
    let details = error.details().unwrap_or_default();
    let message = format!("redis: {} {details}", error.code());
    match error.code() {
        "OOM" | "SLIDEGATEFULL" => StoreError::full(message),
        // The server is starting, busy, without its primary, cut off from its replicas or its disk, or not the primary any
        // more. These states end without a change of the configuration.
        "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK"
        | "NOSCRIPT" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => StoreError::transient(message),
        "CROSSSLOT" => cluster_error(error),
        "ERR" if details.starts_with("max number of clients") => StoreError::transient(message),
        "NOPERM" => StoreError::permanent(message + PERMISSIONS_HINT),
        // A script whose user lacks the permission for one of its commands.
        "ERR" if details.contains("user executing the script") => {
            StoreError::permanent(message + PERMISSIONS_HINT)
        }
        // Wrong credentials, a key of another application, a script that this server cannot run.
        _ => StoreError::permanent(message),
    }
}

/// Returns whether the server is not a primary that serves requests.
pub(super) fn is_not_serving(error: &ServerError) -> bool {
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "LOADING")
}

/// Converts an error reply that only a server of a cluster gives, for a store that was configured with a single server.
pub(super) fn cluster_error(error: &ServerError) -> StoreError {
    StoreError::permanent(format!(
        "redis: {} {}; this server is part of a cluster: use redis+cluster://",
        error.code(),
        error.details().unwrap_or_default()
    ))
}

/// TLS alert of a server that requires a client certificate.
const CERTIFICATE_REQUIRED: &str = "received fatal alert: CertificateRequired";

/// Returns whether a connection failed because of TLS in a way that a retry does not mend: one side does not trust the
/// other, or they have no protocol in common. The text decides, because errors of TLS arrive here as text.
fn is_tls_failure(text: &str) -> bool {
    let is_alert = text.contains("received fatal alert: ") && !text.contains("alert: InternalError");
    // "Unable to …" concerns files that contain no certificate or key.
    is_alert
        || ["invalid peer certificate", "Unable to parse", "Unable to extract"]
            .iter()
            .any(|words| text.contains(words))
}

/// Converts the error of a failed connection. No request was counted.
pub(super) fn connect_error(server: &str, error: &RedisError) -> StoreError {
    let text = error.to_string();
    let hint = match error.code() {
        _ if text.contains(CERTIFICATE_REQUIRED) => {
            "; the server requires a client certificate: use ?cert=FILE&key=FILE"
        }
        Some("NOPERM") => PERMISSIONS_HINT,
        Some("NOAUTH") => "; the server requires a password: use redis://:PASSWORD@HOST or USER:PASSWORD@",
        Some("WRONGPASS") => "; check the user and the password in the URL",
        _ => "",
    };
    let message = match error.kind() {
        // The parser's own message only names the unexpected bytes.
        ErrorKind::Parse => {
            format!("redis at {server}: the server does not speak the Redis protocol; check the port")
        }
        _ => format!("redis at {server}: {text}{hint}"),
    };
    let is_passing =
        matches!(error.code(), Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"))
            || error.detail().is_some_and(|detail| detail.contains("max number of clients"));
    let is_permanent = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            true
        }
        // Error replies: wrong credentials, no permission, no such database, not a cluster.
        ErrorKind::Server(_) | ErrorKind::Extension => !is_passing,
        _ => is_tls_failure(&text),
    };
    if is_permanent { StoreError::permanent(message) } else { StoreError::transient(message) }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn reply(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn transient_permanent_and_full_errors_are_distinguished() {
        for text in [
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "READONLY You can't write against a read only replica.",
            "CLUSTERDOWN Hash slot not served",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "NOREPLICAS Not enough good replicas to write.",
            "UNBLOCKED force unblock from blocking operation",
            "ERR max number of clients reached",
        ] {
            let error = server_error(&reply(text));
            assert!(
                error.is_transient() && !error.is_full() && !error.may_have_counted(),
                "{text}: {error:?}"
            );
        }
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM User a has no permissions to run the 'set' command",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "ERR The user executing the script can't run this command or subcommand",
            "SLIDEGATECORRUPT unknown tag 99",
        ] {
            let error = server_error(&reply(text));
            assert!(
                !error.is_transient() && !error.is_full() && !error.may_have_counted(),
                "{text}: {error:?}"
            );
            assert_eq!(
                error.to_string().contains("docs/redis.md"),
                text.contains("NOPERM") || text.contains("executing"),
                "{error}"
            );
        }
        for text in ["OOM command not allowed when used memory > 'maxmemory'.", "SLIDEGATEFULL a log"] {
            assert!(server_error(&reply(text)).is_full(), "{text}");
        }
    }

    #[test]
    fn redirects_name_an_address() {
        let redirect = |text: &str| match rejection(&reply(text)) {
            Rejection::Redirect { address, is_importing } => (address, is_importing),
            _ => panic!("{text}"),
        };
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), ("127.0.0.1:6381".to_owned(), false));
        assert_eq!(redirect("ASK 3999 [::1]:6381"), ("[::1]:6381".to_owned(), true));
        assert!(matches!(rejection(&reply("NOSCRIPT No matching script.")), Rejection::NoScript));
        assert!(matches!(rejection(&reply("TRYAGAIN Multiple keys")), Rejection::Split));
        assert!(
            matches!(rejection(&reply("MOVED nonsense")), Rejection::Failed(error) if error.is_transient())
        );
    }
}
