//! No traces: the build without the feature `otlp`.

use std::io::{self, IsTerminal};

use tracing::Span;
use tracing_subscriber::EnvFilter;

use super::{LogFormat, TraceContext};

/// The installed log subscriber.
pub(crate) struct Tracing;

impl Tracing {
    /// Installs a subscriber that logs to standard error.
    pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> Self {
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        // Fails if the process already has a subscriber, which then stays.
        let _ = match format {
            LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
            LogFormat::Json => log.json().flatten_event(true).try_init(),
        };
        Self
    }

    /// Exports nothing.
    #[expect(clippy::unused_self, reason = "the same signature with and without traces")]
    pub(crate) fn finish(self) {}
}

/// Returns no span.
pub(crate) fn request_span(_: &'static str, _: TraceContext<'_>) -> Span {
    Span::none()
}

/// Returns no span.
pub(crate) fn store_span() -> Span {
    Span::none()
}
