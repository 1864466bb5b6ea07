//! Where changes are made and followed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::gauge;
use slidegate::{SharedDocument, SharedDocuments, StoreError};
use tracing::{error, info, warn};

use super::book::{AuditEntry, Book, Change, Subject};
use super::combine::{Base, Combined};
use super::keeper::Keeper;
use super::stamp::Stamp;
use crate::app::App;
use crate::request::Refusal;
use crate::served::Switched;
use crate::tally::History;

/// How often the book is looked at, where others may change it.
const LOOK_MS: u64 = 500;
/// How long a change is over before a node writes so down by itself. That ends it for all, and clocks may differ: by more
/// than this, the log warns.
const SURELY_OVER_MS: u64 = 1000;
/// How long it waits if that could not be kept.
const NOT_KEPT_MS: u64 = 60_000;
/// How often a change is tried again because another one was faster.
const MOST_ATTEMPTS: u64 = 20;

/// Holds what the file says and what has been changed, and keeps both in force.
#[derive(Debug)]
pub(crate) struct Desk {
    app: Arc<App<Switched>>,
    keeper: Keeper,
    state: Mutex<State>,
    /// One change at a time; others of this process would only be in each other's way.
    changing: tokio::sync::Mutex<()>,
    history: History,
}

#[derive(Debug)]
struct State {
    base: Base,
    book: Arc<Book>,
    version: u64,
    /// Whether the document of that version lacks something that the book has.
    is_store_behind: bool,
    /// When a change ends next.
    next_end_ms: Option<u64>,
    /// Changes that are not in force, and why.
    idle: Vec<(Change, String)>,
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum DeskError {
    /// It cannot be.
    Refused(Refusal),
    /// There is no such change.
    Absent(String),
    /// It could not be kept.
    NotKept(StoreError),
}

impl From<Refusal> for DeskError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Desk {
    pub(crate) fn new(app: Arc<App<Switched>>, keeper: Keeper, base: Base) -> Self {
        let state = State {
            base,
            book: Arc::default(),
            version: 0,
            is_store_behind: false,
            next_end_ms: None,
            idle: Vec::new(),
        };
        Self {
            app,
            keeper,
            state: Mutex::new(state),
            changing: tokio::sync::Mutex::default(),
            history: History::default(),
        }
    }

    pub(crate) fn app(&self) -> &Arc<App<Switched>> {
        &self.app
    }

    /// What has been changed.
    pub(crate) fn book(&self) -> Arc<Book> {
        Arc::clone(&self.lock().book)
    }

    /// The changes that are not over.
    pub(crate) fn in_force(&self) -> Vec<Change> {
        let (book, idle, now_ms) = (self.book(), self.idle(), self.app.clock().now_ms());
        let is_idle = |change: &Change| idle.iter().any(|(idle, _)| idle == change);
        book.changes.iter().filter(|change| !change.is_over(now_ms) && !is_idle(change)).cloned().collect()
    }

    /// Those of them that the file has no place for, and why.
    pub(crate) fn idle(&self) -> Vec<(Change, String)> {
        self.lock().idle.clone()
    }

    /// How it was up to a minute ago.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// The file has changed.
    pub(crate) fn set_base(&self, base: Base) {
        let mut state = self.lock();
        state.base = base;
        self.enforce(&mut state);
        let now_ms = self.app.clock().now_ms();
        for Subject { policy, part } in state.base.covered(&state.book.changes, now_ms) {
            let (of, name) = part.named(|key| self.app.violations().name(key.as_bytes()));
            warn!(policy, of, name, "a change is in force, and what the file says of the same has no effect");
        }
    }

    /// Reads the book for the first time. Without its store the service starts as the file says, and learns the rest
    /// as soon as it can.
    pub(crate) async fn open(&self) {
        let looked = self.look().await;
        self.say_whether_known(looked.is_ok());
        if let Err(error) = looked {
            error!(%error, "what was changed while it ran is not known yet, and so not in force");
        }
    }

    /// For whoever watches.
    fn say_whether_known(&self, is_known: bool) {
        gauge!("slidegate_changes_known").set(if is_known { 1.0 } else { 0.0 });
        self.app.set_changes_known(is_known);
    }

    /// Follows what others change, for as long as it is polled.
    pub(crate) async fn follow(self: Arc<Self>) {
        let clock = self.app.clock();
        let mut was_away = false;
        let mut write_from_ms = 0;
        loop {
            clock.sleep(LOOK_MS).await;
            self.history.remember(clock.now_ms());
            if self.keeper.is_shared() {
                let looked = self.look().await;
                self.say_whether_known(looked.is_ok());
                match looked {
                    Ok(()) => was_away = false,
                    Err(error) if !std::mem::replace(&mut was_away, true) => {
                        warn!(%error, "changes by others are not seen for now");
                    }
                    Err(_) => {}
                }
            }
            let now_ms = clock.now_ms();
            {
                let mut state = self.lock();
                if state.next_end_ms.is_some_and(|end_ms| end_ms <= now_ms) {
                    self.enforce(&mut state);
                }
            }
            let surely_over_ms = now_ms.saturating_sub(SURELY_OVER_MS);
            if !was_away
                && now_ms >= write_from_ms
                && self.book().has_ended(surely_over_ms)
                && let Err(error) = self.close_ended(surely_over_ms).await
            {
                warn!(%error, "it cannot be written down that a change has ended");
                write_from_ms = now_ms + NOT_KEPT_MS;
            }
        }
    }

    /// Writes down what has ended, unless another node was faster. Nodes look at different moments: most find it done by
    /// the next time they look, and none tries twice in a row.
    async fn close_ended(&self, now_ms: u64) -> Result<(), StoreError> {
        let _turn = self.changing.lock().await;
        self.look().await?;
        let (mut book, base, known) = self.edition();
        let ended = book.close_ended(&base, now_ms);
        if ended.is_empty() {
            return Ok(());
        }
        if self.keep(known, book).await? {
            self.log_all(&ended);
        }
        Ok(())
    }

    /// The book, to be changed; the file, and which edition it is.
    fn edition(&self) -> (Book, Base, u64) {
        let state = self.lock();
        (Book::clone(&state.book), state.base.clone(), state.version)
    }

    fn log_all(&self, entries: &[AuditEntry]) {
        for entry in entries {
            self.log(entry);
        }
    }

    /// Records an operation that the store has executed, in the log of the process and in the audit log. Returns the entry
    /// with its identity, and whether the audit log has it; the operation is done in either case.
    pub(crate) async fn record(&self, entry: AuditEntry) -> (AuditEntry, bool) {
        let written = self.change(|book, _| {
            let id = book.next_stamp(entry.at.0);
            book.write_down(AuditEntry { id, ..entry.clone() });
            Ok(id)
        });
        let (id, is_kept) = match written.await {
            Ok(id) => (id, self.book().audit.iter().any(|kept| kept.id == id)),
            Err(_) => (Stamp::new(entry.at.0), false),
        };
        let entry = AuditEntry { id, ..entry };
        self.log(&entry);
        (entry, is_kept)
    }

    /// One line in the log of the process, which is there even if the store is not.
    pub(crate) fn log(&self, entry: &AuditEntry) {
        let Subject { policy, part } = &entry.subject;
        let (of, name) = part.named(|key| self.app.violations().name(key.as_bytes()));
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

    /// Changes the book: `edit` is asked again, with what is there then, if somebody else was faster. It is kept, and in
    /// force here, when this is done.
    pub(crate) async fn change<T>(
        &self,
        edit: impl Fn(&mut Book, &Base) -> Result<T, DeskError>,
    ) -> Result<T, DeskError> {
        let _turn = self.changing.lock().await;
        for attempt in 0..MOST_ATTEMPTS {
            self.look().await.map_err(DeskError::NotKept)?;
            let (mut book, base, known) = self.edition();
            let ended = book.close_ended(&base, self.app.clock().now_ms());
            let outcome = edit(&mut book, &base)?;
            if self.keep(known, book).await.map_err(DeskError::NotKept)? {
                self.log_all(&ended);
                return Ok(outcome);
            }
            // Others want to change something as well.
            self.app.clock().sleep(fastrand::u64(0..=10 * (attempt + 1))).await;
        }
        let message = format!("others have changed something {MOST_ATTEMPTS} times in a row: try again");
        Err(DeskError::NotKept(StoreError::transient(message)))
    }

    /// Writes the book in the place of the document of version `known`. Returns `false` if there is another one by now that
    /// does not include the book.
    async fn keep(&self, known: u64, mut book: Book) -> Result<bool, StoreError> {
        book.generation += 1;
        let text = serde_json::to_string(&book).map_err(|error| StoreError::permanent(error.to_string()))?;
        let note = SharedDocument::new(text);
        let is_kept = match self.keeper.write_document(known, &note).await {
            // The outcome is unknown. Another node may have added something to the document since.
            Err(error) if error.may_have_counted() => match self.keeper.read_document(known).await {
                Ok(Some(found)) if found.version == note.version => true,
                Ok(Some(found)) => Book::read(&found.text).is_ok_and(|found| found.includes(&book)),
                Ok(None) => false,
                Err(_) => return Err(error),
            },
            other => other?,
        };
        if is_kept {
            self.adopt(&mut self.lock(), note.version, &book);
        }
        Ok(is_kept)
    }

    /// Merges what the store has, and writes back what it lacks.
    async fn look(&self) -> Result<(), StoreError> {
        let known = self.lock().version;
        if let Some(note) = self.keeper.read_document(known).await? {
            let found = self.read(&note)?;
            let mut state = self.lock();
            // Unless it is old news: this process has changed something in the meantime.
            if state.version == known {
                self.adopt(&mut state, note.version, &found);
                info!(changes = state.book.changes.len(), "changes were read from the store");
            }
        }
        let (version, behind) = {
            let state = self.lock();
            (state.version, state.is_store_behind.then(|| Book::clone(&state.book)))
        };
        if let Some(book) = behind {
            warn!("the store lacks changes that this node knows, and they are written back");
            self.keep(version, book).await?;
        }
        Ok(())
    }

    fn read(&self, note: &SharedDocument) -> Result<Book, StoreError> {
        if note.version == 0 {
            return Ok(Book::default());
        }
        Book::read(&note.text).map_err(|error| {
            let place = self.keeper.place();
            StoreError::permanent(format!("the document of changes in {place} cannot be read: {error}"))
        })
    }

    /// Takes over the document of a version, which may be older than what is known.
    fn adopt(&self, state: &mut State, version: u64, found: &Book) {
        let merged = state.book.merged(found);
        state.is_store_behind = !found.includes(&merged);
        state.version = version;
        state.book = Arc::new(merged);
        self.enforce(state);
    }

    /// Puts in force what the file and the book say now.
    fn enforce(&self, state: &mut State) {
        let now_ms = self.app.clock().now_ms();
        let Combined { policies, switches, idle } = state.base.with(&state.book.changes, now_ms);
        for (change, why) in &idle {
            error!(policy = change.subject.policy, why, "a change is not in force");
        }
        gauge!("slidegate_changes")
            .set(f64::from(u32::try_from(state.book.changes.len()).unwrap_or(u32::MAX)));
        state.idle = idle;
        self.app.store().replace(switches);
        self.app.set_policies(policies);
        state.next_end_ms = state.book.next_end_ms(now_ms);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
