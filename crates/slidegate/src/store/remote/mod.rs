//! Caller's side of the stores that run in other processes.
//!
//! A request enters a queue, its caller waits until the budget is spent, and the core computes the numbers of the
//! decision from the state that the server returns.

mod queue;
mod request;
mod scheduler;
mod settings;

use std::time::Duration;

use slidegate_core::{Action, Counter, Decision, Moment, Policy, State, decide_matched};

#[cfg(feature = "redis")]
pub(crate) use self::queue::task_stopped;
pub(crate) use self::queue::{QueueReceiver, QueueSender, Queued, queue};
pub(crate) use self::request::{PendingResponse, Request};
pub(crate) use self::scheduler::{Batch, Batches, FULL_BATCH, Load, USUAL_CALLS, add_to_batches};
#[cfg(feature = "redis")]
pub(crate) use self::settings::read_pem;
pub(crate) use self::settings::{RemoteSettings, remote_setters};

use super::{Operation, Responses};
use crate::error::StoreError;

/// Largest cost that is sent to a server. No count is larger, so a larger cost has the same effect: a check is denied, a
/// refund clears the count.
pub(crate) const MAX_COST: u64 = 1 << 50;

/// Largest number of requests that are enqueued as one group.
const MAX_GROUP_REQUESTS: usize = 1024;

/// Store that sends its requests to a server.
pub(crate) trait RemoteStore: Sized + Sync {
    /// Operation as it is sent, with the name of its key.
    type KeyedOperation: Send;
    type Response: Send;

    /// Name of the store in messages.
    const NAME: &'static str;

    fn settings(&self) -> &RemoteSettings;

    fn encode(&self, operation: &Operation<'_>) -> Self::KeyedOperation;

    /// Enqueues a request, or rejects it if the queue is full.
    fn enqueue(&self, request: Request<Self>) -> impl Future<Output = ()> + Send;

    /// Returns the number of leading operations that may be in flight together without one overtaking another of the
    /// same key.
    fn group_len(operations: &[Operation<'_>]) -> usize {
        operations.len()
    }

    /// Waits for free slots and enqueues the requests as one group, so that they are sent together where possible. The
    /// group must not exceed `max_waiting`.
    fn enqueue_group(&self, requests: Vec<Request<Self>>) -> impl Future<Output = ()> + Send;

    /// Turns the server's response into a decision.
    fn decode(&self, operation: &Operation<'_>, response: Self::Response) -> Result<Decision, StoreError>;
}

/// State of a key that the server based its decision on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorState {
    /// One state per quota.
    pub(crate) states: Vec<State>,
    /// End of the key's block; 0 if it is not blocked.
    pub(crate) blocked_until_ms: u64,
    /// Whether a reset removed anything.
    pub(crate) is_found: bool,
}

impl PriorState {
    /// Returns the state of a key without a record.
    pub(crate) fn empty(policy: &Policy) -> Self {
        Self::from_states(policy.quotas().iter().map(State::empty).collect())
    }

    pub(crate) fn from_states(states: Vec<State>) -> Self {
        Self { states, blocked_until_ms: 0, is_found: false }
    }
}

/// Executes operations within the store's budget.
pub(crate) async fn execute<R: RemoteStore>(store: &R, operations: &[Operation<'_>]) -> Responses {
    execute_within(store, operations, store.settings().budget()).await
}

/// Executes operations within `budget`, at most the store's. This is the only timer on the caller's side.
pub(crate) async fn execute_within<R: RemoteStore>(
    store: &R,
    operations: &[Operation<'_>],
    budget: Duration,
) -> Responses {
    let budget = budget.min(store.settings().budget());
    match operations {
        [operation] => execute_one(store, operation, budget).await.into(),
        many => execute_many(store, many, budget).await,
    }
}

async fn execute_one<R: RemoteStore>(
    store: &R,
    operation: &Operation<'_>,
    budget: Duration,
) -> Result<Decision, StoreError> {
    let (request, mut pending) = Request::new(store.encode(operation));
    let in_time = async {
        store.enqueue(request).await;
        wait::<R>(&mut pending).await
    };
    let response = match tokio::time::timeout(budget, in_time).await {
        Ok(response) => response,
        Err(_) => timed_out::<R>(&mut pending, budget),
    };
    store.decode(operation, response?)
}

async fn execute_many<R: RemoteStore>(
    store: &R,
    operations: &[Operation<'_>],
    budget: Duration,
) -> Responses {
    let mut pending: Vec<PendingResponse<R::Response>> = Vec::with_capacity(operations.len());
    let mut responses = Vec::with_capacity(operations.len());
    // Bounds the share of the queue, and the time on a connection, that one caller takes.
    let max_group = (store.settings().max_waiting / 8).clamp(1, MAX_GROUP_REQUESTS);
    let in_time = async {
        let mut rest = operations;
        while !rest.is_empty() {
            let len = R::group_len(&rest[..rest.len().min(max_group)]).max(1);
            let (group, later) = rest.split_at(len);
            rest = later;
            let (requests, group_pending): (Vec<_>, Vec<_>) =
                group.iter().map(|operation| Request::new(store.encode(operation))).unzip();
            pending.extend(group_pending);
            store.enqueue_group(requests).await;
            while responses.len() < pending.len() {
                let oldest = responses.len();
                responses.push(wait::<R>(&mut pending[oldest]).await);
            }
        }
    };
    if tokio::time::timeout(budget, in_time).await.is_err() {
        for pending in pending.iter_mut().skip(responses.len()) {
            responses.push(timed_out::<R>(pending, budget));
        }
        let unsent = format!("{}: request not sent within {budget:?}", R::NAME);
        responses.resize_with(operations.len(), || Err(StoreError::transient(unsent.clone()).too_late()));
    }
    operations.iter().zip(responses).map(|(operation, response)| store.decode(operation, response?)).collect()
}

async fn wait<R: RemoteStore>(pending: &mut PendingResponse<R::Response>) -> Result<R::Response, StoreError> {
    let lost = |_| StoreError::lost(format!("{}: the connection broke before the response", R::NAME));
    (&mut pending.receiver).await.map_err(lost)?
}

/// Returns the response if it arrived with the timeout, else the error of a request whose budget is spent.
fn timed_out<R: RemoteStore>(
    pending: &mut PendingResponse<R::Response>,
    budget: Duration,
) -> Result<R::Response, StoreError> {
    let is_dispatched = match pending.give_up() {
        Ok(arrived) => return arrived,
        Err(is_dispatched) => is_dispatched,
    };
    let message = format!("{}: no response within {budget:?}", R::NAME);
    Err(if is_dispatched { StoreError::lost(message) } else { StoreError::transient(message) }.too_late())
}

/// Computes the decision from the state that the server based its own on; `prior` is `None` if it is unreadable. The
/// server has counted the request already: this yields the numbers, and an error if the two decisions differ.
pub(crate) fn compute_decision<R: RemoteStore>(
    operation: &Operation<'_>,
    now: Moment,
    is_allowed: bool,
    prior: Option<PriorState>,
) -> Result<Decision, StoreError> {
    // The server has decided, whichever error follows.
    let mismatch = |what| {
        let message = format!("{}: {what}; check that all nodes run the same version of Slidegate", R::NAME);
        StoreError::permanent(message).perhaps_counted()
    };
    let mut prior = prior.ok_or_else(|| mismatch("the record of the key is unreadable"))?;
    let action = Action::at(operation.verb, now, operation.check.cost);
    let (policy, blocked_until_ms) = (operation.check.policy, prior.blocked_until_ms);
    let (decision, _) = decide_matched(&mut prior.states, policy, action, blocked_until_ms);
    if decision.is_allowed() == is_allowed {
        Ok(decision.with_found(prior.is_found))
    } else {
        Err(mismatch("the decision of the server differs from that of the library"))
    }
}
