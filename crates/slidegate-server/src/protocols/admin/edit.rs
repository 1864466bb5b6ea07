//! Setting and removing a change, with an audit entry and a response.

use std::sync::Arc;

use axum::response::{IntoResponse, Json, Response};
use slidegate_engine::Rejection;
use slidegate_engine::changes::{
    AuditAction, AuditEntry, Change, ChangeController, ChangeError, OperationId, Setting, Subject, Timestamp,
};

use super::auth::Caller;
use super::body::ChangeFields;
use crate::protocols::http::Problem;

/// Sets a change.
pub(super) async fn put(
    controller: &ChangeController,
    caller: Caller,
    subject: Subject,
    fields: &ChangeFields,
    setting: Setting,
) -> Response {
    let now_ms = controller.engine().clock().now_ms();
    let change = || -> Result<Change, ChangeError> {
        let (until, note) = (fields.expires_at(now_ms)?, fields.note()?);
        Ok(Change {
            id: OperationId::default(),
            subject,
            setting,
            until,
            by: caller.0,
            at: Timestamp(now_ms),
            note,
        })
    };
    let change = match change() {
        Ok(change) => change,
        Err(error) => return Problem::from(error).into_response(),
    };
    let edited = controller.change(|changeset, base| {
        base.validate(&change)?;
        let before = changeset
            .find(&change.subject, now_ms)
            .map_or_else(|| base.value_of(&change.subject), Change::to_json);
        let put = changeset.put(change.clone(), now_ms);
        let entry = AuditEntry {
            id: put.map_err(|detail| Rejection::out_of_range("changes", detail))?,
            at: change.at,
            by: change.by.clone(),
            action: AuditAction::Set,
            subject: change.subject.clone(),
            before,
            after: change.to_json(),
            note: change.note.clone(),
        };
        changeset.record(entry.clone());
        Ok(entry)
    });
    respond(controller, edited.await)
}

/// Removes all changes of a subject, so that the file applies again.
pub(super) async fn remove(controller: &ChangeController, caller: Caller, subject: Subject) -> Response {
    let now_ms = controller.engine().clock().now_ms();
    let edited = controller.change(|changeset, base| {
        let before = changeset.find(&subject, now_ms).map(Change::to_json);
        let (Some(id), Some(before)) = (changeset.remove(&subject, now_ms), before) else {
            return Err(ChangeError::NotFound(
                "there is no change to remove; the value of the file is in force".to_owned(),
            ));
        };
        let entry = AuditEntry {
            id,
            at: Timestamp(now_ms),
            by: caller.0.clone(),
            action: AuditAction::Remove,
            subject: subject.clone(),
            before,
            after: base.value_of(&subject),
            note: None,
        };
        changeset.record(entry.clone());
        Ok(entry)
    });
    respond(controller, edited.await)
}

fn respond(controller: &ChangeController, edited: Result<AuditEntry, ChangeError>) -> Response {
    match edited {
        Ok(entry) => {
            controller.log(&entry);
            Json(entry).into_response()
        }
        Err(error) => Problem::from(error).into_response(),
    }
}

/// State of the handlers.
pub(super) type SharedController = Arc<ChangeController>;
