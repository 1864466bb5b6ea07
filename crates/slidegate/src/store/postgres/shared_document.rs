//! The note that all who share a schema can read and change.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::PostgresStore;
use super::failure::statement_error;
use super::pool::Cancelling;
use crate::error::StoreError;
use crate::store::shared_document::{SharedDocument, SharedDocuments};

/// How long the database may take.
const PATIENCE: Duration = Duration::from_secs(1);

impl PostgresStore {
    /// One call, which is a transaction of its own and leaves nothing prepared behind, so that a pooler may be between.
    async fn run_document_call(
        &self,
        call: &str,
        arguments: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, StoreError> {
        let asking = async {
            let mut client = Cancelling::get(&self.shared).await?;
            let text = format!("SELECT * FROM {}.{call}", self.shared.schema);
            let rows = client.client().query_typed(&text, arguments).await;
            client.is_done = true;
            let rows = rows.map_err(|error| statement_error(&error))?;
            let nothing = || StoreError::permanent("postgres: the note: the answer has an unknown shape");
            rows.into_iter().next().ok_or_else(nothing)
        };
        let late = |_| StoreError::lost(format!("postgres: no answer within {PATIENCE:?}"));
        tokio::time::timeout(PATIENCE, asking).await.map_err(late)?
    }
}

impl SharedDocuments for PostgresStore {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        let known = known.cast_signed();
        let row = self.run_document_call("read_note($1)", &[(&known, Type::INT8)]).await?;
        let unreadable = |error| StoreError::permanent(format!("postgres: the note: {error}"));
        let version: Option<i64> = row.try_get(0).map_err(unreadable)?;
        let Some(version) = version else { return Ok(None) };
        let text = row.try_get(1).map_err(unreadable)?;
        Ok(Some(SharedDocument { version: version.cast_unsigned(), text }))
    }

    async fn write_document(&self, known: u64, note: &SharedDocument) -> Result<bool, StoreError> {
        let (known, version) = (known.cast_signed(), note.version.cast_signed());
        let arguments: [(&(dyn ToSql + Sync), Type); 3] =
            [(&known, Type::INT8), (&version, Type::INT8), (&note.text, Type::TEXT)];
        let row = self.run_document_call("write_note($1, $2, $3)", &arguments).await?;
        row.try_get(0).map_err(|error| StoreError::permanent(format!("postgres: the note: {error}")))
    }
}
