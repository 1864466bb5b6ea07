//! `GET /healthz`, `/readyz` and `/metrics`: what is asked by those who look after it.

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use super::request_timings;
use crate::app::App;
use crate::metrics::Metrics;
use crate::store_status::{StatusSource, StoreStatus};

/// Whether to send requests here, and what one should know before.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    ready: bool,
    /// How the store is doing: `closed` if it is asked, `open`, `probing` or `recovering` if others decide for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<&'static str>,
    /// Why the store did not decide when it was last asked, if it did not: `timeout`, `unavailable`, `full` or `refused`.
    // No more than that: anybody may ask, and what a store says may name servers and users.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<&'static str>,
    /// Why the file that is there is not the one in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    /// Written, and false, as long as it is not known what operators have changed: their changes are not in force then.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes_known: Option<bool>,
}

/// Ready until it stops. A store that is away is no reason to go elsewhere, where it is away as well.
pub(super) fn ready<S: StatusSource>(app: &App<S>) -> Response {
    let ready = !app.is_stopping();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let StoreStatus { breaker, failure, .. } = app.store().report();
    let store_error = failure.map(|failure| failure.reason.name());
    let changes_known = (!app.are_changes_known()).then_some(false);
    let config_error = app.config_error();
    (status, Json(Readiness { ready, breaker, store_error, config_error, changes_known })).into_response()
}

pub(super) fn metrics<S: StatusSource>(app: &App<S>, metrics: Option<&Metrics>) -> Response {
    const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    match metrics {
        Some(metrics) => {
            let mut text = metrics.render(app.store());
            request_timings::render(&mut text);
            ([(CONTENT_TYPE, TEXT)], text).into_response()
        }
        None => Problem::new(StatusCode::NOT_FOUND, "nothing is counted in this process").into_response(),
    }
}
