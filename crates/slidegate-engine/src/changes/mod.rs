//! Runtime changes of operators: persisted beside the counts, in force on every node that shares the store.

mod changeset;
mod combine;
mod controller;
mod expiry;
mod merge;
mod operation_id;
mod persistence;
mod timestamp;

pub use self::changeset::{AuditAction, AuditEntry, Change, Part, Setting, Subject};
pub use self::combine::Base;
pub use self::controller::{ChangeController, ChangeError};
pub use self::operation_id::OperationId;
pub use self::persistence::Persistence;
pub use self::timestamp::Timestamp;
