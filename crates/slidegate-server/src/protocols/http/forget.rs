//! `POST /v1/forget`: forgets what all keys of a policy have spent.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{MethodRouter, any};
use metrics::counter;
use serde::{Deserialize, Serialize};
use slidegate::store::Store;
use slidegate::{Clock, SystemClock, Verb};
use tracing::{debug, warn};
use utoipa::ToSchema;

use super::problem::Problem;
use super::{body, only_post};
use crate::app::App;
use crate::request::Rejection;

/// Time after which the response is 202 and the work goes on: a large Redis takes longer than a request may.
const MAX_WAITING: Duration = Duration::from_secs(10);

/// A policy of the configuration.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ForgetRequest {
    #[schema(example = "api")]
    policy: String,
}

/// Result of forgetting a policy.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ForgetResponse {
    policy: String,
    /// Whether all keys are forgotten. If not, the service goes on.
    done: bool,
    /// Number of keys that had a count; null if the store does not count them, or has not finished.
    keys: Option<u64>,
}

pub(super) fn route<S: Store + 'static>(body_timeout: Duration) -> MethodRouter<Arc<App<S>>> {
    any(only_post).post(async move |State(app): State<Arc<App<S>>>, request: Request| {
        match forget(app, request, body_timeout).await {
            Ok(response) => response,
            Err(rejection) => {
                debug!(kind = ?rejection.kind, why = rejection.detail, "refused");
                counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
                Problem::from(rejection).into_response()
            }
        }
    })
}

async fn forget<S: Store + 'static>(
    app: Arc<App<S>>,
    request: Request,
    body_timeout: Duration,
) -> Result<Response, Rejection> {
    app.tokens().admit(request.headers(), Verb::Reset)?;
    let ForgetRequest { policy } = body::read_single(request.into_body(), body_timeout).await?;
    let clock = SystemClock::default();
    let name = policy.clone();
    // A task of its own, which goes on when the client disconnects.
    let mut forgetting = tokio::spawn(async move { app.forget(&name).await });
    tokio::select! {
        forgotten = &mut forgetting => match forgotten {
            Ok(keys) => Ok(Json(ForgetResponse { policy, done: true, keys: keys? }).into_response()),
            Err(error) => Ok(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()),
        },
        () = clock.sleep(MAX_WAITING.as_millis() as u64) => {
            let unfinished = ForgetResponse { policy: policy.clone(), done: false, keys: None };
            tokio::spawn(async move {
                if let Ok(Err(error)) = forgetting.await {
                    warn!(policy, %error, "not all keys of the policy were forgotten; repeat the request");
                }
            });
            Ok((StatusCode::ACCEPTED, Json(unfinished)).into_response())
        }
    }
}
