//! The admin API, on a listener of its own.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use slidegate::Store;

use crate::app::App;

/// The routes over `app`.
pub fn router<S: Store + 'static>(app: Arc<App<S>>) -> Router {
    Router::new().route("/v1/policies", get(list::<S>)).with_state(app)
}

/// A policy as it is in force.
#[derive(Serialize)]
struct PolicyAnswer {
    name: String,
    quotas: Vec<String>,
}

async fn list<S: Store>(State(app): State<Arc<App<S>>>) -> Json<Vec<PolicyAnswer>> {
    let policies = app.policies();
    let answer = policies.iter().map(|policy| PolicyAnswer {
        name: policy.name().to_owned(),
        quotas: policy.quotas().iter().map(ToString::to_string).collect(),
    });
    Json(answer.collect())
}
