//! The admin API, on its own listener.
//!
//! | | |
//! |---|---|
//! | `GET /v1/policies`, `/v1/policies/{policy}` | effective configuration, and decisions |
//! | `PUT`, `DELETE /v1/policies/{policy}/mode` | mode: enforce, shadow or off |
//! | `PUT`, `DELETE /v1/policies/{policy}/quotas`, `…/tiers/{tier}` | quotas of a policy or a tier |
//! | `GET`, `PUT`, `DELETE /v1/policies/{policy}/keys/{key}` | counts of a key; its quotas or tier |
//! | `POST /v1/policies/{policy}/reset` | resets all keys |
//! | `POST /v1/policies/{policy}/keys/{key}/reset`, `…/refund` | resets or refunds a key |
//! | `POST /v1/policies/{policy}/keys/{key}/block` | denies a key for a time |
//! | `GET /v1/changes`, `/v1/audit` | changes; audit log |
//! | `GET /v1/live` | decisions, store state and heavy hitters |
//! | `GET /openapi.json` | OpenAPI description |

mod auth;
mod body;
mod edit;
mod extract;
mod keys;
mod live;
mod openapi;
mod policies;
mod reset;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use serde::Serialize;
use slidegate_engine::changes::{AuditEntry, Change, ChangeController, ChangeError};
use slidegate_engine::{Authenticator, Rejection};
use utoipa::ToSchema;

use self::auth::Guard;
pub(crate) use self::live::{LiveResponse, PolicyLive};
pub(crate) use self::reset::PolicyReset;
use crate::protocols::http::Problem;

/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Returns the routes of the admin API behind the authenticator.
pub(crate) fn router(controller: Arc<ChangeController>, authenticator: Arc<Authenticator>) -> Router {
    let key = get(keys::inspect).put(keys::put).delete(keys::remove);
    Router::new()
        .route("/v1/policies", get(policies::list))
        .route("/v1/policies/{policy}", get(policies::get))
        .route("/v1/policies/{policy}/reset", post(reset::reset))
        .route("/v1/policies/{policy}/mode", put(policies::put_mode).delete(policies::remove_mode))
        .route("/v1/policies/{policy}/quotas", put(policies::put_quotas).delete(policies::remove_quotas))
        .route("/v1/policies/{policy}/tiers/{tier}", put(policies::put_tier).delete(policies::remove_tier))
        .route("/v1/policies/{policy}/keys/{key}", key)
        .route("/v1/policies/{policy}/keys/{key}/reset", post(keys::reset))
        .route("/v1/policies/{policy}/keys/{key}/refund", post(keys::refund))
        .route("/v1/policies/{policy}/keys/{key}/block", post(keys::block))
        .route("/v1/changes", get(changes))
        .route("/v1/audit", get(audit))
        .route("/v1/live", get(live::live))
        .route("/openapi.json", get(async || openapi::document()))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "unknown path; try GET /v1/policies"))
        .method_not_allowed_fallback(async || {
            let detail =
                "the path does not support this method; the Allow header lists the methods that it supports";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(Arc::new(Guard::new(authenticator)), auth::authorize))
        .with_state(controller)
}

/// All changes.
#[derive(Serialize, ToSchema)]
struct ChangesResponse {
    changes: Vec<Change>,
    /// Changes whose policy or tier is no longer in the file.
    not_in_force: Vec<ChangeNotInForce>,
}

/// A change that is not in force, with the reason.
#[derive(Serialize, ToSchema)]
struct ChangeNotInForce {
    change: Change,
    why: String,
}

/// Operations and expiries, latest first.
#[derive(Serialize, ToSchema)]
struct AuditResponse {
    audit: Vec<AuditEntry>,
}

async fn changes(State(controller): State<Arc<ChangeController>>) -> Response {
    let not_in_force =
        controller.not_in_force().into_iter().map(|(change, why)| ChangeNotInForce { change, why }).collect();
    Json(ChangesResponse { changes: controller.in_force(), not_in_force }).into_response()
}

async fn audit(State(controller): State<Arc<ChangeController>>) -> Response {
    Json(AuditResponse { audit: controller.changeset().audit.iter().cloned().collect() }).into_response()
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Invalid(rejection) => Self::from(rejection),
            ChangeError::NotFound(detail) => Self::new(StatusCode::NOT_FOUND, detail),
            ChangeError::NotStored(error) => {
                let outcome = if error.may_have_counted() {
                    "it is unknown whether the change was stored; check /v1/changes"
                } else {
                    "nothing was changed, because the change could not be stored"
                };
                let mut problem = Self::from(Rejection::from(error));
                problem.detail = format!("{outcome}: {}", problem.detail);
                problem
            }
        }
    }
}
