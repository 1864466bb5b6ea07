//! Removes what counts nothing any more from all of both tables, a few pages a statement.

use std::time::Duration;

use super::failure::statement_error;
use super::migration::TABLE_NAMES;
use super::pool::Shared;
use super::statement::{OrNull, Unreadable, number, query};
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
    let text = format!(
        "SELECT gone, next_page FROM {}.sweep_{table}({from}, {})",
        shared.schema,
        OrNull(shared.given_ms())
    );
    let row = query(&client, &text, PATIENCE).await.map_err(|error| statement_error(&error))?;
    let read = |row| Ok((number(&row, "gone")?.unwrap_or(0), number(&row, "next_page")?));
    let odd = |Unreadable| StoreError::permanent("postgres: the answer has an unknown shape");
    row.map_or(Ok((0, None)), read).map_err(odd)
}
