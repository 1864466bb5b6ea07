//! A call: transactions that leave in one message, and what becomes of them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::timeout;
use tokio_postgres::{Client, Error, SimpleQueryRow};

use super::answers::Answers;
use super::batch::{Alike, Batch};
use super::failure::{is_of_data, is_of_standby, is_worth_repeating, statement_error};
use super::migration::TABLE_NAMES;
use super::pool::{Cancelling, Shared};
use super::statement::{Array, OrNull, Unreadable, send_all, whole_ms};
use crate::error::StoreError;

/// Has all of it decided in one round trip, each batch in a transaction of its own, on a free connection.
pub(super) async fn call(shared: Arc<Shared>, batches: Vec<Batch>) {
    let mut left = batches.into_iter().map(Asked::new).collect();
    let error = match timeout(shared.budget, decide_all(&shared, &mut left)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => StoreError::lost(format!("postgres: no answer within {:?}", shared.budget)).too_late(),
    };
    for asked in left {
        asked.batch.fail(&error);
    }
}

/// Asks until nobody is left, unless that is of no use: then those are left whom the failure concerns.
async fn decide_all(shared: &Shared, left: &mut VecDeque<Asked>) -> Result<(), StoreError> {
    while !left.is_empty() {
        let mut connection = Cancelling::get(shared).await?;
        let outcome = ask(shared, connection.client(), left).await;
        // A connection that ended is not given back, nor one to a server that has become a standby.
        connection.is_done =
            outcome.as_ref().err().is_none_or(|error| error.as_db_error().is_some() && !is_of_standby(error));
        match outcome {
            Ok(()) => {}
            // It was rolled back because somebody else was in the way.
            Err(error) if is_worth_repeating(&error) => {}
            Err(error) if is_of_data(&error) => set_apart(left, &error),
            Err(error) => return Err(statement_error(&error)),
        }
    }
    Ok(())
}

/// Sends all that is left. Whoever has an answer is left no more; if this fails, it is because of the first who is, and
/// nothing came of any behind it.
async fn ask(shared: &Shared, client: &Client, left: &mut VecDeque<Asked>) -> Result<(), Error> {
    let statements: Vec<String> = left.iter().map(|asked| asked.statement(shared)).collect();
    let mut replies = send_all(client, &statements, shared.budget).await?;
    while let Some(row) = replies.next().await? {
        let Some(asked) = left.pop_front() else { break };
        // To be asked for in another way.
        left.extend(asked.settle(row));
    }
    Ok(())
}

/// The first was rolled back for all its keys because of one: the others must not suffer.
fn set_apart(left: &mut VecDeque<Asked>, error: &Error) {
    match left.pop_front().map(|asked| asked.batch) {
        Some(batch) if batch.names().count() > 1 => {
            batch.split().for_each(|single| left.push_front(Asked::new(single)));
        }
        Some(batch) => batch.fail(&statement_error(error)),
        None => {}
    }
}

/// A batch, and how it is asked for.
struct Asked {
    batch: Batch,
    /// If it can be decided by the set.
    alike: Option<Alike>,
}

impl Asked {
    fn new(batch: Batch) -> Self {
        Self { alike: batch.alike(), batch }
    }

    fn statement(&self, shared: &Shared) -> String {
        let (table, schema) = (TABLE_NAMES[usize::from(self.batch.is_durable())], &shared.schema);
        let arguments = self.batch.arguments();
        let names = Array(&arguments.names);
        let given_ms = OrNull(shared.given_ms());
        let lock_ms = whole_ms(shared.budget);
        let sync = OrNull(self.batch.is_durable().then(|| format!("'{}'", shared.synchronous.name())));
        if let Some(Alike { counts, cost, limit, window_ms }) = &self.alike {
            let counts = Array(counts);
            return format!(
                "SELECT * FROM {schema}.decide_alike_{table}({names}, {counts}, {cost}, {limit}, {window_ms}, \
                 {given_ms}, {lock_ms}, {sync})"
            );
        }
        let operations = format!(
            "{names}, {}, {}, {}, {}, {given_ms}",
            Array(&arguments.from_op),
            Array(&arguments.which),
            Array(&arguments.ops),
            Array(&arguments.op_at)
        );
        if self.batch.is_peek() {
            format!("SELECT * FROM {schema}.peek_{table}({operations})")
        } else {
            format!("SELECT * FROM {schema}.decide_{table}({operations}, {lock_ms}, {sync})")
        }
    }

    /// Hands out what the answer says; gives itself back if that is that nothing was done, because there are records of
    /// another form.
    fn settle(self, row: Option<SimpleQueryRow>) -> Option<Self> {
        let row = row.ok_or(Unreadable);
        let answers = match &self.alike {
            Some(alike) => row.and_then(|row| Answers::read_alike(&row, alike)).transpose(),
            None => Some(row.and_then(|row| Answers::read(&row))),
        };
        match answers {
            Some(answers) => {
                self.batch.settle(answers);
                None
            }
            None => Some(Self { alike: None, ..self }),
        }
    }
}
