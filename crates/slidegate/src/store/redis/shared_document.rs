//! Storage of the shared document, on a connection of its own, so that it never delays a decision.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, Script};
use tokio::sync::Mutex;

use super::connector::Link;
use super::endpoint::Endpoint;
use super::{RedisStore, Route, key};
use crate::error::StoreError;
use crate::store::{SharedDocument, SharedDocuments};

/// Timeout of one script call.
const TIMEOUT: Duration = Duration::from_secs(1);

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/shared_document.lua")));

/// Key of the document and the connection to its server.
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
        let connector = &self.shared.connector;
        match &self.route {
            Route::Single(_) => self.endpoint.connect(connector).await,
            Route::Cluster(cluster) => {
                let address = cluster.address(key::slot(self.document.name.as_bytes())).await?;
                Endpoint::Fixed(connector.address(&address)).connect(connector).await
            }
        }
    }

    async fn run_document_call<T: FromRedisValue>(
        &self,
        known: u64,
        text: Option<&str>,
    ) -> Result<T, StoreError> {
        // Held during the call: calls run one after another.
        let mut held = self.document.link.lock().await;
        let mut link = match held.take() {
            Some(link) if !*link.is_closed.borrow() => link,
            _ => self.document_link().await?,
        };
        let mut call = SCRIPT.key(self.document.name.as_str());
        call.arg(known);
        if let Some(text) = text {
            call.arg(text);
        }
        match tokio::time::timeout(TIMEOUT, call.invoke_async(&mut link.connection)).await {
            Ok(Ok(reply)) => {
                *held = Some(link);
                Ok(reply)
            }
            // The server may not be the right one any more. The next call connects anew.
            Ok(Err(error)) => {
                if let Route::Cluster(cluster) = &self.route {
                    cluster.refresh();
                }
                let message = format!("redis at {}: the shared document: {error}", link.server);
                Err(if error.is_io_error() {
                    StoreError::lost(message)
                } else {
                    StoreError::transient(message)
                })
            }
            Err(_) => Err(StoreError::lost(format!("redis at {}: no reply within {TIMEOUT:?}", link.server))),
        }
    }
}

impl SharedDocuments for RedisStore {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        let found: Option<String> = self.run_document_call(known, None).await?;
        let Some(found) = found else { return Ok(None) };
        let unreadable = || {
            StoreError::permanent(format!(
                "redis: the value of {:?} is not a shared document",
                self.document.name
            ))
        };
        let (version, text) = found.split_once(' ').ok_or_else(unreadable)?;
        let version = version.parse().map_err(|_| unreadable())?;
        Ok(Some(SharedDocument { version, text: text.to_owned() }))
    }

    async fn write_document(&self, known: u64, document: &SharedDocument) -> Result<bool, StoreError> {
        let text = format!("{} {}", document.version, document.text);
        self.run_document_call::<i64>(known, Some(&text)).await.map(|is_written| is_written == 1)
    }
}
