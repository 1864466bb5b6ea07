//! Removal of expired rows from both tables, a few pages per statement.

use std::time::Duration;

use super::failure::statement_error;
use super::migration::TABLE_NAMES;
use super::shared::Shared;
use super::statement::{OrNull, UnexpectedFormat, number, query};
use crate::error::StoreError;

/// Timeout of a statement. A few pages take far less.
const STEP_BUDGET: Duration = Duration::from_secs(30);

/// Returns the number of removed rows.
pub(super) async fn clean(shared: &Shared) -> Result<u64, StoreError> {
    let mut total = 0;
    for table in TABLE_NAMES {
        let mut page = Some(0);
        while let Some(from) = page {
            let timed_out = |_| StoreError::lost(format!("postgres: no reply within {STEP_BUDGET:?}"));
            let (removed, next) =
                tokio::time::timeout(STEP_BUDGET, sweep(shared, table, from)).await.map_err(timed_out)??;
            total += removed;
            page = next;
        }
    }
    Ok(total)
}

/// Cleans some pages. Returns the number of removed rows, and the next page, if there is one.
async fn sweep(shared: &Shared, table: &str, from: i64) -> Result<(u64, Option<i64>), StoreError> {
    let client = shared.pool.client().await?;
    let text = format!(
        "SELECT removed, next_page FROM {}.sweep_{table}({from}, {})",
        shared.schema,
        OrNull(shared.given_ms())
    );
    let row = query(&client, &text, STEP_BUDGET).await.map_err(|error| statement_error(&error))?;
    let read = |row| Ok((number(&row, "removed")?.unwrap_or(0), number(&row, "next_page")?));
    row.map_or(Ok((0, None)), read).map_err(|error: UnexpectedFormat| error.into())
}
