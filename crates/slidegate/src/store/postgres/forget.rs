//! Forgets all keys of a policy: their names are a range of the primary key, which is deleted step by step.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio_postgres::SimpleQueryRow;

use super::batch::Name;
use super::failure::{is_worth_repeating, statement_error};
use super::migration::TABLE_NAMES;
use super::pool::{Cancelling, Shared};
use super::statement::{Unreadable, number, query};
use crate::error::StoreError;

/// How many keys go with one statement, which takes some 10 ms.
const STEP: usize = 1000;
/// How long a statement may take, waiting for decisions about the same keys included.
const STEP_BUDGET: Duration = Duration::from_secs(5);
/// How often a statement that was in the way of another one is sent again.
const MAX_REPEATS: usize = 10;

/// Forgets the keys with these names in both tables: which of them a policy counts in may have changed. Returns how many
/// there were.
pub(super) async fn forget(shared: &Shared, names: &RangeInclusive<u128>) -> Result<u64, StoreError> {
    let mut gone = 0;
    for table in TABLE_NAMES {
        let mut from = Some(*names.start());
        while let Some(first) = from {
            let (removed, last) = step(shared, table, first..=*names.end()).await?;
            gone += removed;
            from = last.and_then(|last| last.checked_add(1)).filter(|next| next <= names.end());
        }
    }
    Ok(gone)
}

/// How many went, and the last name that was looked at.
async fn step(
    shared: &Shared,
    table: &str,
    names: RangeInclusive<u128>,
) -> Result<(u64, Option<u128>), StoreError> {
    let [from, to] = [names.start(), names.end()].map(|name| Name(name.to_be_bytes()));
    let text = format!("SELECT * FROM {}.forget_{table}('{from}', '{to}', {STEP})", shared.schema);
    let mut repeats = 0;
    loop {
        let mut client = Cancelling::get(shared).await?;
        let answer = tokio::time::timeout(STEP_BUDGET, query(client.client(), &text, STEP_BUDGET)).await;
        client.is_done = answer.is_ok();
        match answer {
            Ok(Ok(row)) => {
                let odd = |Unreadable| StoreError::permanent("postgres: the answer has an unknown shape");
                return row.ok_or(Unreadable).and_then(|row| read(&row)).map_err(odd);
            }
            Ok(Err(error)) if is_worth_repeating(&error) && repeats < MAX_REPEATS => repeats += 1,
            Ok(Err(error)) => return Err(statement_error(&error)),
            Err(_) => {
                let message = format!("postgres: no answer within {STEP_BUDGET:?}");
                return Err(StoreError::lost(message).too_late());
            }
        }
    }
}

fn read(row: &SimpleQueryRow) -> Result<(u64, Option<u128>), Unreadable> {
    let last = row.try_get("last_name").map_err(|_| Unreadable)?;
    let last = last.map(|last| u128::from_str_radix(&last.replace('-', ""), 16).map_err(|_| Unreadable));
    Ok((number(row, "gone")?.unwrap_or(0), last.transpose()?))
}
