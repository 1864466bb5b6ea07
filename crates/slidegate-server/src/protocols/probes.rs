//! Endpoints of operators: `GET /readyz` and `/metrics`.

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slidegate_engine::{Engine, StatusSource, StoreStatus};
use utoipa::ToSchema;

use super::http::Problem;
use crate::metrics::Metrics;
use crate::request_metrics;

/// Readiness of the service, and known problems.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    ready: bool,
    /// State of the circuit breaker of a remote store. The store decides if `closed`; the fallback decides if `open`, `probing`
    /// or `recovering`.
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<&'static str>,
    /// Reason why the last operation of the store failed: `timeout`, `unavailable`, `full` or `refused`. Absent if it
    /// succeeded.
    // Without detail: the endpoint needs no token, and the error of a store may contain names of servers and users.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<&'static str>,
    /// Error of the configuration file, if the last reload failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    /// False while the runtime changes of operators are not loaded and not in force. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes_known: Option<bool>,
}

/// Reports readiness until the service stops. A failed store does not affect it, because other servers share the store.
pub(super) fn ready<S: StatusSource>(engine: &Engine<S>) -> Response {
    let ready = !engine.readiness().is_draining();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let StoreStatus { breaker, failure, .. } = engine.store().status();
    let store_error = failure.map(|failure| failure.reason.name());
    let changes_known = (!engine.readiness().are_changes_known()).then_some(false);
    let config_error = engine.readiness().config_error();
    (status, Json(Readiness { ready, breaker, store_error, config_error, changes_known })).into_response()
}

/// Renders the metrics for Prometheus.
pub(super) fn metrics<S: StatusSource>(engine: &Engine<S>, metrics: Option<&Metrics>) -> Response {
    const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    match metrics {
        Some(metrics) => {
            let mut text = metrics.render(engine.store());
            request_metrics::render(&mut text);
            ([(CONTENT_TYPE, TEXT)], text).into_response()
        }
        None => Problem::new(StatusCode::NOT_FOUND, "metrics are not available; the log has the reason")
            .into_response(),
    }
}
