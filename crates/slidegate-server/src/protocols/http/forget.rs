//! `POST /v1/forget`: clears the counts of all keys of a policy.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{MethodRouter, any};
use serde::{Deserialize, Serialize};
use slidegate::store::Store;
use slidegate::{Clock, SystemClock, Verb};
use slidegate_engine::{Engine, Rejection};
use tracing::{Instrument, warn};
use utoipa::ToSchema;

use super::problem::Problem;
use super::{body, only_post};
use crate::protocols::headers::credentials;
use crate::request_metrics::record_rejection;
use crate::traces;

/// Time after which the response is 202 and the work continues. A large Redis takes longer than the timeout of a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Request to clear the counts of a policy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetRequest {
    /// Name of a policy of the configuration.
    #[schema(example = "api")]
    policy: String,
}

/// Result of clearing the counts of a policy.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForgetResponse {
    policy: String,
    /// Whether all counts are cleared. If not, the service continues.
    done: bool,
    /// Number of keys that had a count; null if the store does not report it, or has not finished.
    keys: Option<u64>,
}

pub(crate) fn route<S: Store + 'static>(body_timeout: Duration) -> MethodRouter<Arc<Engine<S>>> {
    any(only_post).post(async move |State(engine): State<Arc<Engine<S>>>, request: Request| {
        let span = traces::request_span("POST /v1/forget", request.headers().into());
        match forget(engine, request, body_timeout).instrument(span).await {
            Ok(response) => response,
            Err(rejection) => {
                record_rejection(&rejection);
                Problem::from(rejection).into_response()
            }
        }
    })
}

async fn forget<S: Store + 'static>(
    engine: Arc<Engine<S>>,
    request: Request,
    body_timeout: Duration,
) -> Result<Response, Rejection> {
    engine.tokens().admit(credentials(request.headers()), Verb::Reset)?;
    let ForgetRequest { policy } = body::read_single(request.into_body(), body_timeout).await?;
    let clock = SystemClock::default();
    let name = policy.clone();
    // A separate task continues when the client disconnects.
    let mut task = tokio::spawn(async move { engine.forget(&name).await });
    tokio::select! {
        result = &mut task => match result {
            Ok(keys) => Ok(Json(ForgetResponse { policy, done: true, keys: keys? }).into_response()),
            Err(error) => Ok(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()),
        },
        () = clock.sleep(RESPONSE_TIMEOUT.as_millis() as u64) => {
            let response = ForgetResponse { policy: policy.clone(), done: false, keys: None };
            tokio::spawn(async move {
                if let Ok(Err(error)) = task.await {
                    warn!(policy, %error, "not all counts of the policy were cleared; repeat the request");
                }
            });
            Ok((StatusCode::ACCEPTED, Json(response)).into_response())
        }
    }
}
