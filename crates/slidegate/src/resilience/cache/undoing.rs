//! What ends denials before their time.

use slidegate_core::{Policy, Verb};

use super::count::Why;
use super::table::{Identity, Table};

/// Whether a verb may end a denial.
pub(super) fn undone_by(verb: Verb) -> Option<Why> {
    match verb {
        Verb::Check | Verb::Peek | Verb::Charge => None,
        Verb::Refund => Some(Why::Refund),
        // A block takes the place of another, which may end later.
        Verb::Reset | Verb::Block => Some(Why::Reset),
    }
}

/// A refund or a reset on its way.
///
/// What is known of the key is dropped when it is sent and again when it is over, be it answered or given up. A denial
/// that the store decided before the refund was also sent before that was over: if it arrives by then it is dropped
/// with the rest, and if it arrives later it is not remembered, for the epoch is another one.
pub(super) struct Undoing<'a> {
    table: &'a Table,
    identity: Identity,
    why: Why,
}

impl<'a> Undoing<'a> {
    pub(super) fn begin(table: &'a Table, identity: Identity, why: Why) -> Self {
        table.forget(identity, why);
        Self { table, identity, why }
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }
}

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        self.table.forget(self.identity, self.why);
    }
}

/// All keys of a policy being forgotten: denials of it end as those of one key do by an [`Undoing`].
pub(super) struct Forgetting<'a> {
    table: &'a Table,
    policy: &'a Policy,
}

impl<'a> Forgetting<'a> {
    pub(super) fn begin(table: &'a Table, policy: &'a Policy) -> Self {
        table.forget_policy(policy);
        Self { table, policy }
    }
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.table.forget_policy(self.policy);
    }
}
