//! Merges documents of changes, so that none that was answered with 200 is lost and none that was removed comes back.
//!
//! The store keeps one document, but it can forget it (a flush), come back with an older one (a backup, a replica that
//! lagged), or be changed by a node that has not seen the latest one. A version or a count of editions cannot tell which of
//! two documents is newer then, so nodes merge what they know with what they find, item by item:
//!
//! - Each change and each removal has an identity, a [`Stamp`], which also orders them.
//! - An item *covers* another about the same subject if it is not older and does not end earlier. A covered item is dropped:
//!   a change replaces what it covers, and what lasts longer is in force again when the change ends.
//! - A removal is an item without an effect of its own. A `DELETE` covers everything before it. A change that has ended
//!   leaves one with its own identity and end, and so covers itself.
//! - What remains is the union of both documents without what is covered. That is the same in whichever order documents are
//!   merged, and however often. Two changes about one subject that did not know each other: the later one holds.
//! - Entries of the audit log are united by identity, expiries by the change that has ended; the latest [`MOST_AUDITED`]
//!   are kept.
//! - Removals are bounded: the latest [`MOST_REMOVALS`], those of changes that have ended for one day by the latest item.
//!   Those of a `DELETE` do not go by age, so that a node with a wrong clock cannot have them forgotten.
//!
//! A node that finds less in the store than it knows writes the merged document back.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::book::{Action, AuditEntry, Book, Change, Subject};
use super::moment::Moment;
use super::stamp::Stamp;

/// How many entries of the audit log are kept with the changes. All of them are in the log of the process.
pub(super) const MOST_AUDITED: usize = 500;
/// As many as the changes that can end at once.
const MOST_REMOVALS: usize = super::book::MOST_CHANGES;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const ENDS_KEPT_MS: u64 = DAY_MS;

/// Covers all changes about a subject that are not newer and do not end later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Removal {
    pub(super) id: Stamp,
    #[serde(flatten)]
    pub(super) subject: Subject,
    /// The end of the change that has ended; absent after a `DELETE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Moment>,
    /// When it was written, as the time of a [`Stamp`].
    pub(super) made_ms: u64,
}

/// When something ends that may have no end.
fn end_ms(until: Option<Moment>) -> u64 {
    until.map_or(u64::MAX, |until| until.0)
}

impl Book {
    /// Reads a document, also one of an older build.
    pub(super) fn read(text: &str) -> Result<Self, serde_json::Error> {
        let mut book: Self = serde_json::from_str(text)?;
        let mut last_ms = 0;
        for change in book.changes.iter_mut().filter(|change| change.id.is_missing()) {
            // Their order was that of the list.
            last_ms = change.at.0.max(last_ms + 1);
            change.id = Stamp::of_content(last_ms, change);
        }
        for entry in book.audit.iter_mut().filter(|entry| entry.id.is_missing()) {
            entry.id = Stamp::of_content(entry.at.0, entry);
        }
        book.settle();
        Ok(book)
    }

    /// What both documents have.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        merged.generation = self.generation.max(other.generation);
        merged.changes.extend_from_slice(&other.changes);
        merged.removals.extend_from_slice(&other.removals);
        merged.audit.extend(other.audit.iter().cloned());
        merged.settle();
        merged
    }

    /// Whether merging `other` into it adds nothing.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let merged = self.merged(other);
        let changes: HashSet<Stamp> = self.changes.iter().map(|change| change.id).collect();
        let removals: HashSet<Stamp> = self.removals.iter().map(|removal| removal.id).collect();
        let entries: HashSet<Stamp> = self.audit.iter().map(|entry| entry.id).collect();
        merged.changes.iter().all(|change| changes.contains(&change.id))
            && merged.removals.iter().all(|removal| removals.contains(&removal.id))
            && merged.audit.iter().all(|entry| entries.contains(&entry.id))
    }

    /// A new identity, later than all that is known.
    pub(crate) fn next_stamp(&self, now_ms: u64) -> Stamp {
        Stamp::new(now_ms.max(self.latest_ms().saturating_add(1)))
    }

    fn latest_ms(&self) -> u64 {
        let changes = self.changes.iter().map(|change| change.id.ms);
        let removals = self.removals.iter().map(|removal| removal.made_ms);
        let entries = self.audit.iter().map(|entry| entry.id.ms);
        changes.chain(removals).chain(entries).max().unwrap_or(0)
    }

    /// Drops what is covered, what is there twice, and what is beyond the bounds, and sorts the rest.
    pub(super) fn settle(&mut self) {
        self.drop_covered();
        let latest_ms = self.latest_ms();
        self.removals.retain(|removal| {
            removal.until.is_none() || latest_ms.saturating_sub(removal.made_ms) <= ENDS_KEPT_MS
        });
        self.removals.sort_by_key(|removal| Reverse((removal.made_ms, removal.id)));
        self.removals.truncate(MOST_REMOVALS);
        let audit = self.audit.make_contiguous();
        audit.sort_by(|one, other| other.id.cmp(&one.id).then_with(|| text(one).cmp(&text(other))));
        let mut entries: Vec<AuditEntry> = std::mem::take(&mut self.audit).into();
        entries.dedup_by_key(|entry| entry.id);
        // Two nodes can record one expiry under different times; the random part is that of the change.
        let mut expired = HashSet::new();
        entries.retain(|entry| entry.action != Action::Expire || expired.insert((entry.id.random, entry.at)));
        entries.truncate(MOST_AUDITED);
        self.audit = entries.into();
    }

    fn drop_covered(&mut self) {
        // The latest first: all that can cover an item comes before it. A removal covers the change whose identity it has.
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

/// Decides between items of one identity that differ: two nodes may write down differently that a change has ended.
fn text(item: &impl Serialize) -> String {
    serde_json::to_string(item).unwrap_or_default()
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
