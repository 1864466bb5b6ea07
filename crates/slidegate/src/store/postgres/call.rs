//! A call: transactions that leave in one message, and what becomes of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Error};

use super::answers::Answers;
use super::batch::{Alike, Batch};
use super::failure::{is_of_data, is_too_late, is_worth_repeating, leaves_a_connection, statement_error};
use super::migration::TABLE_NAMES;
use super::pool::{Cancelling, Shared};
use super::statement::{Array, OrNull, Reply, send_all, whole_ms};
use crate::clock::{Clock, PreciseClock};
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
    let clock = PreciseClock::default();
    let start_ms = clock.now_ms();
    while !left.is_empty() {
        let mut connection = Cancelling::get(shared).await?;
        let passed = Duration::from_millis(clock.now_ms().saturating_sub(start_ms));
        let most = on_the_server(shared.budget.saturating_sub(passed));
        let is_one = left.len() == 1;
        let outcome = ask(shared, connection.client(), left, most).await;
        connection.is_done = match &outcome {
            Ok(()) => true,
            // Of several transactions the one that has failed is still there.
            Err(error) => {
                leaves_a_connection(error)
                    && (is_one || connection.client().simple_query("ROLLBACK").await.is_ok())
            }
        };
        match outcome {
            Ok(()) => {}
            // It was rolled back because somebody else was in the way.
            Err(error) if is_worth_repeating(&error) => {}
            Err(error) if leaves_a_connection(&error) && !is_too_late(&error) => set_apart(left, &error),
            Err(error) => return Err(statement_error(&error)),
        }
    }
    Ok(())
}

/// How long the server may take, so that its callers still hear what became of it.
fn on_the_server(left: Duration) -> Duration {
    left.saturating_sub(left / 8)
}

/// Sends all that is left. Whoever has an answer is left no more. If the server refuses something, that is the first who is
/// left, and it has not come to any behind it.
async fn ask(
    shared: &Shared,
    client: &Client,
    left: &mut VecDeque<Asked>,
    most: Duration,
) -> Result<(), Error> {
    let statements: Vec<String> = left.iter().map(|asked| asked.statement(shared, most)).collect();
    let mut replies = send_all(client, &statements, most).await?;
    while let Some(reply) = replies.next().await? {
        let Some(asked) = left.pop_front() else { break };
        // To be asked for in another way.
        left.extend(asked.settle(reply));
    }
    Ok(())
}

/// The first was rolled back, and the others must not suffer: those behind it, nor, if it is because of what is stored of one
/// key, those beside that.
fn set_apart(left: &mut VecDeque<Asked>, error: &Error) {
    match left.pop_front().map(|asked| asked.batch) {
        Some(batch) if is_of_data(error) && batch.names().count() > 1 => {
            batch.split().for_each(|batch| left.push_front(Asked { batch, alike: None }));
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

    fn statement(&self, shared: &Shared, most: Duration) -> String {
        let (table, schema) = (TABLE_NAMES[usize::from(self.batch.is_durable())], &shared.schema);
        let arguments = self.batch.arguments();
        let names = Array(&arguments.names);
        let given_ms = OrNull(shared.given_ms());
        let lock_ms = whole_ms(most);
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
    fn settle(self, reply: Reply) -> Option<Self> {
        let answers = match &self.alike {
            Some(alike) => reply.and_then(|row| Answers::read_alike(&row, alike)).transpose(),
            None => Some(reply.and_then(|row| Answers::read(&row))),
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
