//! What operators change while the service runs: kept where the counts are, in force on every node that shares them.

mod book;
mod combine;
mod desk;
mod ended;
mod keeper;
mod merge;
mod moment;
mod stamp;

pub(crate) use self::book::{Action, AuditEntry, Change, Part, Subject, What};
pub(crate) use self::combine::Base;
pub(crate) use self::desk::{Desk, DeskError};
pub(crate) use self::keeper::Keeper;
pub(crate) use self::moment::Moment;
pub(crate) use self::stamp::Stamp;
