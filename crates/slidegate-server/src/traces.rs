//! Traces: a span for each request, with a child span for the store.
//!
//! The feature `otlp` builds them; the variables of OpenTelemetry, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, set the
//! endpoint. Without the feature or an endpoint there are no spans, and they cost nothing.

use clap::ValueEnum;

#[cfg(not(feature = "otlp"))]
mod disabled;
#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::disabled::{Tracing, are_enabled, request_span, store_span};
#[cfg(feature = "otlp")]
pub(crate) use self::otlp::{Tracing, are_enabled, request_span, store_span};

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
