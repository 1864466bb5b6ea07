//! Merges documents of changes. No change that was acknowledged with 200 is lost, and no removed change returns.
//!
//! The store holds one document. It can lose it (a flush), return an older one (a backup, a lagging replica), or receive
//! one from a node that has not read the latest one. In these cases no version or write count shows which of two documents
//! is newer. Nodes therefore merge their own document with that of the store, item by item:
//!
//! - Each change and each removal has an identity, an [`OperationId`], which also orders them.
//! - An item *covers* another item of the same subject if it is not older and does not expire earlier. Covered items are
//!   dropped: a change replaces the changes that it covers, and a change that expires later is in force again afterwards.
//! - A removal is an item without a setting. The removal of a `DELETE` covers all items before it. The removal of an expired
//!   change has the identity and the expiry of that change, and so covers it.
//! - The result is the union of both documents without covered items. Merging is commutative, associative and idempotent.
//!   Of two concurrent changes of one subject, the one with the later identity is in force.
//! - The audit log is the union by identity, for expiries by the identity of the expired change. It keeps the latest
//!   [`MAX_AUDIT_ENTRIES`] entries.
//! - At most the latest [`MAX_REMOVALS`] removals are kept. Removals of expired changes are dropped when they are a day
//!   older than the latest item. Removals of a `DELETE` have no maximum age, so no node with a wrong clock can drop them.
//!
//! A node writes the merged document back if the document of the store lacks an item.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::changeset::{AuditAction, AuditEntry, Change, Changeset, Subject};
use super::operation_id::OperationId;
use super::timestamp::Timestamp;

/// Maximum number of entries in the audit log. The process log has all of them.
pub(super) const MAX_AUDIT_ENTRIES: usize = 500;
/// Maximum number of removals: all changes can expire at once.
const MAX_REMOVALS: usize = super::changeset::MAX_CHANGES;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const EXPIRY_RETENTION_MS: u64 = DAY_MS;

/// Returns the expiry, or the largest number without one.
fn end_ms(until: Option<Timestamp>) -> u64 {
    until.map_or(u64::MAX, |until| until.0)
}

impl Changeset {
    /// Parses a document, including those of older builds.
    pub(super) fn read(text: &str) -> Result<Self, serde_json::Error> {
        let mut changeset: Self = serde_json::from_str(text)?;
        let mut last_ms = 0;
        for change in changeset.changes.iter_mut().filter(|change| change.id.is_missing()) {
            // Older builds ordered changes by their position in the list.
            last_ms = change.at.0.max(last_ms + 1);
            change.id = OperationId::from_content(last_ms, change);
        }
        for entry in changeset.audit.iter_mut().filter(|entry| entry.id.is_missing()) {
            entry.id = OperationId::from_content(entry.at.0, entry);
        }
        changeset.normalize();
        Ok(changeset)
    }

    /// Returns the merge of both documents.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.generation = self.generation.max(other.generation);
        merged.changes.extend_from_slice(&other.changes);
        merged.removals.extend_from_slice(&other.removals);
        merged.audit.extend(other.audit.iter().cloned());
        merged.normalize();
        merged
    }

    /// Returns whether merging `other` into this document adds no item.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let merged = self.merged(other);
        let changes: HashSet<OperationId> = self.changes.iter().map(|change| change.id).collect();
        let removals: HashSet<OperationId> = self.removals.iter().map(|removal| removal.id).collect();
        let entries: HashSet<OperationId> = self.audit.iter().map(|entry| entry.id).collect();
        merged.changes.iter().all(|change| changes.contains(&change.id))
            && merged.removals.iter().all(|removal| removals.contains(&removal.id))
            && merged.audit.iter().all(|entry| entries.contains(&entry.id))
    }

    /// Returns a new identity, later than all identities in the document.
    pub fn next_id(&self, now_ms: u64) -> OperationId {
        OperationId::new(now_ms.max(self.latest_ms().saturating_add(1)))
    }

    fn latest_ms(&self) -> u64 {
        let changes = self.changes.iter().map(|change| change.id.ms);
        let removals = self.removals.iter().map(|removal| removal.made_ms);
        let entries = self.audit.iter().map(|entry| entry.id.ms);
        changes.chain(removals).chain(entries).max().unwrap_or(0)
    }

    /// Drops covered and duplicate items and those beyond the maximum numbers, and sorts the rest.
    pub(super) fn normalize(&mut self) {
        self.drop_covered();
        let latest_ms = self.latest_ms();
        self.removals.retain(|removal| {
            removal.until.is_none() || latest_ms.saturating_sub(removal.made_ms) <= EXPIRY_RETENTION_MS
        });
        self.removals.sort_by_key(|removal| Reverse((removal.made_ms, removal.id)));
        self.removals.truncate(MAX_REMOVALS);
        let audit = self.audit.make_contiguous();
        audit.sort_by(|one, other| other.id.cmp(&one.id).then_with(|| text(one).cmp(&text(other))));
        let mut entries: Vec<AuditEntry> = std::mem::take(&mut self.audit).into();
        entries.dedup_by_key(|entry| entry.id);
        // Two nodes can record one expiry under identities of different times, but the random part is that of the change.
        let mut expired = HashSet::new();
        entries.retain(|entry| {
            entry.action != AuditAction::Expire || expired.insert((entry.id.random, entry.at))
        });
        entries.truncate(MAX_AUDIT_ENTRIES);
        self.audit = entries.into();
    }

    fn drop_covered(&mut self) {
        // Latest first, so that all items that can cover an item precede it. A removal precedes the change with the same
        // identity.
        self.removals.sort_by_key(|removal| Reverse((removal.id, end_ms(removal.until), removal.made_ms)));
        self.changes.sort_by(|one, other| {
            let key = |change: &Change| Reverse((change.id, end_ms(change.until)));
            key(one).cmp(&key(other)).then_with(|| text(one).cmp(&text(other)))
        });
        let mut removals = std::mem::take(&mut self.removals).into_iter().peekable();
        let mut changes = std::mem::take(&mut self.changes).into_iter().peekable();
        let mut ends = HashMap::new();
        let mut is_new = |subject: &Subject, until| {
            let end_ms = end_ms(until);
            let is_new = ends.get(subject).is_none_or(|covered_ms| end_ms > *covered_ms);
            if is_new {
                ends.insert(subject.clone(), end_ms);
            }
            is_new
        };
        loop {
            let next_change = changes.peek().map(|change| (change.id, end_ms(change.until)));
            let next_removal = removals.peek().map(|removal| (removal.id, end_ms(removal.until)));
            if next_removal.is_some() && next_removal >= next_change {
                self.removals
                    .extend(removals.next().filter(|removal| is_new(&removal.subject, removal.until)));
            } else if next_change.is_some() {
                self.changes.extend(changes.next().filter(|change| is_new(&change.subject, change.until)));
            } else {
                break;
            }
        }
        self.changes.reverse();
    }
}

/// Returns the JSON text, which orders items of one identity: two nodes may record one expiry with different content.
fn text(item: &impl Serialize) -> String {
    serde_json::to_string(item).unwrap_or_default()
}

#[cfg(test)]
mod tests;
