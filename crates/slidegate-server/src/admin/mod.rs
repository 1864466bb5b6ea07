//! The admin API, on a listener of its own.
//!
//! | | |
//! |---|---|
//! | `GET /v1/policies`, `/v1/policies/{policy}` | what is in force, and how it is doing |
//! | `PUT`, `DELETE /v1/policies/{policy}/mode` | enforce, shadow or off |
//! | `PUT`, `DELETE /v1/policies/{policy}/quotas`, `…/tiers/{tier}` | other limits |
//! | `GET`, `PUT`, `DELETE /v1/policies/{policy}/keys/{key}` | a key's counts; limits of its own |
//! | `POST /v1/policies/{policy}/reset` | forgets all keys |
//! | `POST /v1/policies/{policy}/keys/{key}/reset`, `…/refund` | gives back |
//! | `POST /v1/policies/{policy}/keys/{key}/block` | denies it for a time |
//! | `GET /v1/changes`, `/v1/audit` | what is changed; who changed what |
//! | `GET /v1/live` | decisions and the keys that stand out |
//! | `GET /openapi.json` | all of this for programs |

mod auth;
mod body;
mod changing;
mod forgetting;
mod keys;
mod live;
mod openapi;
mod parts;
mod policies;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use serde::Serialize;
use utoipa::ToSchema;

use self::auth::Guard;
pub(crate) use self::forgetting::Forgotten;
pub(crate) use self::live::{LiveAnswer, PolicyLive};
use crate::changes::{AuditEntry, Change, Desk, DeskError};
use crate::http::Problem;
use crate::tokens::Admission;

/// No body of this API is larger.
const MOST_BODY_BYTES: usize = 64 << 10;

/// The routes over what `desk` keeps, for those who are let in.
pub(crate) fn router(desk: Arc<Desk>, admission: Arc<Admission>) -> Router {
    let key = get(keys::inspect).put(keys::put).delete(keys::remove);
    Router::new()
        .route("/v1/policies", get(policies::list))
        .route("/v1/policies/{policy}", get(policies::one))
        .route("/v1/policies/{policy}/reset", post(forgetting::reset))
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
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path; try GET /v1/policies")
        })
        .method_not_allowed_fallback(async || {
            let detail = "this path does not take this method; the Allow header names those that it takes";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .layer(from_fn_with_state(Arc::new(Guard::new(admission)), auth::admit))
        .with_state(desk)
}

/// What differs from the file.
#[derive(Serialize, ToSchema)]
struct ChangesAnswer {
    changes: Vec<Change>,
    /// Those that the file has no place for any more.
    not_in_force: Vec<Idle>,
}

/// A change that is not in force, and why.
#[derive(Serialize, ToSchema)]
struct Idle {
    change: Change,
    why: String,
}

/// What was done and what has ended by itself, the latest first.
#[derive(Serialize, ToSchema)]
struct AuditAnswer {
    audit: Vec<AuditEntry>,
}

async fn changes(State(desk): State<Arc<Desk>>) -> Response {
    let not_in_force = desk.idle().into_iter().map(|(change, why)| Idle { change, why }).collect();
    Json(ChangesAnswer { changes: desk.in_force(), not_in_force }).into_response()
}

async fn audit(State(desk): State<Arc<Desk>>) -> Response {
    Json(AuditAnswer { audit: desk.book().audit.iter().cloned().collect() }).into_response()
}

impl IntoResponse for DeskError {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(refusal) => Problem::from(refusal).into_response(),
            Self::Absent(detail) => Problem::new(StatusCode::NOT_FOUND, detail).into_response(),
            Self::NotKept(error) => {
                let what = if error.may_have_counted() {
                    "it is not known whether it was changed; look at /v1/changes in a while"
                } else {
                    "nothing was changed, because it could not be kept"
                };
                let mut problem = Problem::from(crate::request::Refusal::from(error));
                problem.detail = format!("{what}: {}", problem.detail);
                problem.into_response()
            }
        }
    }
}
