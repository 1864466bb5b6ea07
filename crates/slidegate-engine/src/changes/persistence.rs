//! Persistence of the changeset: in the store, or in a file if the store is memory.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slidegate::StoreError;
use slidegate::store::{SharedDocument, SharedDocuments};
use tracing::warn;

use crate::engine::Engine;
use crate::store_stack::StoreStack;

/// Storage of the document of changes.
#[derive(Debug)]
pub enum Persistence {
    /// The store, shared by all nodes.
    Store(Arc<Engine<StoreStack>>),
    /// A file, for one process at a time.
    File(PathBuf),
}

impl Persistence {
    /// Returns whether other nodes can write the document.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Store(_))
    }

    /// Returns the location for messages.
    pub fn location(&self) -> String {
        match self {
            Self::Store(_) => "the store".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Logs a warning if the folder of the file is not writable, so that operators see it at startup.
    pub fn warn_if_not_writable(&self) {
        let Self::File(path) = self else { return };
        if let Err(error) = check_writable(parent_folder(path)) {
            warn!(state = self.location(), %error, "the folder of the state file is not writable; the admin API will \
                reject changes");
        }
    }
}

impl SharedDocuments for Persistence {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        match self {
            Self::Store(engine) => engine.store().base().read_document(known).await,
            Self::File(path) => run_blocking(path, read).await.map(|document| {
                let document = document.unwrap_or_default();
                (document.version != known).then_some(document)
            }),
        }
    }

    async fn write_document(&self, known: u64, document: &SharedDocument) -> Result<bool, StoreError> {
        match self {
            Self::Store(engine) => engine.store().base().write_document(known, document).await,
            Self::File(path) => {
                let document = document.clone();
                run_blocking(path, move |path| {
                    if read(path)?.unwrap_or_default().version != known {
                        return Ok(false);
                    }
                    write(path, &document).map(|()| true)
                })
                .await
            }
        }
    }
}

/// Runs blocking file access off the runtime's threads.
async fn run_blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let path = path.to_owned();
    let location = path.display().to_string();
    let result = tokio::task::spawn_blocking(move || work(&path)).await;
    let failed = |error: &dyn std::fmt::Display| StoreError::permanent(format!("{location}: {error}"));
    result.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

/// Reads the file: the version on the first line, then the text.
fn read(path: &Path) -> std::io::Result<Option<SharedDocument>> {
    let found = match fs::read_to_string(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let document = found.split_once('\n').and_then(|(version, text)| {
        Some(SharedDocument { version: version.parse().ok()?, text: text.to_owned() })
    });
    document.map(Some).ok_or_else(|| std::io::Error::other("not a document of changes"))
}

/// Replaces the file atomically: a concurrent reader, or a reader after a crash, finds the old or the new document.
fn write(path: &Path, document: &SharedDocument) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    // Never writes into an existing file: a crash or another user may have left one.
    let _ = fs::remove_file(&temporary);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    // The document contains keys, which may identify customers.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(format!("{}\n{}", document.version, document.text).as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // Persists the rename, which changes the folder.
    fs::File::open(parent_folder(path))?.sync_all()
}

fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
fn check_writable(folder: &Path) -> std::io::Result<()> {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
    Ok(())
}

#[cfg(not(unix))]
fn check_writable(folder: &Path) -> std::io::Result<()> {
    fs::metadata(folder).map(drop)
}
