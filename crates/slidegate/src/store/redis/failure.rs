//! What a server's refusal means for the caller.

use redis::{ErrorKind, RedisError, ServerError};

use crate::error::StoreError;

/// A refusal that says that nothing was executed, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The server has forgotten the script.
    NoScript,
    /// The slot lives elsewhere, for good or while it moves.
    Elsewhere { address: String, is_asking: bool },
    /// Some keys of the call have moved and some have not: they have to be asked for one by one.
    OneByOne,
    /// Anything else, for the caller.
    Failed(StoreError),
}

/// What an error reply means.
pub(super) fn refusal(error: &ServerError) -> Refusal {
    match error.code() {
        "NOSCRIPT" => Refusal::NoScript,
        "TRYAGAIN" => Refusal::OneByOne,
        code @ ("MOVED" | "ASK") => match error.details().and_then(|details| details.split_once(' ')) {
            Some((_slot, address)) => {
                Refusal::Elsewhere { address: address.to_owned(), is_asking: code == "ASK" }
            }
            None => Refusal::Failed(server_error(error)),
        },
        _ => Refusal::Failed(server_error(error)),
    }
}

/// What to do about a user who may do too little.
const TOO_LITTLE: &str = "; the least that a user has to be allowed is in docs/redis.md";

/// An error reply, for the caller. Nothing was spent.
pub(super) fn server_error(error: &ServerError) -> StoreError {
    let details = error.details().unwrap_or_default();
    let message = format!("redis: {} {details}", error.code());
    match error.code() {
        "OOM" | "SLIDEGATEFULL" => StoreError::full(message),
        // It is starting, busy, without its primary, out of touch with its replicas or its disk, or no longer the
        // primary: others are at work on it.
        "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK"
        | "NOSCRIPT" | "MISCONF" | "NOREPLICAS" | "UNBLOCKED" => StoreError::transient(message),
        "CROSSSLOT" => is_a_cluster(error),
        "ERR" if details.starts_with("max number of clients") => StoreError::transient(message),
        "NOPERM" => StoreError::permanent(message + TOO_LITTLE),
        // What a script says whose user may not do all that it does.
        "ERR" if details.contains("user executing the script") => StoreError::permanent(message + TOO_LITTLE),
        // Wrong credentials, a key that is none of ours, a script that this server cannot run.
        _ => StoreError::permanent(message),
    }
}

/// Whether whoever answered so is not the one to ask any more.
pub(super) fn is_wrong_server(error: &ServerError) -> bool {
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "LOADING")
}

/// A reply that only a cluster gives, to somebody who took it for a single server.
pub(super) fn is_a_cluster(error: &ServerError) -> StoreError {
    StoreError::permanent(format!(
        "redis: {} {}; this server is part of a cluster: write redis+cluster://",
        error.code(),
        error.details().unwrap_or_default()
    ))
}

/// What a server says that knows its clients by their certificates.
const WANTS_CERTIFICATE: &str = "received fatal alert: CertificateRequired";

/// Whether one of the two does not trust the other, or does not speak as the other does, which will be so the next time.
/// By its words, for what was an error of TLS has become text before it comes here.
fn is_refused_by_tls(said: &str) -> bool {
    let is_alert = said.contains("received fatal alert: ") && !said.contains("alert: InternalError");
    // The latter is said of files that are none of certificates or keys.
    is_alert
        || ["invalid peer certificate", "Unable to parse", "Unable to extract"]
            .iter()
            .any(|words| said.contains(words))
}

/// Why no connection came about. Nothing was spent.
pub(super) fn connect_error(place: &str, error: &RedisError) -> StoreError {
    let said = error.to_string();
    let hint = match error.code() {
        _ if said.contains(WANTS_CERTIFICATE) => "; it wants to see a certificate: write ?cert=FILE&key=FILE",
        Some("NOPERM") => TOO_LITTLE,
        Some("NOAUTH") => "; it wants a password: write redis://:PASSWORD@HOST, or USER:PASSWORD@",
        Some("WRONGPASS") => "; look at the user and the password in the URL",
        _ => "",
    };
    let message = match error.kind() {
        // Which bytes were not expected is of use to nobody.
        ErrorKind::Parse => {
            format!("redis at {place}: it does not answer as Redis does; is this the port of one?")
        }
        _ => format!("redis at {place}: {said}{hint}"),
    };
    let passes = matches!(error.code(), Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"))
        || error.detail().is_some_and(|detail| detail.contains("max number of clients"));
    let is_permanent = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            true
        }
        // It answers, and says no: wrong credentials, no permission, no such database, not a cluster.
        ErrorKind::Server(_) | ErrorKind::Extension => !passes,
        _ => is_refused_by_tls(&said),
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
    fn what_passes_by_itself_is_told_from_what_does_not() {
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
    fn who_is_elsewhere_is_followed() {
        let elsewhere = |text: &str| match refusal(&reply(text)) {
            Refusal::Elsewhere { address, is_asking } => (address, is_asking),
            _ => panic!("{text}"),
        };
        assert_eq!(elsewhere("MOVED 3999 127.0.0.1:6381"), ("127.0.0.1:6381".to_owned(), false));
        assert_eq!(elsewhere("ASK 3999 [::1]:6381"), ("[::1]:6381".to_owned(), true));
        assert!(matches!(refusal(&reply("NOSCRIPT No matching script.")), Refusal::NoScript));
        assert!(matches!(refusal(&reply("TRYAGAIN Multiple keys")), Refusal::OneByOne));
        assert!(matches!(refusal(&reply("MOVED nonsense")), Refusal::Failed(error) if error.is_transient()));
    }
}
