use serde_json::json;
use slidegate_config::PolicySet;

use super::super::changeset::Removal;
use super::super::changeset::{AuditAction, MAX_CHANGES, Part, Setting};
use super::super::combine::Base;
use super::*;

const START_MS: u64 = 1_800_000_000_000;

fn key(number: u64) -> Subject {
    Subject { policy: "api".to_owned(), part: Part::Key(format!("k{number}")) }
}

fn change(subject: Subject, limit: u64, until_ms: Option<u64>) -> Change {
    Change {
        id: OperationId::default(),
        subject,
        setting: Setting::Quotas(vec![json!(format!("{limit}/1h"))]),
        until: until_ms.map(Timestamp),
        by: "ops".to_owned(),
        at: Timestamp(START_MS),
        note: None,
    }
}

fn entry(id: OperationId) -> AuditEntry {
    AuditEntry {
        id,
        at: Timestamp(id.ms),
        by: "ops".to_owned(),
        action: AuditAction::Set,
        subject: key(0),
        before: json!(null),
        after: json!(null),
        note: None,
    }
}

/// Returns the identity of an entry that is the same on all nodes: nodes may record one expiry at different times.
fn identity(entry: &AuditEntry) -> OperationId {
    if entry.action == AuditAction::Expire { OperationId { ms: entry.at.0, ..entry.id } } else { entry.id }
}

/// Simulation of nodes and a store in one thread, with all changes that were acknowledged.
struct Simulation {
    random: fastrand::Rng,
    now_ms: u64,
    nodes: Vec<Changeset>,
    store: Changeset,
    backups: Vec<Changeset>,
    /// All items ever created, for the naive expectation.
    changes: Vec<Change>,
    removals: Vec<Removal>,
    entries: HashSet<OperationId>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            now_ms: START_MS,
            nodes: vec![Changeset::default(); 3],
            store: Changeset::default(),
            backups: vec![Changeset::default()],
            changes: Vec::new(),
            removals: Vec::new(),
            entries: HashSet::new(),
        }
    }

    fn sync(&mut self, node: usize) {
        self.nodes[node] = self.nodes[node].merged(&self.store);
        self.store = self.nodes[node].clone();
    }

    /// Handles a request on a node: it reads, edits and writes in one step.
    fn edit(&mut self, node: usize) {
        self.sync(node);
        // The clocks of the nodes differ.
        let now_ms = self.now_ms + 300 * node as u64;
        let subject = key(self.random.u64(..4));
        let changeset = &mut self.nodes[node];
        let id = match self.random.u8(..4) {
            0 => changeset.remove(&subject, now_ms),
            // Some expire before the next step.
            1 => {
                let until_ms = now_ms + self.random.u64(..2000);
                Some(changeset.put(change(subject, self.random.u64(1..9), Some(until_ms)), now_ms).unwrap())
            }
            _ => Some(changeset.put(change(subject, self.random.u64(1..9), None), now_ms).unwrap()),
        };
        if let Some(id) = id {
            changeset.record(entry(id));
            self.entries.insert(id);
        }
        self.publish(node);
    }

    fn close_expired(&mut self, node: usize) {
        self.sync(node);
        let base = Base { policies: PolicySet::default(), switches: Vec::new() };
        let expired = self.nodes[node].close_expired(&base, self.now_ms);
        self.entries.extend(expired.iter().map(identity));
        self.publish(node);
    }

    fn publish(&mut self, node: usize) {
        let changeset = &self.nodes[node];
        self.changes.extend(
            changeset
                .changes
                .iter()
                .filter(|change| !self.changes.contains(change))
                .cloned()
                .collect::<Vec<_>>(),
        );
        let is_new = |removal: &&Removal| !self.removals.iter().any(|known| known.id == removal.id);
        let new: Vec<_> = changeset.removals.iter().filter(is_new).cloned().collect();
        self.removals.extend(new);
        self.store = changeset.clone();
    }

    fn step(&mut self) {
        self.now_ms += self.random.u64(..50);
        let node = self.random.usize(..self.nodes.len());
        match self.random.u8(..10) {
            0 => self.store = Changeset::default(),
            1 => self.store = self.backups[self.random.usize(..self.backups.len())].clone(),
            2 => self.backups.push(self.store.clone()),
            3 => self.close_expired(node),
            4 | 5 => self.sync(node),
            _ => self.edit(node),
        }
    }

    /// Returns the changes that no other item covers, by comparing each with all others.
    fn expected(&self) -> Vec<Change> {
        let is_covered = |change: &Change| {
            let key = (change.id, end_ms(change.until));
            let covers = |id: OperationId, until| id >= key.0 && end_ms(until) >= key.1;
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
        let mut simulation = Simulation::new(seed);
        (0..120).for_each(|_| simulation.step());
        // Two rounds, after which the nodes have converged.
        for node in [0, 1, 2, 0, 1, 2] {
            simulation.sync(node);
        }
        let expected = simulation.expected();
        for node in &simulation.nodes {
            assert_eq!(node.changes, expected, "seed {seed}");
            let entries: HashSet<_> = node.audit.iter().map(identity).collect();
            assert_eq!(entries, simulation.entries, "seed {seed}");
            assert_eq!(node.audit.len(), entries.len(), "seed {seed}: an entry is duplicated");
            assert!(simulation.store.includes(node), "seed {seed}");
        }
    }
}

#[test]
fn merging_is_commutative_associative_and_idempotent() {
    for seed in 0..300 {
        let mut simulation = Simulation::new(seed);
        (0..40).for_each(|_| simulation.step());
        let [a, b, c] = simulation.nodes.as_slice() else { unreachable!() };
        assert_eq!(a.merged(b), b.merged(a), "seed {seed}");
        assert_eq!(a.merged(b).merged(c), a.merged(&b.merged(c)), "seed {seed}");
        assert_eq!(a.merged(a), *a, "seed {seed}");
        let both = a.merged(b);
        assert_eq!(both.merged(a), both, "seed {seed}");
        assert!(both.includes(a) && both.includes(b), "seed {seed}");
    }
}

#[test]
fn a_later_change_is_in_force_although_its_clock_is_behind() {
    let mut first = Changeset::default();
    first.put(change(key(0), 1, None), START_MS + 60_000).unwrap();
    let mut second = first.clone();
    second.put(change(key(0), 2, None), START_MS).unwrap();
    let merged = first.merged(&second);
    assert_eq!(merged.find(&key(0), START_MS).unwrap().setting, second.changes[0].setting);
    assert_eq!(merged.changes.len(), 1);
    assert_eq!(merged, second);
}

#[test]
fn nodes_converge_on_one_of_two_differing_entries() {
    let mut first = Changeset::default();
    first.record(entry(OperationId { ms: 5, random: 5 }));
    let mut second = first.clone();
    second.audit[0].before = json!({"mode": "off"});
    assert_eq!(first.merged(&second), second.merged(&first));
    assert_eq!(first.merged(&second).audit.len(), 1);
}

#[test]
fn removals_and_the_audit_log_are_bounded() {
    let mut changeset = Changeset::default();
    let count = MAX_CHANGES as u64 + 10;
    changeset.removals = (0..count)
        .map(|number| {
            let id = OperationId::new(START_MS + number);
            Removal { id, subject: key(number), until: None, made_ms: id.ms }
        })
        .collect();
    changeset.audit = (0..count).map(|number| entry(OperationId::new(START_MS + number))).collect();
    changeset.normalize();
    assert_eq!((changeset.removals.len(), changeset.audit.len()), (MAX_REMOVALS, MAX_AUDIT_ENTRIES));
    assert!(changeset.removals.iter().all(|removal| removal.made_ms >= START_MS + 10), "the latest are kept");
    assert_eq!(changeset.audit[0].id.ms, START_MS + count - 1);

    let expiry = Some(Timestamp(START_MS));
    for (until, later_ms, is_kept) in [
        (expiry, EXPIRY_RETENTION_MS, true),
        (expiry, EXPIRY_RETENTION_MS + 1, false),
        // A node with a clock years ahead does not drop removals of a `DELETE`.
        (None, 1000 * EXPIRY_RETENTION_MS, true),
    ] {
        let mut changeset = Changeset::default();
        let id = OperationId::new(START_MS);
        changeset.removals.push(Removal { id, subject: key(0), until, made_ms: id.ms });
        changeset.put(change(key(1), 1, None), START_MS + later_ms).unwrap();
        assert_eq!(!changeset.removals.is_empty(), is_kept, "{until:?} {later_ms}");
    }
}

#[test]
fn an_expiry_is_kept_in_an_audit_log_full_of_entries_of_a_fast_clock() {
    let fast_ms = START_MS + 3_600_000;
    let mut changeset = Changeset::default();
    changeset.put(change(key(0), 1, Some(START_MS + 1)), START_MS).unwrap();
    changeset.put(change(key(1), 1, Some(START_MS + 2)), START_MS).unwrap();
    (0..MAX_AUDIT_ENTRIES as u64)
        .for_each(|number| changeset.record(entry(OperationId::new(fast_ms + number))));
    let other = changeset.clone();
    let base = Base { policies: PolicySet::default(), switches: Vec::new() };
    let expired = changeset.close_expired(&base, START_MS + 10);
    assert_eq!(expired.len(), 2);
    assert!(changeset.audit.iter().take(2).eq(expired.iter().rev()), "the latest entry is first");

    // A second node records the same expiries after one more entry.
    let mut other = other;
    other.record(entry(OperationId::new(fast_ms + 10_000)));
    other.close_expired(&base, START_MS + 10);
    let merged = changeset.merged(&other);
    assert_eq!(merged.audit.iter().filter(|entry| entry.action == AuditAction::Expire).count(), 2);
    assert_eq!(merged, other.merged(&changeset));
}

#[test]
fn the_number_of_changes_is_limited() {
    let changes = (0..MAX_CHANGES as u64)
        .map(|number| Change { id: OperationId::new(START_MS), ..change(key(number), 1, None) })
        .collect();
    let mut changeset = Changeset { changes, ..Changeset::default() };
    let rejected = changeset.clone().put(change(key(MAX_CHANGES as u64), 1, None), START_MS);
    assert!(rejected.unwrap_err().contains("limit of 5000 changes"));
    changeset.put(change(key(0), 2, None), START_MS).unwrap();
}

#[test]
fn all_nodes_read_a_document_of_an_older_build_alike() {
    let text = r#"{"generation": 7, "changes": [
        {"policy": "api", "of": "mode", "mode": "off", "by": "ops", "at": "2026-11-15T19:51:46.241Z"},
        {"policy": "api", "of": "key", "name": "k", "quotas": ["9/1h"], "by": "ops", "at": "2026-11-15T19:51:47Z"},
        {"policy": "api", "of": "key", "name": "k", "quotas": ["8/1h"], "until": "2026-11-18T00:00:00Z",
         "by": "ops", "at": "2026-11-15T19:51:46Z", "note": "earlier by another clock"}],
        "audit": [{"at": "2026-11-15T19:51:46.241Z", "by": "ops", "action": "set", "policy": "api", "of": "mode",
                   "before": {"mode": "enforce"}, "after": {"mode": "off"}}]}"#;
    let [one, other] = [(); 2].map(|()| Changeset::read(text).unwrap());
    assert_eq!((one.changes.len(), one.audit.len(), one.generation), (3, 1, 7));
    assert_eq!(one, other);
    assert_eq!(one.merged(&other), one);
    let subject = Subject { policy: "api".to_owned(), part: Part::Key("k".to_owned()) };
    let limit = |now_ms| one.find(&subject, now_ms).unwrap().setting.clone();
    assert_eq!(limit(0), Setting::Quotas(vec![json!("8/1h")]));
    assert_eq!(limit(u64::MAX), Setting::Quotas(vec![json!("9/1h")]));
    // The current format round-trips.
    let written = serde_json::to_string(&one).unwrap();
    assert_eq!(Changeset::read(&written).unwrap(), one);
}
