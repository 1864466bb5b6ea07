//! Removal of all keys of a policy: their names are a range of the primary key, which is deleted in steps.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio_postgres::SimpleQueryRow;

use super::failure::{is_retryable, statement_error};
use super::migration::TABLE_NAMES;
use super::name::Name;
use super::shared::Shared;
use super::statement::{UnexpectedFormat, number, query};
use crate::error::StoreError;

/// Number of keys that a statement deletes at most, in about 10 ms.
const STEP: usize = 1000;
/// Timeout of a statement, which may wait for decisions about the same keys.
const STEP_BUDGET: Duration = Duration::from_secs(5);
/// Number of times that a statement is sent again after a conflict with a concurrent transaction.
const MAX_RETRIES: usize = 10;

/// Deletes the keys with these names from both tables, because the policy's durability may have changed. Returns their
/// number.
pub(super) async fn forget(shared: &Shared, names: &RangeInclusive<u128>) -> Result<u64, StoreError> {
    let mut total = 0;
    for table in TABLE_NAMES {
        let mut from = Some(*names.start());
        while let Some(first) = from {
            let (deleted, last) = step(shared, table, first..=*names.end()).await?;
            total += deleted;
            from = last.and_then(|last| last.checked_add(1)).filter(|next| next <= names.end());
        }
    }
    Ok(total)
}

/// Returns the number of deleted keys, and the last name that was visited.
async fn step(
    shared: &Shared,
    table: &str,
    names: RangeInclusive<u128>,
) -> Result<(u64, Option<u128>), StoreError> {
    let [from, to] = [names.start(), names.end()].map(|name| Name(name.to_be_bytes()));
    let text = format!("SELECT * FROM {}.forget_{table}('{from}', '{to}', {STEP})", shared.schema);
    let mut retries = 0;
    loop {
        let mut connection = shared.connection().await?;
        let reply = tokio::time::timeout(STEP_BUDGET, query(connection.client(), &text, STEP_BUDGET)).await;
        connection.is_reusable = reply.is_ok();
        match reply {
            Ok(Ok(row)) => {
                return row.ok_or(UnexpectedFormat).and_then(|row| read(&row)).map_err(StoreError::from);
            }
            Ok(Err(error)) if is_retryable(&error) && retries < MAX_RETRIES => retries += 1,
            Ok(Err(error)) => return Err(statement_error(&error)),
            Err(_) => {
                let message = format!("postgres: no reply within {STEP_BUDGET:?}");
                return Err(StoreError::lost(message).too_late());
            }
        }
    }
}

fn read(row: &SimpleQueryRow) -> Result<(u64, Option<u128>), UnexpectedFormat> {
    let last = row.try_get("last_name").map_err(|_| UnexpectedFormat)?;
    let last =
        last.map(|last| u128::from_str_radix(&last.replace('-', ""), 16).map_err(|_| UnexpectedFormat));
    Ok((number(row, "deleted")?.unwrap_or(0), last.transpose()?))
}
