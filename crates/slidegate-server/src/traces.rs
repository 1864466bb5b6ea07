//! Traces: a span for each request, with a child span for the store.
//!
//! The feature `otlp` builds them; the variables of OpenTelemetry, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, set the
//! endpoint. Without the feature or an endpoint there are no spans, and they cost nothing.

use axum::http::{HeaderMap, HeaderValue};
use clap::ValueEnum;

#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::disabled::{Tracing, request_span, store_span};
#[cfg(feature = "otlp")]
pub(crate) use self::otlp::{Tracing, request_span, store_span};

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Trace that a request belongs to, from its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceContext<'a> {
    pub(crate) traceparent: Option<&'a [u8]>,
    pub(crate) tracestate: Option<&'a [u8]>,
}

impl<'a> From<&'a HeaderMap> for TraceContext<'a> {
    fn from(headers: &'a HeaderMap) -> Self {
        let [traceparent, tracestate] =
            ["traceparent", "tracestate"].map(|name| headers.get(name).map(HeaderValue::as_bytes));
        Self { traceparent, tracestate }
    }
}

/// The build without the feature `otlp`: a log, and no traces.
#[cfg(not(feature = "otlp"))]
mod disabled {
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
}
