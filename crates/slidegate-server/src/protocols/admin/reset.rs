//! Reset of all keys of a policy.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slidegate::{Clock, SystemClock};
use slidegate_engine::Rejection;
use slidegate_engine::changes::{
    AuditAction, AuditEntry, ChangeError, OperationId, Part, Subject, Timestamp,
};
use tracing::warn;
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::{self, NoteFields, checked_note};
use super::edit::SharedController;
use super::extract::{PathParams, RawBody};
use crate::protocols::http::Problem;

/// Time after which the response is 202 and the reset continues. The scan of a large Redis can exceed a request's timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Response to a reset of a policy.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PolicyReset {
    /// Whether all keys are reset. If not, the reset continues, and the audit log has an entry when it completes.
    pub(crate) done: bool,
    /// Number of keys reset; null if the store does not count them, or while the reset continues.
    pub(crate) keys: Option<u64>,
    #[serde(skip_deserializing)]
    audit: Option<AuditEntry>,
    /// Whether the audit entry is stored.
    #[serde(skip_deserializing)]
    kept: bool,
}

impl PolicyReset {
    /// A completed reset without an audit entry.
    pub(crate) fn completed(keys: Option<u64>) -> Self {
        Self { done: true, keys, audit: None, kept: false }
    }
}

pub(super) async fn reset(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams(policy): PathParams<String>,
    RawBody(body): RawBody,
) -> Response {
    let decode = || -> Result<Option<String>, Rejection> {
        let fields: NoteFields = body::read(&body)?;
        let note = checked_note(fields.note)?;
        controller.engine().policies().entry(&policy)?;
        Ok(note)
    };
    let note = match decode() {
        Ok(note) => note,
        Err(rejection) => return Problem::from(rejection).into_response(),
    };
    // A separate task, which continues if the client disconnects.
    let clock = SystemClock::default();
    let mut task = tokio::spawn(reset_all(controller, caller, policy.clone(), note));
    tokio::select! {
        result = &mut task => match result {
            Ok(Ok(reset)) => Json(reset).into_response(),
            Ok(Err(error)) => Problem::from(error).into_response(),
            Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        },
        () = clock.sleep(RESPONSE_TIMEOUT.as_millis() as u64) => {
            tokio::spawn(async move {
                if let Ok(Err(error)) = task.await {
                    warn!(policy, ?error, "the reset of the policy failed before it was complete; reset it again");
                }
            });
            let unfinished = PolicyReset { done: false, keys: None, audit: None, kept: false };
            (StatusCode::ACCEPTED, Json(unfinished)).into_response()
        }
    }
}

async fn reset_all(
    controller: SharedController,
    caller: Caller,
    policy: String,
    note: Option<String>,
) -> Result<PolicyReset, ChangeError> {
    let engine = controller.engine();
    let keys = engine.forget(&policy).await?;
    let now_ms = engine.clock().now_ms();
    let entry = AuditEntry {
        id: OperationId::default(),
        at: Timestamp(now_ms),
        by: caller.0,
        action: AuditAction::Reset,
        subject: Subject { policy, part: Part::Keys },
        before: json!({ "keys": keys }),
        after: Value::Null,
        note,
    };
    let (entry, kept) = controller.record(entry).await;
    Ok(PolicyReset { done: true, keys, audit: Some(entry), kept })
}
