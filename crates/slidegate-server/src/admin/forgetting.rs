//! Forgets what all keys of a policy have spent.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slidegate::{Clock, SystemClock};
use tracing::warn;
use utoipa::ToSchema;

use super::auth::Who;
use super::body::{self, NoteFields, checked_note};
use super::changing::Desked;
use super::parts::{InBody, InPath};
use crate::changes::{Action, AuditEntry, DeskError, Moment, Part, Stamp, Subject};
use crate::http::Problem;
use crate::request::Refusal;

/// After this the response says that the work goes on: a large Redis is gone through for longer than a request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answer to a reset of a policy.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Forgotten {
    /// Whether all keys are forgotten. If not, it goes on, and the audit has an entry at its end.
    pub(crate) done: bool,
    /// How many keys there were; null if the store does not count them, or not yet.
    pub(crate) keys: Option<u64>,
    #[serde(skip_deserializing)]
    audit: Option<AuditEntry>,
    /// Whether the audit entry could be stored.
    #[serde(skip_deserializing)]
    kept: bool,
}

impl Forgotten {
    /// All keys, without an audit.
    pub(crate) fn all(keys: Option<u64>) -> Self {
        Self { done: true, keys, audit: None, kept: false }
    }
}

pub(super) async fn reset(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath(policy): InPath<String>,
    InBody(body): InBody,
) -> Response {
    let read = || -> Result<Option<String>, Refusal> {
        let fields: NoteFields = body::read(&body)?;
        let note = checked_note(fields.note)?;
        desk.app().policies().source(&policy)?;
        Ok(note)
    };
    let note = match read() {
        Ok(note) => note,
        Err(refusal) => return Problem::from(refusal).into_response(),
    };
    // A task of its own, which goes on when the client has hung up.
    let clock = SystemClock::default();
    let mut forgetting = tokio::spawn(forget(desk, who, policy.clone(), note));
    tokio::select! {
        forgotten = &mut forgetting => match forgotten {
            Ok(Ok(forgotten)) => Json(forgotten).into_response(),
            Ok(Err(error)) => error.into_response(),
            Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        },
        () = clock.sleep(PATIENCE.as_millis() as u64) => {
            tokio::spawn(async move {
                if let Ok(Err(error)) = forgetting.await {
                    warn!(policy, ?error, "not all keys of the policy were forgotten; reset it again");
                }
            });
            let unfinished = Forgotten { done: false, keys: None, audit: None, kept: false };
            (StatusCode::ACCEPTED, Json(unfinished)).into_response()
        }
    }
}

async fn forget(
    desk: Desked,
    who: Who,
    policy: String,
    note: Option<String>,
) -> Result<Forgotten, DeskError> {
    let app = desk.app();
    let keys = app.forget(&policy).await?;
    let now_ms = app.clock().now_ms();
    let entry = AuditEntry {
        id: Stamp::default(),
        at: Moment(now_ms),
        by: who.0,
        action: Action::Reset,
        subject: Subject { policy, part: Part::Keys },
        before: json!({ "keys": keys }),
        after: Value::Null,
        note,
    };
    let (entry, kept) = desk.record(entry).await;
    Ok(Forgotten { done: true, keys, audit: Some(entry), kept })
}
