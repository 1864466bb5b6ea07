//! The tables and functions in the database.

use tokio_postgres::{Client, GenericClient};

use super::failure::statement_error;
use crate::error::StoreError;

/// Grows whenever the tables or functions change.
pub(super) const VERSION: i32 = 6;
/// What does not survive a crash, and what does.
pub(super) const TABLE_NAMES: [&str; 2] = ["ephemeral", "durable"];
/// Those who migrate at the same time wait for each other by this.
const ADVISORY_LOCK: i64 = 0x511D_E6A7_E000_0001;

const GUARD: &str = include_str!("sql/guard.sql");
const TABLES: &str = include_str!("sql/tables.sql");
const FUNCTIONS: [&str; 7] = [
    include_str!("sql/former.sql"),
    include_str!("sql/arithmetic.sql"),
    include_str!("sql/counters.sql"),
    include_str!("sql/entries.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/run.sql"),
    include_str!("sql/note.sql"),
];
const NEWS: &str = include_str!("sql/news.sql");
const DECIDE: &str = include_str!("sql/decide.sql");
const ALIKE: &str = include_str!("sql/alike.sql");
const CLEAN: &str = include_str!("sql/clean.sql");
const FORGET: &str = include_str!("sql/forget.sql");
const ACCESS: &str = include_str!("sql/access.sql");

/// All that has to be there, as one script that may be run any number of times.
pub(super) fn script(schema: &str) -> String {
    format!("BEGIN;\n{}COMMIT;\n", statements(schema))
}

fn statements(schema: &str) -> String {
    let mut text = format!("SELECT pg_advisory_xact_lock({ADVISORY_LOCK});\n");
    text.push_str(GUARD);
    text.push_str(TABLES);
    for functions in FUNCTIONS {
        text.push_str(functions);
    }
    for table in TABLE_NAMES {
        text.push_str(&CLEAN.replace("@table@", table));
        text.push_str(&NEWS.replace("@table@", table));
        text.push_str(&DECIDE.replace("@table@", table));
        text.push_str(&ALIKE.replace("@table@", table));
        text.push_str(&FORGET.replace("@table@", table));
    }
    text.push_str(ACCESS);
    text.replace("@schema@", schema).replace("@version@", &VERSION.to_string())
}

/// Makes what is missing, all or nothing: statements that are sent together are one transaction.
pub(super) async fn migrate(client: &Client, schema: &str) -> Result<(), StoreError> {
    client.batch_execute(&statements(schema)).await.map_err(|error| statement_error(&error))
}

/// Makes what is missing unless all of it is there, so that whoever may not make anything can still use it.
pub(super) async fn ensure(client: &Client, schema: &str) -> Result<(), StoreError> {
    match installed(client, schema).await? {
        Some(VERSION) => Ok(()),
        _ => migrate(client, schema).await,
    }
}

/// The version that is there; `None` if nothing is.
async fn installed(client: &impl GenericClient, schema: &str) -> Result<Option<i32>, StoreError> {
    let known = client
        .query_typed(
            "SELECT to_regprocedure($1) IS NOT NULL",
            &[(&format!("{schema}.schema_version()"), tokio_postgres::types::Type::TEXT)],
        )
        .await
        .map_err(|error| statement_error(&error))?;
    if !known.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = client
        .query_typed(&format!("SELECT {schema}.schema_version()"), &[])
        .await
        .map_err(|error| statement_error(&error))?;
    Ok(rows.first().map(|row| row.get(0)))
}
