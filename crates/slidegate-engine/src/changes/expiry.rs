//! Expiry of changes: removal from the changeset, with an entry in the audit log.

use super::changeset::Removal;
use super::changeset::{AuditAction, AuditEntry, Change, Changeset};
use super::combine::Base;
use super::operation_id::OperationId;
use super::timestamp::Timestamp;

/// Actor of the audit entries of expiries.
const ACTOR: &str = "expiry";

impl Changeset {
    /// Returns whether a change has expired and no node has recorded it yet.
    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        self.changes.iter().any(|change| change.is_expired(now_ms))
    }

    /// Removes expired changes and returns their audit entries. Both are written in one document, so no other node records
    /// them again. The removals keep merges with other documents from restoring the changes.
    pub(super) fn close_expired(&mut self, base: &Base, now_ms: u64) -> Vec<AuditEntry> {
        let end = |change: &Change| change.until.filter(|until| until.0 <= now_ms);
        let mut expired: Vec<(Timestamp, Change)> =
            self.changes.iter().filter_map(|change| Some((end(change)?, change.clone()))).collect();
        expired.sort_by_key(|(end, _)| *end);
        let made_ms = self.next_id(now_ms).ms;
        // If a node with a fast clock has filled the audit log, an identity from the expiry alone would be older than the
        // whole log, which would drop the entry.
        let first_ms = if made_ms > now_ms { made_ms } else { 0 };
        let entry = |(index, (end, change)): (u64, (Timestamp, Change))| AuditEntry {
            id: OperationId { ms: end.0.max(first_ms.saturating_add(index)), ..change.id },
            // The expiry itself, which may be long before this call.
            at: end,
            by: ACTOR.to_owned(),
            action: AuditAction::Expire,
            before: change.to_json(),
            after: self
                .find(&change.subject, end.0)
                .map_or_else(|| base.value_of(&change.subject), Change::to_json),
            subject: change.subject,
            note: change.note,
        };
        let entries: Vec<_> = (0..).zip(expired).map(entry).collect();
        let expired = self.changes.iter().filter(|change| change.is_expired(now_ms));
        self.removals.extend(expired.map(|change| Removal {
            id: change.id,
            subject: change.subject.clone(),
            until: change.until,
            made_ms,
        }));
        self.audit.extend(entries.iter().cloned());
        self.normalize();
        entries
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slidegate::Policy;
    use slidegate_config::PolicySet;

    use super::super::changeset::{Part, Setting, Subject};
    use super::*;

    fn change(part: Part, quota: &str, until_ms: Option<u64>) -> Change {
        Change {
            id: OperationId::default(),
            subject: Subject { policy: "api".to_owned(), part },
            setting: Setting::Quotas(vec![json!(quota)]),
            until: until_ms.map(Timestamp),
            by: "ops".to_owned(),
            at: Timestamp(0),
            note: Some(format!("about {quota}")),
        }
    }

    #[test]
    fn each_expiry_is_recorded_once_with_the_value_that_follows() {
        let mut policies = PolicySet::default();
        policies.insert(Policy::parse("api", ["10/1m"]).unwrap());
        let base = Base { policies, switches: Vec::new() };
        let key = || Part::Key("k".to_owned());
        let mut changeset = Changeset::default();
        for (part, quota, until_ms) in [
            (key(), "4/1m", 4000),
            (key(), "3/1m", 3000),
            (key(), "2/1m", 2000),
            (Part::Quotas, "1/1m", 1000),
        ] {
            changeset.put(change(part, quota, Some(until_ms)), 0).unwrap();
        }
        assert!(!changeset.has_expired(999) && changeset.close_expired(&base, 999).is_empty());
        assert!(changeset.has_expired(3000));
        let entries = changeset.close_expired(&base, 3000);
        let quotas = |quota: &str, until: u64| json!({"quotas": [quota], "until": Timestamp(until)});
        let seen: Vec<(u64, &Value, &Value)> =
            entries.iter().map(|entry| (entry.at.0, &entry.before, &entry.after)).collect();
        // The value that follows is a change that expires later, or that of the file.
        let (file, two) = (json!({"quotas": ["10/1m"]}), quotas("2/1m", 2000));
        let (three, four) = (quotas("3/1m", 3000), quotas("4/1m", 4000));
        let expected = [(1000, &quotas("1/1m", 1000), &file), (2000, &two, &three), (3000, &three, &four)];
        assert_eq!(seen, expected);
        assert!(entries.iter().all(|entry| entry.by == "expiry" && entry.action == AuditAction::Expire));
        assert_eq!(entries[0].note.as_deref(), Some("about 1/1m"));
        // The log has the latest entry first, and the unexpired change stays.
        assert_eq!(changeset.audit.iter().rev().cloned().collect::<Vec<_>>(), entries);
        assert_eq!((changeset.changes.len(), changeset.close_expired(&base, 3999).len()), (1, 0));
    }
}
