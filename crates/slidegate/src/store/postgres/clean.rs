//! Removes what counts nothing any more from all of both tables, a few pages a statement.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::failure::statement_error;
use super::migration::TABLE_NAMES;
use super::pool::Shared;
use crate::error::StoreError;

/// Longer than a few pages take on any server that is alive.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn clean(shared: &Shared) -> Result<u64, StoreError> {
    let mut gone = 0;
    for table in TABLE_NAMES {
        let mut page = Some(0);
        while let Some(from) = page {
            let late = |_| StoreError::lost(format!("postgres: no answer within {PATIENCE:?}"));
            let (removed, next) =
                tokio::time::timeout(PATIENCE, sweep(shared, table, from)).await.map_err(late)??;
            gone += removed;
            page = next;
        }
    }
    Ok(gone)
}

/// How many went, and where to go on.
async fn sweep(shared: &Shared, table: &str, from: i64) -> Result<(u64, Option<i64>), StoreError> {
    let client = shared.client().await?;
    let text = format!("SELECT gone, next_page FROM {}.sweep_{table}($1, $2)", shared.schema);
    let values = [(&from as _, Type::INT8), (&shared.given_ms() as _, Type::INT8)];
    let rows = client.query_typed(&text, &values).await.map_err(|error| statement_error(&error))?;
    let Some(row) = rows.first() else { return Ok((0, None)) };
    Ok((row.get::<_, i64>(0).cast_unsigned(), row.get(1)))
}
