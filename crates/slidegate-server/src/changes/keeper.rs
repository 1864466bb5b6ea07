//! Where the book is kept: beside the counts, or in a file if those are in memory.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slidegate::{SharedDocument, SharedDocuments, StoreError};
use tracing::warn;

use crate::app::App;
use crate::served::{Innermost, Switched};
use crate::store::AnyStore;

/// Keeps the book.
#[derive(Debug)]
pub(crate) enum Keeper {
    /// In the store, for all who share it.
    Store(Arc<App<Switched>>),
    /// In a file, for one process after the other.
    File(PathBuf),
}

impl Keeper {
    /// Whether others may change it.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Store(_))
    }

    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Store(_) => "the store".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Better said at the start than when somebody has to change something.
    pub(crate) fn warn_if_it_cannot_keep(&self) {
        let Self::File(path) = self else { return };
        if let Err(error) = may_write(folder_of(path)) {
            warn!(state = self.place(), %error, "changes by the admin API will be refused: they cannot be kept");
        }
    }
}

impl SharedDocuments for Keeper {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        match self {
            Self::Store(app) => match app.store().innermost() {
                AnyStore::Redis(store) => store.read_document(known).await,
                AnyStore::Postgres(store) => store.read_document(known).await,
                AnyStore::Memory(_) => Ok(None),
            },
            Self::File(path) => off_thread(path, read).await.map(|note| {
                let note = note.unwrap_or_default();
                (note.version != known).then_some(note)
            }),
        }
    }

    async fn write_document(&self, known: u64, note: &SharedDocument) -> Result<bool, StoreError> {
        match self {
            Self::Store(app) => match app.store().innermost() {
                AnyStore::Redis(store) => store.write_document(known, note).await,
                AnyStore::Postgres(store) => store.write_document(known, note).await,
                AnyStore::Memory(_) => Ok(false),
            },
            Self::File(path) => {
                let note = note.clone();
                off_thread(path, move |path| {
                    if read(path)?.unwrap_or_default().version != known {
                        return Ok(false);
                    }
                    write(path, &note).map(|()| true)
                })
                .await
            }
        }
    }
}

async fn off_thread<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let path = path.to_owned();
    let place = path.display().to_string();
    let done = tokio::task::spawn_blocking(move || work(&path)).await;
    let failed = |error: &dyn std::fmt::Display| StoreError::permanent(format!("{place}: {error}"));
    done.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

/// The first line is the version, the rest the text.
fn read(path: &Path) -> std::io::Result<Option<SharedDocument>> {
    let found = match fs::read_to_string(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let note = found.split_once('\n').and_then(|(version, text)| {
        Some(SharedDocument { version: version.parse().ok()?, text: text.to_owned() })
    });
    note.map(Some).ok_or_else(|| std::io::Error::other("it is not a book of changes"))
}

/// Whole or not at all: whoever reads it meanwhile, or after a crash, finds the one or the other.
fn write(path: &Path, note: &SharedDocument) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // What a crash has left there, or somebody else has put there, is not written into.
    let _ = fs::remove_file(&beside);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    // It names customers.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&beside)?;
    file.write_all(format!("{}\n{}", note.version, note.text).as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The name is in the folder.
    fs::File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn may_write(folder: &Path) -> std::io::Result<()> {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
    Ok(())
}

#[cfg(not(unix))]
fn may_write(folder: &Path) -> std::io::Result<()> {
    fs::metadata(folder).map(drop)
}
