//! Gathers what waits into calls, one for each free connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::{Client, Error};

use super::answers::Answers;
use super::batch::{Alike, Batch, Name, Request};
use super::failure::{Failure, is_of_standby, is_worth_repeating};
use super::migration::TABLE_NAMES;
use super::pool::{Cancelling, Shared};
use super::statement::{Array, OrNull, Unreadable, query, whole_ms};
use crate::error::StoreError;
use crate::store::supervise::supervise;

/// So many keys keep a connection busy for some 2 ms.
const MAX_BATCH: usize = 64;
/// One is served while the other is prepared.
const USUAL_CALLS: usize = 2;
/// So many may wait for their keys to be free; then the queue is not read.
const MAX_STAGED: usize = 1024;

/// Starts the task that serves the queue, for as long as somebody holds its sender.
pub(super) fn start(waiting: mpsc::Receiver<Request>, shared: Arc<Shared>) {
    let gatherer = Arc::new(Mutex::new(Gatherer {
        waiting,
        ready: VecDeque::new(),
        blocked: HashMap::new(),
        blocked_requests: 0,
        shared,
    }));
    supervise("the task of a postgres store", move || {
        let gatherer = Arc::clone(&gatherer);
        async move { gatherer.lock().await.run().await }
    });
}

struct Gatherer {
    waiting: mpsc::Receiver<Request>,
    /// Taken from the queue and not under way.
    ready: VecDeque<Request>,
    /// Those whose key is under way, by key.
    blocked: HashMap<Name, Vec<Request>>,
    /// How many are blocked.
    blocked_requests: usize,
    shared: Arc<Shared>,
}

impl Gatherer {
    async fn run(&mut self) {
        let mut in_flight = FuturesUnordered::new();
        let mut sent = Sent::default();
        // Of a task that failed: nothing is under way any more.
        self.ready.extend(std::mem::take(&mut self.blocked).into_values().flatten());
        self.blocked_requests = 0;
        loop {
            while in_flight.len() < self.shared.connections && self.is_worth_a_call(in_flight.len(), &sent) {
                let batches = self.gather(&sent);
                if batches.is_empty() {
                    break;
                }
                for batch in batches {
                    sent.add(&batch);
                    in_flight.push(call(Arc::clone(&self.shared), batch));
                }
            }
            let has_room = in_flight.len() < self.shared.connections && !self.is_full();
            tokio::select! {
                biased;
                Some(done) = in_flight.next() => {
                    sent.remove(&done);
                    self.release(&done);
                    if self.ready.len() + self.waiting.len() < done.requests {
                        // Let those who were just answered ask again, so that they go together.
                        tokio::task::yield_now().await;
                    }
                }
                request = self.waiting.recv(), if has_room => match request {
                    Some(request) => self.stage(request, &sent),
                    None => return,
                },
            }
        }
    }

    fn is_full(&self) -> bool {
        self.ready.len() + self.blocked_requests >= MAX_STAGED
    }

    /// Beyond the usual calls one more has to carry half as much as those under way, for its fixed part weighs most.
    fn is_worth_a_call(&self, calls: usize, sent: &Sent) -> bool {
        calls < USUAL_CALLS || 2 * calls * (self.ready.len() + self.waiting.len()) >= sent.requests
    }

    /// Takes a fair share of all that is waiting or under way, for each table apart. A key is in one call at a time: its
    /// requests are decided in the order in which they came, and its row is locked by one connection and not by all.
    fn gather(&mut self, sent: &Sent) -> Vec<Batch> {
        let mut next = Next::default();
        while next.requests < MAX_BATCH {
            let Some(request) = self.ready.pop_front() else { break };
            self.take(request, sent, &mut next);
        }
        let all = self.waiting.len() + next.requests + sent.requests;
        let share = all.div_ceil(self.shared.connections.min(USUAL_CALLS)).min(MAX_BATCH);
        while next.requests < share && !self.is_full() {
            let Ok(request) = self.waiting.try_recv() else { break };
            self.take(request, sent, &mut next);
        }
        next.batches.into_iter().filter(|batch| batch.requests > 0).collect()
    }

    fn take(&mut self, request: Request, sent: &Sent, next: &mut Next) {
        if sent.names.contains(&request.name) {
            self.block(request);
        } else {
            next.add(request);
        }
    }

    fn stage(&mut self, request: Request, sent: &Sent) {
        if sent.names.contains(&request.name) {
            self.block(request);
        } else {
            self.ready.push_back(request);
        }
    }

    fn block(&mut self, request: Request) {
        self.blocked_requests += 1;
        self.blocked.entry(request.name).or_default().push(request);
    }

    /// Those who waited for these keys go before all who came later.
    fn release(&mut self, done: &Done) {
        for name in &done.names {
            for request in self.blocked.remove(name).unwrap_or_default() {
                self.blocked_requests -= 1;
                self.ready.push_back(request);
            }
        }
    }
}

/// What goes out next, for each table.
#[derive(Default)]
struct Next {
    batches: [Batch; 2],
    requests: usize,
}

impl Next {
    fn add(&mut self, request: Request) {
        if request.reply.leave() {
            self.batches[usize::from(request.is_durable)].add(request);
            self.requests += 1;
        }
    }
}

/// What is under way.
#[derive(Default)]
struct Sent {
    names: HashSet<Name>,
    requests: usize,
}

impl Sent {
    fn add(&mut self, batch: &Batch) {
        self.names.extend(batch.names());
        self.requests += batch.requests;
    }

    fn remove(&mut self, done: &Done) {
        for name in &done.names {
            self.names.remove(name);
        }
        self.requests -= done.requests;
    }
}

/// What is under way no more.
struct Done {
    names: Vec<Name>,
    requests: usize,
}

/// One call, from a free connection to its answers.
async fn call(shared: Arc<Shared>, batch: Batch) -> Done {
    let done = Done { names: batch.names().collect(), requests: batch.requests };
    let mut batches = vec![batch];
    let in_time = async {
        while let Some(batch) = batches.last() {
            let outcome = attempt(&shared, batch).await;
            let Some(batch) = batches.pop() else { return };
            match outcome {
                Ok(answers) => batch.settle(answers),
                // It was rolled back for all because of one: the others must not suffer.
                Err(Failure { is_of_data: true, .. }) if batch.names().count() > 1 => {
                    batches.extend(batch.split());
                }
                Err(failure) => batch.fail(&failure.error),
            }
        }
    };
    if tokio::time::timeout(shared.budget, in_time).await.is_err() {
        let late = StoreError::lost(format!("postgres: no answer within {:?}", shared.budget)).too_late();
        for batch in batches {
            batch.fail(&late);
        }
    }
    done
}

/// Sends the statement, and again if it was rolled back because somebody else was in the way.
async fn attempt(shared: &Shared, batch: &Batch) -> Result<Result<Answers, Unreadable>, Failure> {
    loop {
        let mut client = Cancelling::get(shared).await?;
        let sent = send(shared, client.client(), batch).await;
        // Nor is a connection given back to a server that has become a standby.
        client.is_done = !sent.as_ref().is_err_and(is_of_standby);
        match sent {
            Ok(answers) => return Ok(answers),
            Err(error) if is_worth_repeating(&error) => {}
            Err(error) => return Err(Failure::of_statement(&error)),
        }
    }
}

async fn send(shared: &Shared, client: &Client, batch: &Batch) -> Result<Result<Answers, Unreadable>, Error> {
    let arguments = batch.arguments();
    let (table, schema) = (TABLE_NAMES[usize::from(batch.is_durable())], &shared.schema);
    let names = Array(&arguments.names);
    let given_ms = OrNull(shared.given_ms());
    let lock_ms = whole_ms(shared.budget);
    let sync = OrNull(batch.is_durable().then(|| format!("'{}'", shared.synchronous.name())));
    if let Some(alike) = batch.alike() {
        let Alike { counts, cost, limit, window_ms } = &alike;
        let text = format!(
            "SELECT * FROM {schema}.decide_alike_{table}({names}, {}, {cost}, {limit}, {window_ms}, {given_ms}, \
             {lock_ms}, {sync})",
            Array(counts)
        );
        let row = query(client, &text, shared.budget).await?;
        let answers = row.ok_or(Unreadable).and_then(|row| Answers::read_alike(&row, &alike));
        if let Some(answers) = answers.transpose() {
            return Ok(answers);
        }
    }
    let operations = format!(
        "{names}, {}, {}, {}, {}, {given_ms}",
        Array(&arguments.from_op),
        Array(&arguments.which),
        Array(&arguments.ops),
        Array(&arguments.op_at)
    );
    let text = if batch.is_peek() {
        format!("SELECT * FROM {schema}.peek_{table}({operations})")
    } else {
        format!("SELECT * FROM {schema}.decide_{table}({operations}, {lock_ms}, {sync})")
    };
    let row = query(client, &text, shared.budget).await?;
    Ok(row.ok_or(Unreadable).and_then(|row| Answers::read(&row)))
}
