//! Creation of the tables and functions.

use tokio_postgres::{Client, GenericClient};

use super::failure::statement_error;
use crate::error::StoreError;

/// Version of the schema. It increases with every change of the tables or functions.
pub(super) const VERSION: i32 = 7;
/// Tables of the counts that a crash may lose, and of those that survive it.
pub(super) const TABLE_NAMES: [&str; 2] = ["ephemeral", "durable"];
/// Lock that serialises concurrent migrations.
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
    include_str!("sql/shared_document.sql"),
];
const INVALIDATION: &str = include_str!("sql/invalidation.sql");
const DECIDE: &str = include_str!("sql/decide.sql");
const DECIDE_UNIFORM: &str = include_str!("sql/decide_uniform.sql");
const CLEAN: &str = include_str!("sql/clean.sql");
const FORGET: &str = include_str!("sql/forget.sql");
const ACCESS: &str = include_str!("sql/access.sql");

/// Returns the migration as a script, which may be run any number of times.
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
        text.push_str(&INVALIDATION.replace("@table@", table));
        text.push_str(&DECIDE.replace("@table@", table));
        text.push_str(&DECIDE_UNIFORM.replace("@table@", table));
        text.push_str(&FORGET.replace("@table@", table));
    }
    text.push_str(ACCESS);
    text.replace("@schema@", schema).replace("@version@", &VERSION.to_string())
}

/// Creates the schema or migrates it to this version, all or nothing: statements of one message are one transaction.
pub(super) async fn migrate(client: &Client, schema: &str) -> Result<(), StoreError> {
    client.batch_execute(&statements(schema)).await.map_err(|error| statement_error(&error))
}

/// Migrates unless the schema has this version, so that a role without permission to migrate can use it.
pub(super) async fn ensure(client: &Client, schema: &str) -> Result<(), StoreError> {
    match installed_version(client, schema).await? {
        Some(VERSION) => Ok(()),
        _ => migrate(client, schema).await,
    }
}

/// Returns the version of the schema; `None` if there is no schema.
async fn installed_version(client: &impl GenericClient, schema: &str) -> Result<Option<i32>, StoreError> {
    let exists = client
        .query_typed(
            "SELECT to_regprocedure($1) IS NOT NULL",
            &[(&format!("{schema}.schema_version()"), tokio_postgres::types::Type::TEXT)],
        )
        .await
        .map_err(|error| statement_error(&error))?;
    if !exists.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = client
        .query_typed(&format!("SELECT {schema}.schema_version()"), &[])
        .await
        .map_err(|error| statement_error(&error))?;
    Ok(rows.first().map(|row| row.get(0)))
}
