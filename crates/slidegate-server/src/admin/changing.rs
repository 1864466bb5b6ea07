//! Changes are made, kept, written down, and told.

use std::sync::Arc;

use axum::response::{IntoResponse, Json, Response};

use super::auth::Who;
use super::body::ChangeFields;
use crate::changes::{Action, AuditEntry, Change, Desk, DeskError, Moment, Stamp, Subject, What};
use crate::request::Refusal;

/// Puts a change in force.
pub(super) async fn put(
    desk: &Desk,
    who: Who,
    subject: Subject,
    fields: &ChangeFields,
    what: What,
) -> Response {
    let now_ms = desk.app().clock().now_ms();
    let change = || -> Result<Change, DeskError> {
        let (until, note) = (fields.end(now_ms)?, fields.note()?);
        Ok(Change { id: Stamp::default(), subject, what, until, by: who.0, at: Moment(now_ms), note })
    };
    let change = match change() {
        Ok(change) => change,
        Err(error) => return error.into_response(),
    };
    let edited = desk.change(|book, base| {
        base.admits(&change)?;
        let before =
            book.find(&change.subject, now_ms).map_or_else(|| base.told(&change.subject), Change::told);
        let put = book.put(change.clone(), now_ms);
        let entry = AuditEntry {
            id: put.map_err(|why| Refusal::out_of_range("changes", why))?,
            at: change.at,
            by: change.by.clone(),
            action: Action::Set,
            subject: change.subject.clone(),
            before,
            after: change.told(),
            note: change.note.clone(),
        };
        book.write_down(entry.clone());
        Ok(entry)
    });
    answer(desk, edited.await)
}

/// Makes it as the file has it.
pub(super) async fn remove(desk: &Desk, who: Who, subject: Subject) -> Response {
    let now_ms = desk.app().clock().now_ms();
    let edited = desk.change(|book, base| {
        let before = book.find(&subject, now_ms).map(Change::told);
        let (Some(id), Some(before)) = (book.remove(&subject, now_ms), before) else {
            return Err(DeskError::Absent("nothing is changed there; it is as the file has it".to_owned()));
        };
        let entry = AuditEntry {
            id,
            at: Moment(now_ms),
            by: who.0.clone(),
            action: Action::Remove,
            subject: subject.clone(),
            before,
            after: base.told(&subject),
            note: None,
        };
        book.write_down(entry.clone());
        Ok(entry)
    });
    answer(desk, edited.await)
}

fn answer(desk: &Desk, edited: Result<AuditEntry, DeskError>) -> Response {
    match edited {
        Ok(entry) => {
            desk.log(&entry);
            Json(entry).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// The desk's own.
pub(super) type Desked = Arc<Desk>;
