//! Controller of runtime changes: applies them here, writes them to the store and follows other nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::gauge;
use slidegate::StoreError;
use slidegate::store::{SharedDocument, SharedDocuments};
use tracing::{error, info, warn};

use super::changeset::{AuditEntry, Change, Changeset, Subject};
use super::combine::{Base, Combined};
use super::operation_id::OperationId;
use super::persistence::Persistence;
use crate::decision_counts::History;
use crate::engine::Engine;
use crate::policies::Policies;
use crate::request::Rejection;
use crate::store_stack::StoreStack;

/// Interval between reads of a shared document.
const POLL_INTERVAL_MS: u64 = 500;
/// Delay between the expiry of a change and its record. The record removes the change on all nodes, whose clocks may differ;
/// above this difference a node logs a warning.
const EXPIRY_GRACE_MS: u64 = 1000;
/// Delay before the next attempt if the record could not be written.
const EXPIRY_RETRY_MS: u64 = 60_000;
/// Maximum number of attempts to write a change while other nodes write too.
const MAX_ATTEMPTS: u64 = 20;

/// Combines the configuration file with the changes and applies the result to the engine.
#[derive(Debug)]
pub struct ChangeController {
    engine: Arc<Engine<StoreStack>>,
    persistence: Persistence,
    state: Mutex<State>,
    /// Serializes writes of this process, which would otherwise conflict with each other.
    write_lock: tokio::sync::Mutex<()>,
    history: History,
}

#[derive(Debug)]
struct State {
    base: Base,
    changeset: Arc<Changeset>,
    version: u64,
    /// Whether the document of that version lacks items of the changeset.
    is_store_behind: bool,
    /// Earliest expiry of a change.
    next_expiry_ms: Option<u64>,
    /// Changes that are not in force, each with the reason.
    not_in_force: Vec<(Change, String)>,
}

/// Reason why a change was not made.
#[derive(Debug)]
pub enum ChangeError {
    /// The change is invalid.
    Invalid(Rejection),
    /// There is no such change.
    NotFound(String),
    /// The store or the file could not store the change.
    NotStored(StoreError),
}

impl From<Rejection> for ChangeError {
    fn from(rejection: Rejection) -> Self {
        Self::Invalid(rejection)
    }
}

impl ChangeController {
    pub fn new(engine: Arc<Engine<StoreStack>>, persistence: Persistence, base: Base) -> Self {
        let state = State {
            base,
            changeset: Arc::default(),
            version: 0,
            is_store_behind: false,
            next_expiry_ms: None,
            not_in_force: Vec::new(),
        };
        Self {
            engine,
            persistence,
            state: Mutex::new(state),
            write_lock: tokio::sync::Mutex::default(),
            history: History::default(),
        }
    }

    /// Returns the engine that the changes apply to.
    pub fn engine(&self) -> &Arc<Engine<StoreStack>> {
        &self.engine
    }

    /// Returns the current changeset.
    pub fn changeset(&self) -> Arc<Changeset> {
        Arc::clone(&self.lock().changeset)
    }

    /// Returns the changes that are in force.
    pub fn in_force(&self) -> Vec<Change> {
        let (changeset, not_in_force, now_ms) =
            (self.changeset(), self.not_in_force(), self.engine.clock().now_ms());
        let is_in_force = |change: &Change| {
            !change.is_expired(now_ms) && !not_in_force.iter().any(|(other, _)| other == change)
        };
        changeset.changes.iter().filter(|change| is_in_force(change)).cloned().collect()
    }

    /// Returns the changes whose policy or tier is missing in the file, each with the reason.
    pub fn not_in_force(&self) -> Vec<(Change, String)> {
        self.lock().not_in_force.clone()
    }

    /// Returns the decision counts of the last minute.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Replaces the base configuration after a reload of the file.
    pub fn set_base(&self, base: Base) {
        let mut state = self.lock();
        state.base = base;
        self.apply(&mut state);
        let now_ms = self.engine.clock().now_ms();
        for Subject { policy, part } in state.base.overridden(&state.changeset.changes, now_ms) {
            let (of, name) = part.kind_and_name(|key| self.engine.violations().key_for_log(key.as_bytes()));
            warn!(policy, of, name, "a change overrides the value in the configuration file");
        }
    }

    /// Reads the changes at startup. While the store is unreachable, the configuration file alone applies.
    pub async fn load(&self) {
        let result = self.sync().await;
        self.report_sync(result.is_ok());
        if let Err(error) = result {
            error!(%error, "cannot read the changes; only the configuration file is in force until the store is reachable");
        }
    }

    /// Reports in the metrics and in `/readyz` whether the changes are current.
    fn report_sync(&self, is_known: bool) {
        gauge!("slidegate_changes_known").set(if is_known { 1.0 } else { 0.0 });
        self.engine.readiness().set_changes_known(is_known);
    }

    /// Follows changes of other nodes and records expiries, until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let clock = self.engine.clock();
        let mut has_failed = false;
        let mut next_record_ms = 0;
        loop {
            clock.sleep(POLL_INTERVAL_MS).await;
            self.history.record(clock.now_ms());
            if self.persistence.is_shared() {
                let result = self.sync().await;
                self.report_sync(result.is_ok());
                match result {
                    Ok(()) => has_failed = false,
                    Err(error) if !std::mem::replace(&mut has_failed, true) => {
                        warn!(%error, "cannot read changes of other nodes; retrying twice a second");
                    }
                    Err(_) => {}
                }
            }
            let now_ms = clock.now_ms();
            {
                let mut state = self.lock();
                if state.next_expiry_ms.is_some_and(|end_ms| end_ms <= now_ms) {
                    self.apply(&mut state);
                }
            }
            let expired_by_ms = now_ms.saturating_sub(EXPIRY_GRACE_MS);
            if !has_failed
                && now_ms >= next_record_ms
                && self.changeset().has_expired(expired_by_ms)
                && let Err(error) = self.close_expired(expired_by_ms).await
            {
                warn!(%error, "cannot record the expiry of a change; retrying in 60 s");
                next_record_ms = now_ms + EXPIRY_RETRY_MS;
            }
        }
    }

    /// Records expired changes, unless another node was faster. On a conflict it does not retry: nodes read at different
    /// times, and usually find the record of the other node at their next read.
    async fn close_expired(&self, now_ms: u64) -> Result<(), StoreError> {
        let _guard = self.write_lock.lock().await;
        self.sync().await?;
        let (mut changeset, base, known) = self.snapshot();
        let expired = changeset.close_expired(&base, now_ms);
        if expired.is_empty() {
            return Ok(());
        }
        if self.write(known, changeset).await? {
            self.log_all(&expired);
        }
        Ok(())
    }

    /// Returns a copy of the changeset to edit, the base configuration and the version of the document.
    fn snapshot(&self) -> (Changeset, Base, u64) {
        let state = self.lock();
        (Changeset::clone(&state.changeset), state.base.clone(), state.version)
    }

    fn log_all(&self, entries: &[AuditEntry]) {
        for entry in entries {
            self.log(entry);
        }
    }

    /// Records an operation that the store has executed, in the process log and in the audit log. Returns the entry with its
    /// identity, and whether the audit log has it. The operation is done in either case.
    pub async fn record(&self, entry: AuditEntry) -> (AuditEntry, bool) {
        let recorded = self.change(|changeset, _| {
            let id = changeset.next_id(entry.at.0);
            changeset.record(AuditEntry { id, ..entry.clone() });
            Ok(id)
        });
        let (id, is_stored) = match recorded.await {
            Ok(id) => (id, self.changeset().audit.iter().any(|stored| stored.id == id)),
            Err(_) => (OperationId::new(entry.at.0), false),
        };
        let entry = AuditEntry { id, ..entry };
        self.log(&entry);
        (entry, is_stored)
    }

    /// Writes one line to the process log, which works without the store.
    pub fn log(&self, entry: &AuditEntry) {
        let Subject { policy, part } = &entry.subject;
        let (of, name) = part.kind_and_name(|key| self.engine.violations().key_for_log(key.as_bytes()));
        info!(
            target: "slidegate::audit",
            by = entry.by,
            action = ?entry.action,
            policy,
            of,
            name,
            before = %entry.before,
            after = %entry.after,
            note = entry.note,
            "changed"
        );
    }

    /// Edits the changeset, stores it and puts it in force here. If another node writes first, it calls `edit` again on the
    /// merged changeset, up to [`MAX_ATTEMPTS`] times.
    pub async fn change<T>(
        &self,
        edit: impl Fn(&mut Changeset, &Base) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let _guard = self.write_lock.lock().await;
        for attempt in 0..MAX_ATTEMPTS {
            self.sync().await.map_err(ChangeError::NotStored)?;
            let (mut changeset, base, known) = self.snapshot();
            let expired = changeset.close_expired(&base, self.engine.clock().now_ms());
            let outcome = edit(&mut changeset, &base)?;
            if self.write(known, changeset).await.map_err(ChangeError::NotStored)? {
                self.log_all(&expired);
                return Ok(outcome);
            }
            // Random backoff, because other nodes write too.
            self.engine.clock().sleep(fastrand::u64(0..=10 * (attempt + 1))).await;
        }
        let message =
            format!("other nodes wrote changes at the same time, {MAX_ATTEMPTS} times in a row; try again");
        Err(ChangeError::NotStored(StoreError::transient(message)))
    }

    /// Replaces the document of version `known` by the changeset. Returns `false` if the store has another document by now
    /// that does not include the changeset.
    async fn write(&self, known: u64, mut changeset: Changeset) -> Result<bool, StoreError> {
        changeset.generation += 1;
        let text =
            serde_json::to_string(&changeset).map_err(|error| StoreError::permanent(error.to_string()))?;
        let document = SharedDocument::new(text);
        let is_written = match self.persistence.write_document(known, &document).await {
            // The outcome is unknown. Another node may have added something to the document since.
            Err(error) if error.may_have_counted() => match self.persistence.read_document(known).await {
                Ok(Some(found)) if found.version == document.version => true,
                Ok(Some(found)) => Changeset::read(&found.text).is_ok_and(|found| found.includes(&changeset)),
                Ok(None) => false,
                Err(_) => return Err(error),
            },
            other => other?,
        };
        if is_written {
            self.adopt(&mut self.lock(), document.version, &changeset);
        }
        Ok(is_written)
    }

    /// Merges the document of the store, and writes items back that it lacks.
    async fn sync(&self) -> Result<(), StoreError> {
        let known = self.lock().version;
        if let Some(document) = self.persistence.read_document(known).await? {
            let found = self.parse(&document)?;
            let mut state = self.lock();
            // Otherwise this process has written a newer document during the read.
            if state.version == known {
                self.adopt(&mut state, document.version, &found);
                info!(changes = state.changeset.changes.len(), "read changes from the store");
            }
        }
        let (version, behind) = {
            let state = self.lock();
            (state.version, state.is_store_behind.then(|| Changeset::clone(&state.changeset)))
        };
        if let Some(changeset) = behind {
            warn!("the store lacks changes that this node has; writing them back");
            self.write(version, changeset).await?;
        }
        Ok(())
    }

    fn parse(&self, document: &SharedDocument) -> Result<Changeset, StoreError> {
        if document.version == 0 {
            return Ok(Changeset::default());
        }
        Changeset::read(&document.text).map_err(|error| {
            let location = self.persistence.location();
            StoreError::permanent(format!("cannot parse the document of changes in {location}: {error}"))
        })
    }

    /// Merges the document of a version, which may lack items of the changeset.
    fn adopt(&self, state: &mut State, version: u64, found: &Changeset) {
        let merged = state.changeset.merged(found);
        state.is_store_behind = !found.includes(&merged);
        state.version = version;
        state.changeset = Arc::new(merged);
        self.apply(state);
    }

    /// Applies the combination of the file and the unexpired changes to the engine.
    fn apply(&self, state: &mut State) {
        let now_ms = self.engine.clock().now_ms();
        let Combined { policies, switches, not_in_force } =
            state.base.combined_with(&state.changeset.changes, now_ms);
        for (change, reason) in &not_in_force {
            error!(policy = change.subject.policy, reason, "a change is not in force");
        }
        gauge!("slidegate_changes")
            .set(f64::from(u32::try_from(state.changeset.changes.len()).unwrap_or(u32::MAX)));
        state.not_in_force = not_in_force;
        if let Some(layer) = self.engine.store().switches() {
            layer.replace(switches);
        }
        self.engine.set_policies(Policies::from(&policies));
        state.next_expiry_ms = state.changeset.next_expiry_ms(now_ms);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
