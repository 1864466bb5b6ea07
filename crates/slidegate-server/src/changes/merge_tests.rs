use serde_json::json;

use super::super::book::{Action, MOST_CHANGES, Part, What};
use super::super::combine::Base;
use super::*;
use crate::policies::Policies;

const START_MS: u64 = 1_800_000_000_000;

fn key(number: u64) -> Subject {
    Subject { policy: "api".to_owned(), part: Part::Key(format!("k{number}")) }
}

fn change(subject: Subject, limit: u64, until_ms: Option<u64>) -> Change {
    Change {
        id: Stamp::default(),
        subject,
        what: What::Quotas(vec![json!(format!("{limit}/1h"))]),
        until: until_ms.map(Moment),
        by: "ops".to_owned(),
        at: Moment(START_MS),
        note: None,
    }
}

fn entry(id: Stamp) -> AuditEntry {
    AuditEntry {
        id,
        at: Moment(id.ms),
        by: "ops".to_owned(),
        action: Action::Set,
        subject: key(0),
        before: json!(null),
        after: json!(null),
        note: None,
    }
}

/// The identity of an entry on all nodes: nodes may record one expiry at different times.
fn identity(entry: &AuditEntry) -> Stamp {
    if entry.action == Action::Expire { Stamp { ms: entry.at.0, ..entry.id } } else { entry.id }
}

/// Nodes and a store in one thread, and all that was ever answered with 200.
struct World {
    random: fastrand::Rng,
    now_ms: u64,
    nodes: Vec<Book>,
    store: Book,
    backups: Vec<Book>,
    /// Every item that was made, naively kept for ever.
    changes: Vec<Change>,
    removals: Vec<Removal>,
    entries: HashSet<Stamp>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            now_ms: START_MS,
            nodes: vec![Book::default(); 3],
            store: Book::default(),
            backups: vec![Book::default()],
            changes: Vec::new(),
            removals: Vec::new(),
            entries: HashSet::new(),
        }
    }

    fn look(&mut self, node: usize) {
        self.nodes[node] = self.nodes[node].merged(&self.store);
        self.store = self.nodes[node].clone();
    }

    /// As a node answers a request: it reads, changes and writes at once.
    fn edit(&mut self, node: usize) {
        self.look(node);
        // Clocks of nodes differ.
        let now_ms = self.now_ms + 300 * node as u64;
        let subject = key(self.random.u64(..4));
        let book = &mut self.nodes[node];
        let id = match self.random.u8(..4) {
            0 => book.remove(&subject, now_ms),
            // A few have ended already.
            1 => {
                let until_ms = now_ms + self.random.u64(..2000);
                Some(book.put(change(subject, self.random.u64(1..9), Some(until_ms)), now_ms).unwrap())
            }
            _ => Some(book.put(change(subject, self.random.u64(1..9), None), now_ms).unwrap()),
        };
        if let Some(id) = id {
            book.write_down(entry(id));
            self.entries.insert(id);
        }
        self.publish(node);
    }

    fn close_ended(&mut self, node: usize) {
        self.look(node);
        let base = Base { policies: Policies::default(), switches: Vec::new() };
        let ended = self.nodes[node].close_ended(&base, self.now_ms);
        self.entries.extend(ended.iter().map(identity));
        self.publish(node);
    }

    fn publish(&mut self, node: usize) {
        let book = &self.nodes[node];
        self.changes.extend(
            book.changes.iter().filter(|change| !self.changes.contains(change)).cloned().collect::<Vec<_>>(),
        );
        let is_new = |removal: &&Removal| !self.removals.iter().any(|known| known.id == removal.id);
        let new: Vec<_> = book.removals.iter().filter(is_new).cloned().collect();
        self.removals.extend(new);
        self.store = book.clone();
    }

    fn step(&mut self) {
        self.now_ms += self.random.u64(..50);
        let node = self.random.usize(..self.nodes.len());
        match self.random.u8(..10) {
            0 => self.store = Book::default(),
            1 => self.store = self.backups[self.random.usize(..self.backups.len())].clone(),
            2 => self.backups.push(self.store.clone()),
            3 => self.close_ended(node),
            4 | 5 => self.look(node),
            _ => self.edit(node),
        }
    }

    /// The changes that no other item covers, found naively.
    fn expected(&self) -> Vec<Change> {
        let is_covered = |change: &Change| {
            let key = (change.id, end_ms(change.until));
            let covers = |id: Stamp, until| id >= key.0 && end_ms(until) >= key.1;
            let about = |subject: &Subject| *subject == change.subject;
            let mut others =
                self.changes.iter().filter(|other| other.id != change.id && about(&other.subject));
            let mut removals = self.removals.iter().filter(|removal| about(&removal.subject));
            others.any(|other| covers(other.id, other.until))
                || removals.any(|removal| covers(removal.id, removal.until))
        };
        let mut left: Vec<_> = self.changes.iter().filter(|change| !is_covered(change)).cloned().collect();
        left.sort_by_key(|change| change.id);
        left
    }
}

#[test]
fn no_acknowledged_change_is_lost_and_no_removed_one_comes_back() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        (0..120).for_each(|_| world.step());
        // Every node looks until no more comes of it.
        for node in [0, 1, 2, 0, 1, 2] {
            world.look(node);
        }
        let expected = world.expected();
        for node in &world.nodes {
            assert_eq!(node.changes, expected, "seed {seed}");
            let entries: HashSet<_> = node.audit.iter().map(identity).collect();
            assert_eq!(entries, world.entries, "seed {seed}");
            assert_eq!(node.audit.len(), entries.len(), "seed {seed}: an entry is there twice");
            assert!(world.store.includes(node), "seed {seed}");
        }
    }
}

#[test]
fn merging_is_commutative_associative_and_idempotent() {
    for seed in 0..300 {
        let mut world = World::new(seed);
        (0..40).for_each(|_| world.step());
        let [a, b, c] = world.nodes.as_slice() else { unreachable!() };
        assert_eq!(a.merged(b), b.merged(a), "seed {seed}");
        assert_eq!(a.merged(b).merged(c), a.merged(&b.merged(c)), "seed {seed}");
        assert_eq!(a.merged(a), *a, "seed {seed}");
        let both = a.merged(b);
        assert_eq!(both.merged(a), both, "seed {seed}");
        assert!(both.includes(a) && both.includes(b), "seed {seed}");
    }
}

#[test]
fn the_later_of_two_changes_holds_although_its_clock_is_behind() {
    let mut first = Book::default();
    first.put(change(key(0), 1, None), START_MS + 60_000).unwrap();
    let mut second = first.clone();
    second.put(change(key(0), 2, None), START_MS).unwrap();
    let merged = first.merged(&second);
    assert_eq!(merged.find(&key(0), START_MS).unwrap().what, second.changes[0].what);
    assert_eq!(merged.changes.len(), 1);
    assert_eq!(merged, second);
}

#[test]
fn what_differs_about_one_end_is_the_same_on_all_nodes() {
    let mut first = Book::default();
    first.write_down(entry(Stamp { ms: 5, random: 5 }));
    let mut second = first.clone();
    second.audit[0].before = json!({"mode": "off"});
    assert_eq!(first.merged(&second), second.merged(&first));
    assert_eq!(first.merged(&second).audit.len(), 1);
}

#[test]
fn removals_and_the_audit_log_are_bounded() {
    let mut book = Book::default();
    let count = MOST_CHANGES as u64 + 10;
    book.removals = (0..count)
        .map(|number| {
            let id = Stamp::new(START_MS + number);
            Removal { id, subject: key(number), until: None, made_ms: id.ms }
        })
        .collect();
    book.audit = (0..count).map(|number| entry(Stamp::new(START_MS + number))).collect();
    book.settle();
    assert_eq!((book.removals.len(), book.audit.len()), (MOST_REMOVALS, MOST_AUDITED));
    assert!(book.removals.iter().all(|removal| removal.made_ms >= START_MS + 10), "the latest are kept");
    assert_eq!(book.audit[0].id.ms, START_MS + count - 1);

    let ended = Some(Moment(START_MS));
    for (until, later_ms, is_kept) in [
        (ended, ENDS_KEPT_MS, true),
        (ended, ENDS_KEPT_MS + 1, false),
        // A node whose clock is years ahead makes no node forget what was removed.
        (None, 1000 * ENDS_KEPT_MS, true),
    ] {
        let mut book = Book::default();
        let id = Stamp::new(START_MS);
        book.removals.push(Removal { id, subject: key(0), until, made_ms: id.ms });
        book.put(change(key(1), 1, None), START_MS + later_ms).unwrap();
        assert_eq!(!book.removals.is_empty(), is_kept, "{until:?} {later_ms}");
    }
}

#[test]
fn an_expiry_is_kept_in_an_audit_log_full_of_entries_of_a_fast_clock() {
    let fast_ms = START_MS + 3_600_000;
    let mut book = Book::default();
    book.put(change(key(0), 1, Some(START_MS + 1)), START_MS).unwrap();
    book.put(change(key(1), 1, Some(START_MS + 2)), START_MS).unwrap();
    (0..MOST_AUDITED as u64).for_each(|number| book.write_down(entry(Stamp::new(fast_ms + number))));
    let other = book.clone();
    let base = Base { policies: Policies::default(), switches: Vec::new() };
    let ended = book.close_ended(&base, START_MS + 10);
    assert_eq!(ended.len(), 2);
    assert!(book.audit.iter().take(2).eq(ended.iter().rev()), "the latest first");

    // A second node records the same expiries after one more entry.
    let mut other = other;
    other.write_down(entry(Stamp::new(fast_ms + 10_000)));
    other.close_ended(&base, START_MS + 10);
    let merged = book.merged(&other);
    assert_eq!(merged.audit.iter().filter(|entry| entry.action == Action::Expire).count(), 2);
    assert_eq!(merged, other.merged(&book));
}

#[test]
fn there_are_no_more_changes_than_may_be() {
    let changes = (0..MOST_CHANGES as u64)
        .map(|number| Change { id: Stamp::new(START_MS), ..change(key(number), 1, None) })
        .collect();
    let mut book = Book { changes, ..Book::default() };
    let refused = book.clone().put(change(key(MOST_CHANGES as u64), 1, None), START_MS);
    assert!(refused.unwrap_err().contains("5000 changes already"));
    book.put(change(key(0), 2, None), START_MS).unwrap();
}

#[test]
fn a_document_of_an_older_build_is_read_alike_by_all_nodes() {
    let text = r#"{"generation": 7, "changes": [
        {"policy": "api", "of": "mode", "mode": "off", "by": "ops", "at": "2026-11-15T19:51:46.241Z"},
        {"policy": "api", "of": "key", "name": "k", "quotas": ["9/1h"], "by": "ops", "at": "2026-11-15T19:51:47Z"},
        {"policy": "api", "of": "key", "name": "k", "quotas": ["8/1h"], "until": "2026-11-18T00:00:00Z",
         "by": "ops", "at": "2026-11-15T19:51:46Z", "note": "earlier by another clock"}],
        "audit": [{"at": "2026-11-15T19:51:46.241Z", "by": "ops", "action": "set", "policy": "api", "of": "mode",
                   "before": {"mode": "enforce"}, "after": {"mode": "off"}}]}"#;
    let [one, other] = [(); 2].map(|()| Book::read(text).unwrap());
    assert_eq!((one.changes.len(), one.audit.len(), one.generation), (3, 1, 7));
    assert_eq!(one, other);
    assert_eq!(one.merged(&other), one);
    let subject = Subject { policy: "api".to_owned(), part: Part::Key("k".to_owned()) };
    let limit = |now_ms| one.find(&subject, now_ms).unwrap().what.clone();
    assert_eq!(limit(0), What::Quotas(vec![json!("8/1h")]));
    assert_eq!(limit(u64::MAX), What::Quotas(vec![json!("9/1h")]));
    // And as it is written now.
    let written = serde_json::to_string(&one).unwrap();
    assert_eq!(Book::read(&written).unwrap(), one);
}
