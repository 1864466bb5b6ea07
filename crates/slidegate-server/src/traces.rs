//! Traces: a span for each request, with a child span for the store.
//!
//! The feature `otlp` builds them; the variables of OpenTelemetry, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, set the
//! endpoint. Without the feature or an endpoint there are no spans, and they cost nothing.

use axum::http::{HeaderMap, HeaderValue};
use clap::ValueEnum;

#[cfg(not(feature = "otlp"))]
mod disabled;
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
