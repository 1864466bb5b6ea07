//! Changes that have ended by themselves: they leave the book, and the audit says so.

use super::book::{Action, AuditEntry, Book, Change};
use super::combine::Base;
use super::merge::Removal;
use super::moment::Moment;
use super::stamp::Stamp;

/// Who it was, when it was nobody.
const NOBODY: &str = "expiry";

impl Book {
    /// Whether there is any that nobody has written down yet.
    pub(super) fn has_ended(&self, now_ms: u64) -> bool {
        self.changes.iter().any(|change| change.is_over(now_ms))
    }

    /// Takes out what is over and writes it down. Both are in the same edition of the book or neither is, so that no other
    /// node finds anything to write down again. The removals keep other documents from bringing the changes back.
    pub(super) fn close_ended(&mut self, base: &Base, now_ms: u64) -> Vec<AuditEntry> {
        let end = |change: &Change| change.until.filter(|until| until.0 <= now_ms);
        let mut ended: Vec<(Moment, Change)> =
            self.changes.iter().filter_map(|change| Some((end(change)?, change.clone()))).collect();
        ended.sort_by_key(|(end, _)| *end);
        let made_ms = self.next_stamp(now_ms).ms;
        // After a node with a fast clock, an identity by the end alone would be older than the whole audit log, and dropped.
        let first_ms = if made_ms > now_ms { made_ms } else { 0 };
        let entry = |(place, (end, change)): (u64, (Moment, Change))| AuditEntry {
            id: Stamp { ms: end.0.max(first_ms.saturating_add(place)), ..change.id },
            // When it ended, which may be long before somebody noticed.
            at: end,
            by: NOBODY.to_owned(),
            action: Action::Expire,
            before: change.told(),
            after: self.find(&change.subject, end.0).map_or_else(|| base.told(&change.subject), Change::told),
            subject: change.subject,
            note: change.note,
        };
        let entries: Vec<_> = (0..).zip(ended).map(entry).collect();
        let ended = self.changes.iter().filter(|change| change.is_over(now_ms));
        self.removals.extend(ended.map(|change| Removal {
            id: change.id,
            subject: change.subject.clone(),
            until: change.until,
            made_ms,
        }));
        self.audit.extend(entries.iter().cloned());
        self.settle();
        entries
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slidegate::Policy;

    use super::super::book::{Part, Subject, What};
    use super::*;
    use crate::policies::Policies;

    fn change(part: Part, quota: &str, until_ms: Option<u64>) -> Change {
        Change {
            id: Stamp::default(),
            subject: Subject { policy: "api".to_owned(), part },
            what: What::Quotas(vec![json!(quota)]),
            until: until_ms.map(Moment),
            by: "ops".to_owned(),
            at: Moment(0),
            note: Some(format!("about {quota}")),
        }
    }

    #[test]
    fn each_that_is_over_is_written_down_once_with_what_holds_then() {
        let mut policies = Policies::default();
        policies.insert(Policy::parse("api", ["10/1m"]).unwrap());
        let base = Base { policies, switches: Vec::new() };
        let key = || Part::Key("k".to_owned());
        let mut book = Book::default();
        for (part, quota, until_ms) in [
            (key(), "4/1m", 4000),
            (key(), "3/1m", 3000),
            (key(), "2/1m", 2000),
            (Part::Quotas, "1/1m", 1000),
        ] {
            book.put(change(part, quota, Some(until_ms)), 0).unwrap();
        }
        assert!(!book.has_ended(999) && book.close_ended(&base, 999).is_empty());
        assert!(book.has_ended(3000));
        let entries = book.close_ended(&base, 3000);
        let quotas = |quota: &str, until: u64| json!({"quotas": [quota], "until": Moment(until)});
        let seen: Vec<(u64, &Value, &Value)> =
            entries.iter().map(|entry| (entry.at.0, &entry.before, &entry.after)).collect();
        // What lasts longer is in force again, and else the file.
        let (file, two) = (json!({"quotas": ["10/1m"]}), quotas("2/1m", 2000));
        let (three, four) = (quotas("3/1m", 3000), quotas("4/1m", 4000));
        let expected = [(1000, &quotas("1/1m", 1000), &file), (2000, &two, &three), (3000, &three, &four)];
        assert_eq!(seen, expected);
        assert!(entries.iter().all(|entry| entry.by == "expiry" && entry.action == Action::Expire));
        assert_eq!(entries[0].note.as_deref(), Some("about 1/1m"));
        // The latest first, and what is not over stays.
        assert_eq!(book.audit.iter().rev().cloned().collect::<Vec<_>>(), entries);
        assert_eq!((book.changes.len(), book.close_ended(&base, 3999).len()), (1, 0));
    }
}
