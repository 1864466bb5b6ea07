//! Runtime changes of operators: persisted beside the counts, in force on every node that shares the store.

mod changeset;
mod combine;
mod controller;
mod expiry;
mod merge;
mod operation_id;
mod persistence;
mod timestamp;

pub(crate) use self::changeset::{Action, AuditEntry, Change, Part, Setting, Subject};
pub(crate) use self::combine::Base;
pub(crate) use self::controller::{ChangeController, ChangeError};
pub(crate) use self::operation_id::OperationId;
pub(crate) use self::persistence::Persistence;
pub(crate) use self::timestamp::Timestamp;
