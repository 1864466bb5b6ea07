//! None.

use std::future::Future;
use std::io::{self, IsTerminal};

use axum::http::HeaderMap;
use tracing_subscriber::EnvFilter;

use super::LogFormat;

/// What takes note of what happens.
pub(crate) struct Tracing;

impl Tracing {
    /// Logs to standard error from now on.
    pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> Self {
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        // A second subscriber in one process is refused; the first one stays, and that is as good.
        let _ = match format {
            LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
            LogFormat::Json => log.json().flatten_event(true).try_init(),
        };
        Self
    }

    /// Sends what has not been sent yet.
    #[expect(clippy::unused_self, reason = "the same signature with and without traces")]
    pub(crate) fn finish(self) {}
}

/// Never.
pub(crate) fn are_sent() -> bool {
    false
}

/// Nothing to be within.
pub(crate) struct Nowhere;

pub(crate) fn of_request(_: &'static str, _: &HeaderMap) -> Nowhere {
    Nowhere
}

pub(crate) fn of_store() -> Nowhere {
    Nowhere
}

pub(crate) fn within<F: Future>(_: Nowhere, work: F) -> F {
    work
}
