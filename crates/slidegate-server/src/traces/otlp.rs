//! Traces that are exported by OTLP over gRPC.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use super::{LogFormat, TraceContext};
use crate::environment;

/// Target of the spans, which separates them from log events.
const TARGET: &str = "slidegate::trace";
/// Variables that set the endpoint. Without either, no spans are created.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Whether traces are exported. A static, because the per-layer filters of `tracing_subscriber` keep state between the check
/// whether a span is enabled and its creation: a check without a creation makes them drop the next log event.
static ARE_ENABLED: AtomicBool = AtomicBool::new(false);

/// The installed subscriber for logs and spans.
pub(crate) struct Tracing(Option<SdkTracerProvider>);

impl Tracing {
    /// Installs a subscriber that logs to standard error, and exports spans if an endpoint is set. Requires a tokio runtime.
    pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> Self {
        let provider = provider();
        let log = fmt::layer().with_writer(io::stderr);
        let log = match format {
            LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).boxed(),
            LogFormat::Json => log.json().flatten_event(true).boxed(),
        };
        let spans = provider.as_ref().ok().and_then(Option::as_ref).map(|provider| {
            let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("slidegate"));
            layer.with_filter(filter_fn(|metadata| metadata.target() == TARGET))
        });
        let has_spans = spans.is_some();
        let is_logged = filter.and(filter_fn(|metadata| metadata.target() != TARGET));
        // Fails if the process already has a subscriber, which then stays.
        if registry().with(log.with_filter(is_logged)).with(spans).try_init().is_ok() {
            ARE_ENABLED.store(has_spans, Ordering::Relaxed);
        }
        if let Err(error) = &provider {
            warn!(error, "cannot create the trace exporter; no traces are sent");
        }
        Self(provider.ok().flatten())
    }

    /// Exports the remaining spans.
    pub(crate) fn finish(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            warn!(%error, "the last traces may not have been sent");
        }
    }
}

fn provider() -> Result<Option<SdkTracerProvider>, String> {
    if ENDPOINTS.iter().all(|name| environment::variable(name).is_none()) {
        return Ok(None);
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .build()
        .map_err(|error| error.to_string())?;
    let mut resource = Resource::builder();
    if environment::variable("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("slidegate");
    }
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
    Ok(Some(provider.build()))
}

impl Extractor for TraceContext<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = match key {
            "traceparent" => self.traceparent,
            "tracestate" => self.tracestate,
            _ => None,
        };
        str::from_utf8(value?).ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Returns the span of a request named `name`, a child of the span in its headers.
pub(crate) fn request_span(name: &'static str, context: TraceContext<'_>) -> Span {
    if !ARE_ENABLED.load(Ordering::Relaxed) {
        return Span::none();
    }
    let span = info_span!(target: TARGET, "request", otel.name = name, otel.kind = "server");
    if !span.is_disabled() {
        // Fails only without a subscriber.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&context));
    }
    span
}

/// Returns the span of a call of a remote store.
pub(crate) fn store_span() -> Span {
    if !ARE_ENABLED.load(Ordering::Relaxed) {
        return Span::none();
    }
    info_span!(target: TARGET, "store", otel.kind = "client")
}
