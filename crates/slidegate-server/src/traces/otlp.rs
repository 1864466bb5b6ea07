//! Sent by OTLP over gRPC.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Instrument, Span, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use super::LogFormat;
use crate::environment;

/// What spans are told apart by from what is logged.
const TARGET: &str = "slidegate::trace";
/// Either says where to send them. If neither does, they are not made.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Known by heart: to ask the subscriber whether it would take a span, and then to make none, has it drop the next line of the
/// log instead.
static ARE_SENT: AtomicBool = AtomicBool::new(false);

/// What takes note of what happens.
pub(crate) struct Tracing(Option<SdkTracerProvider>);

impl Tracing {
    /// Logs to standard error from now on, and sends spans if there is somewhere to send them. Within a tokio runtime.
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
        // A second subscriber in one process is refused; the first one stays, and that is as good.
        if registry().with(log.with_filter(is_logged)).with(spans).try_init().is_ok() {
            ARE_SENT.store(has_spans, Ordering::Relaxed);
        }
        if let Err(error) = &provider {
            warn!(error, "no traces are sent");
        }
        Self(provider.ok().flatten())
    }

    /// Sends what has not been sent yet.
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

/// Whether there is somewhere to send them.
pub(crate) fn are_sent() -> bool {
    ARE_SENT.load(Ordering::Relaxed)
}

/// The headers of a request, of which `traceparent` says what it is a part of.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

/// The span of a request called `name`, as a part of what its headers say.
pub(crate) fn of_request(name: &'static str, headers: &HeaderMap) -> Span {
    let span = info_span!(target: TARGET, "request", otel.name = name, otel.kind = "server");
    if !span.is_disabled() {
        // It fails only if nobody listens.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&Headers(headers)));
    }
    span
}

/// What a store that is elsewhere takes of it.
pub(crate) fn of_store() -> Span {
    info_span!(target: TARGET, "store", otel.kind = "client")
}

pub(crate) fn within<F: Future>(span: Span, work: F) -> impl Future<Output = F::Output> {
    work.instrument(span)
}
