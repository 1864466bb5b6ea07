//! Routes of the HTTP listener that are not decisions: `POST /v1/forget`, `ANY /forward-auth/{policy}`, `POST /json`,
//! `POST /throttle`, and `GET /healthz`, `/healthcheck`, `/readyz`, `/metrics`, `/openapi.json`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{any, get};
use slidegate::Verb;
use slidegate::store::Store;
use slidegate_config::Limits;
use slidegate_engine::{Engine, StatusSource};

use super::http::{Problem, forget, only_post};
use super::{forward_auth, openapi, probes, rls, throttlecrab};
use crate::metrics::Metrics;

/// Returns the router of the HTTP listener, without the decisions.
pub(crate) fn router<S: Store + StatusSource + 'static>(
    engine: Arc<Engine<S>>,
    limits: Limits,
    metrics: Option<Metrics>,
) -> Router {
    let decisions = Verb::ALL.iter().fold(Router::new(), |router, verb| {
        // `http` decides requests by POST itself.
        router.route(&format!("/v1/{verb}"), any(only_post))
    });
    decisions
        .route("/v1/forget", forget::route(limits.body_timeout))
        .route("/forward-auth/{policy}", forward_auth::route())
        .route("/forward-auth/{policy}/", forward_auth::route())
        .route("/forward-auth/{policy}/{*subpath}", forward_auth::route())
        .route("/healthz", get(async || "ok\n"))
        .route("/json", rls::http::json(limits.body_timeout))
        .route("/healthcheck", rls::http::healthcheck())
        .route("/throttle", throttlecrab::route(limits.body_timeout))
        .route("/openapi.json", get(async || openapi::document()))
        .route("/readyz", get(async |State(engine): State<Arc<Engine<S>>>| probes::ready(&engine)))
        .route(
            "/metrics",
            get(async move |State(engine): State<Arc<Engine<S>>>| probes::metrics(&engine, metrics.as_ref())),
        )
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "unknown path; try POST /v1/check"))
        .method_not_allowed_fallback(async || unsupported_method())
        .with_state(engine)
}

fn unsupported_method() -> Problem {
    let detail = "the path does not support this method; the Allow header lists the methods that it supports";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
