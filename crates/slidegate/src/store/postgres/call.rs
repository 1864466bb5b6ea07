//! Call: sends batches, each as a transaction, in one message, and responds to their requests. A batch that may have been
//! executed is never sent again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::batch::{Batch, BatchResult, UniformBatch};
use super::failure::{is_connection_usable, is_invalid_record, is_retryable, is_timeout, statement_error};
use super::migration::TABLE_NAMES;
use super::shared::Shared;
use super::statement::{Array, OrNull, Reply, send_all, whole_ms};
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::remote::Batches;

/// Has the batches decided on an idle connection, within the budget.
pub(super) async fn execute(shared: Arc<Shared>, batches: Batches<Batch>) {
    let mut open = batches.into_iter().map(CallStatement::new).collect();
    let error = match tokio::time::timeout(shared.settings.budget(), decide_all(&shared, &mut open)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(_) => {
            StoreError::lost(format!("postgres: no reply within {:?}", shared.settings.budget())).too_late()
        }
    };
    for statement in open {
        statement.batch.fail(&error);
    }
}

/// Sends the open statements until none is left. After an error, the statements that remain in `open` have failed with it.
async fn decide_all(shared: &Shared, open: &mut VecDeque<CallStatement>) -> Result<(), StoreError> {
    let clock = PreciseClock::default();
    let start_ms = clock.now_ms();
    while !open.is_empty() {
        let mut connection = shared.connection().await?;
        let elapsed = Duration::from_millis(clock.now_ms().saturating_sub(start_ms));
        let timeout = server_timeout(shared.settings.budget().saturating_sub(elapsed));
        let is_single = open.len() == 1;
        let outcome = send(shared, connection.client(), open, timeout).await;
        connection.is_reusable = match &outcome {
            Ok(()) => true,
            // In a message of several transactions, the failed one is still open.
            Err(error) => {
                is_connection_usable(error)
                    && (is_single || connection.client().simple_query("ROLLBACK").await.is_ok())
            }
        };
        match outcome {
            Ok(()) => {}
            // The transaction was rolled back because of a concurrent one.
            Err(error) if is_retryable(&error) => {}
            Err(error) if is_connection_usable(&error) && !is_timeout(&error) => fail_first(open, &error),
            Err(error) => return Err(statement_error(&error)),
        }
    }
    Ok(())
}

/// Returns the server's share of the remaining budget. The rest is for its error to reach the caller in time.
fn server_timeout(remaining: Duration) -> Duration {
    remaining.saturating_sub(remaining / 8)
}

/// Sends all open statements in one message and completes those with a reply. After an error of the server, the first
/// open statement has failed, and those behind it were not executed.
async fn send(
    shared: &Shared,
    client: &Client,
    open: &mut VecDeque<CallStatement>,
    timeout: Duration,
) -> Result<(), Error> {
    let texts: Vec<String> = open.iter().map(|statement| statement.text(shared, timeout)).collect();
    let mut replies = send_all(client, &texts, timeout).await?;
    while let Some(reply) = replies.next().await? {
        let Some(statement) = open.pop_front() else { break };
        open.extend(statement.complete(reply));
    }
    Ok(())
}

/// Fails the first batch, which was rolled back. If the cause is the record of one key, the batch is split into one batch
/// per key instead, so that only that key fails.
fn fail_first(open: &mut VecDeque<CallStatement>, error: &Error) {
    match open.pop_front().map(|statement| statement.batch) {
        Some(batch) if is_invalid_record(error) && batch.names().count() > 1 => {
            batch.split().for_each(|batch| open.push_front(CallStatement { batch, uniform: None }));
        }
        Some(batch) => batch.fail(&statement_error(error)),
        None => {}
    }
}

/// Batch, and the function that decides it.
struct CallStatement {
    batch: Batch,
    /// Arguments of `decide_uniform`; `None` for the other functions.
    uniform: Option<UniformBatch>,
}

impl CallStatement {
    fn new(batch: Batch) -> Self {
        Self { uniform: batch.uniform(), batch }
    }

    fn text(&self, shared: &Shared, timeout: Duration) -> String {
        let (table, schema) = (TABLE_NAMES[usize::from(self.batch.is_durable())], &shared.schema);
        let arguments = self.batch.arguments();
        let names = Array(&arguments.names);
        let given_ms = OrNull(shared.given_ms());
        let lock_ms = whole_ms(timeout);
        let sync = OrNull(self.batch.is_durable().then(|| format!("'{}'", shared.synchronous.name())));
        if let Some(UniformBatch { counts, cost, limit, window_ms }) = &self.uniform {
            let counts = Array(counts);
            return format!(
                "SELECT * FROM {schema}.decide_uniform_{table}({names}, {counts}, {cost}, {limit}, {window_ms}, \
                 {given_ms}, {lock_ms}, {sync})"
            );
        }
        let operations = format!(
            "{names}, {}, {}, {}, {}, {given_ms}, {}",
            Array(&arguments.from_op),
            Array(&arguments.which),
            Array(&arguments.ops),
            Array(&arguments.op_at),
            shared.settings.grain_ms()
        );
        if self.batch.is_peek() {
            format!("SELECT * FROM {schema}.peek_{table}({operations})")
        } else {
            format!("SELECT * FROM {schema}.decide_{table}({operations}, {lock_ms}, {sync})")
        }
    }

    /// Responds to the requests. If `decide_uniform` decided nothing because of a record in another form, returns the
    /// statement for `decide`.
    fn complete(self, reply: Reply) -> Option<Self> {
        let result = match &self.uniform {
            Some(uniform) => reply.and_then(|row| BatchResult::read_uniform(&row, uniform)).transpose(),
            None => Some(reply.and_then(|row| BatchResult::read(&row))),
        };
        match result {
            Some(result) => {
                self.batch.complete(result);
                None
            }
            None => Some(Self { uniform: None, ..self }),
        }
    }
}
