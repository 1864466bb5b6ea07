//! Traces: one span for each request, and one in it for the store. Built with the feature `otlp`, and sent where the
//! variables of OpenTelemetry say (`OTEL_EXPORTER_OTLP_ENDPOINT`); otherwise nothing of it is there, not even its cost.

use clap::ValueEnum;

#[cfg(not(feature = "otlp"))]
mod absent;
#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::absent::{Tracing, are_sent, of_request, of_store, within};
#[cfg(feature = "otlp")]
pub(crate) use self::otlp::{Tracing, are_sent, of_request, of_store, within};

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}
