//! The note that all who share a server can read and change.
//!
//! On a connection of its own: nobody who waits for a decision waits for it.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, Script};
use tokio::sync::Mutex;

use super::endpoint::{Link, Target};
use super::{RedisStore, Road, key};
use crate::error::StoreError;
use crate::store::shared_document::{SharedDocument, SharedDocuments};

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(1);

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/note.lua")));

/// The way to the note.
pub(super) struct DocumentLink {
    name: String,
    link: Mutex<Option<Link>>,
}

impl DocumentLink {
    pub(super) fn new(prefix: &str) -> Self {
        Self { name: format!("{prefix}:note"), link: Mutex::default() }
    }
}

impl RedisStore {
    async fn document_link(&self) -> Result<Link, StoreError> {
        let access = &self.shared.access;
        match &self.road {
            Road::One(_) => self.target.connect(access).await,
            Road::Cluster(cluster) => {
                let address = cluster.address(key::slot(self.document.name.as_bytes())).await?;
                Target::At(access.at(&address)).connect(access).await
            }
        }
    }

    async fn run_document_call<T: FromRedisValue>(
        &self,
        known: u64,
        text: Option<&str>,
    ) -> Result<T, StoreError> {
        // Not waited for by two: the second would find the answer of the first out of date.
        let mut held = self.document.link.lock().await;
        let mut link = match held.take() {
            Some(link) if !*link.is_over.borrow() => link,
            _ => self.document_link().await?,
        };
        let mut call = SCRIPT.key(self.document.name.as_str());
        call.arg(known);
        if let Some(text) = text {
            call.arg(text);
        }
        let answer = tokio::time::timeout(PATIENCE, call.invoke_async(&mut link.connection)).await;
        match answer {
            Ok(Ok(answer)) => {
                *held = Some(link);
                Ok(answer)
            }
            // Whoever refuses may not be the one to ask any more: the next one asks anew who is.
            Ok(Err(error)) => {
                if let Road::Cluster(cluster) = &self.road {
                    cluster.refresh();
                }
                let message = format!("redis at {}: the note: {error}", link.place);
                Err(if error.is_io_error() {
                    StoreError::lost(message)
                } else {
                    StoreError::transient(message)
                })
            }
            Err(_) => Err(StoreError::lost(format!("redis at {}: no reply within {PATIENCE:?}", link.place))),
        }
    }
}

impl SharedDocuments for RedisStore {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        let found: Option<String> = self.run_document_call(known, None).await?;
        let Some(found) = found else { return Ok(None) };
        let unreadable = || StoreError::permanent(format!("redis: {:?} is not a note", self.document.name));
        let (version, text) = found.split_once(' ').ok_or_else(unreadable)?;
        let version = version.parse().map_err(|_| unreadable())?;
        Ok(Some(SharedDocument { version, text: text.to_owned() }))
    }

    async fn write_document(&self, known: u64, note: &SharedDocument) -> Result<bool, StoreError> {
        let text = format!("{} {}", note.version, note.text);
        self.run_document_call::<i64>(known, Some(&text)).await.map(|is_written| is_written == 1)
    }
}
