//! Storage of the shared document.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::PostgresStore;
use super::failure::statement_error;
use super::statement::UnexpectedFormat;
use crate::error::StoreError;
use crate::store::{SharedDocument, SharedDocuments};

/// Timeout of one function call.
const TIMEOUT: Duration = Duration::from_secs(1);

impl PostgresStore {
    /// Calls a function in a transaction of its own, and without a prepared statement, so that it works behind a pooler.
    async fn run_document_call(
        &self,
        call: &str,
        arguments: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, StoreError> {
        let execution = async {
            let mut connection = self.shared.connection().await?;
            let text = format!("SELECT * FROM {}.{call}", self.shared.schema);
            let rows = connection.client().query_typed(&text, arguments).await;
            connection.is_reusable = true;
            let rows = rows.map_err(|error| statement_error(&error))?;
            rows.into_iter().next().ok_or(UnexpectedFormat).map_err(StoreError::from)
        };
        let timed_out = |_| StoreError::lost(format!("postgres: no reply within {TIMEOUT:?}"));
        tokio::time::timeout(TIMEOUT, execution).await.map_err(timed_out)?
    }
}

impl SharedDocuments for PostgresStore {
    async fn read_document(&self, known: u64) -> Result<Option<SharedDocument>, StoreError> {
        let known = known.cast_signed();
        let row = self.run_document_call("read_shared_document($1)", &[(&known, Type::INT8)]).await?;
        let unreadable = |error| StoreError::permanent(format!("postgres: the shared document: {error}"));
        let version: Option<i64> = row.try_get(0).map_err(unreadable)?;
        let Some(version) = version else { return Ok(None) };
        let text = row.try_get(1).map_err(unreadable)?;
        Ok(Some(SharedDocument { version: version.cast_unsigned(), text }))
    }

    async fn write_document(&self, known: u64, document: &SharedDocument) -> Result<bool, StoreError> {
        let (known, version) = (known.cast_signed(), document.version.cast_signed());
        let arguments: [(&(dyn ToSql + Sync), Type); 3] =
            [(&known, Type::INT8), (&version, Type::INT8), (&document.text, Type::TEXT)];
        let row = self.run_document_call("write_shared_document($1, $2, $3)", &arguments).await?;
        row.try_get(0)
            .map_err(|error| StoreError::permanent(format!("postgres: the shared document: {error}")))
    }
}
