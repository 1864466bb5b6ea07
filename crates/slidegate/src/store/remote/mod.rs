//! What stores in other processes have in common on the caller's side: a request is put into a queue, its caller waits as
//! long as the budget lasts, and the core works out the numbers of the answer.

mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};
use std::time::Duration;

use slidegate_core::{Action, Counter, Decision, Moment, Policy, State, decide_matched};
use tokio::sync::oneshot;

pub(crate) use self::queue::{Line, Queue, Refuse, Waiting, gone, queue};

use super::Operation;
use crate::error::StoreError;

/// No count is larger, so that a larger cost is denied, or gives back all, just as this one.
pub(crate) const MOST_COST: u64 = 1 << 50;

/// No more than this of a batch is sent at once.
const MOST_TOGETHER: usize = 1024;

/// The end of a request that its answer is given to.
#[derive(Debug)]
pub(crate) struct Reply<A> {
    sender: oneshot::Sender<Result<A, StoreError>>,
    has_left: Arc<AtomicBool>,
}

/// The end that its caller holds.
#[derive(Debug)]
pub(crate) struct Pending<A> {
    pub(super) answer: oneshot::Receiver<Result<A, StoreError>>,
    /// Whether it may have been counted.
    pub(super) has_left: Arc<AtomicBool>,
}

pub(crate) fn channel<A>() -> (Reply<A>, Pending<A>) {
    let (sender, answer) = oneshot::channel();
    let has_left = Arc::new(AtomicBool::new(false));
    (Reply { sender, has_left: Arc::clone(&has_left) }, Pending { answer, has_left })
}

impl<A> Reply<A> {
    /// Takes the request out of the queue. False if the caller has given up: then it does not leave, and is not counted.
    pub(crate) fn leave(&self) -> bool {
        // In this order, and the caller in the other one: if it did not see this, this sees it.
        self.has_left.store(true, Relaxed);
        fence(SeqCst);
        !self.sender.is_closed()
    }

    pub(crate) fn send(self, answer: Result<A, StoreError>) {
        // Fails if the caller has given up, which is the caller's right.
        let _ = self.sender.send(answer);
    }
}

/// A store that requests are sent to.
pub(crate) trait Remote: Sync {
    type Request: Send;
    type Answer: Send;

    /// What messages begin with.
    const NAME: &'static str;

    fn budget(&self) -> Duration;

    fn max_waiting(&self) -> usize;

    fn request(&self, operation: &Operation<'_>) -> (Self::Request, Pending<Self::Answer>);

    /// Puts a request into the queue, or answers that it is full.
    fn send_now(&self, request: Self::Request) -> impl Future<Output = ()> + Send;

    /// How many of these, from the first on, may be under way together without one of them overtaking another of its key.
    fn most_together(operations: &[Operation<'_>]) -> usize {
        operations.len()
    }

    /// Puts requests into the queue as soon as there is room, so that they leave together if they can. There are not more
    /// than may wait.
    fn send_together(&self, requests: Vec<Self::Request>) -> impl Future<Output = ()> + Send;

    fn read(&self, operation: &Operation<'_>, answer: Self::Answer) -> Result<Decision, StoreError>;
}

/// What a server decided from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// A state for each quota.
    pub(crate) states: Vec<State>,
    /// Until when the key is blocked; 0 if it is not.
    pub(crate) blocked_until_ms: u64,
    /// Whether a reset has found something.
    pub(crate) is_found: bool,
}

impl Known {
    /// Nothing.
    pub(crate) fn empty(policy: &Policy) -> Self {
        Self::of(policy.quotas().iter().map(State::empty).collect())
    }

    /// These states.
    pub(crate) fn of(states: Vec<State>) -> Self {
        Self { states, blocked_until_ms: 0, is_found: false }
    }
}

pub(crate) async fn execute<R: Remote>(
    remote: &R,
    operation: &Operation<'_>,
) -> Result<Decision, StoreError> {
    let (request, mut pending) = remote.request(operation);
    let in_time = async {
        remote.send_now(request).await;
        wait::<R>(&mut pending).await
    };
    let answer = match tokio::time::timeout(remote.budget(), in_time).await {
        Ok(answer) => answer,
        Err(_) => give_up(remote, &mut pending),
    };
    remote.read(operation, answer?)
}

pub(crate) async fn execute_many<R: Remote>(
    remote: &R,
    operations: &[Operation<'_>],
) -> Vec<Result<Decision, StoreError>> {
    let mut pending: Vec<Pending<R::Answer>> = Vec::with_capacity(operations.len());
    let mut answers = Vec::with_capacity(operations.len());
    // No batch, however large, takes the queue from everybody else, or keeps a connection for long.
    let most = (remote.max_waiting() / 8).clamp(1, MOST_TOGETHER);
    let in_time = async {
        let mut rest = operations;
        while !rest.is_empty() {
            let count = R::most_together(&rest[..rest.len().min(most)]).max(1);
            let (together, later) = rest.split_at(count);
            rest = later;
            let (requests, theirs): (Vec<_>, Vec<_>) =
                together.iter().map(|operation| remote.request(operation)).unzip();
            pending.extend(theirs);
            remote.send_together(requests).await;
            while answers.len() < pending.len() {
                let oldest = answers.len();
                answers.push(wait::<R>(&mut pending[oldest]).await);
            }
        }
    };
    if tokio::time::timeout(remote.budget(), in_time).await.is_err() {
        for one in pending.iter_mut().skip(answers.len()) {
            answers.push(give_up(remote, one));
        }
        let unsent = format!("{}: not sent within {:?}", R::NAME, remote.budget());
        answers.resize_with(operations.len(), || Err(StoreError::transient(unsent.clone()).too_late()));
    }
    operations.iter().zip(answers).map(|(operation, answer)| remote.read(operation, answer?)).collect()
}

async fn wait<R: Remote>(pending: &mut Pending<R::Answer>) -> Result<R::Answer, StoreError> {
    let lost = |_| StoreError::lost(format!("{}: the connection broke before the reply", R::NAME));
    (&mut pending.answer).await.map_err(lost)?
}

/// What to tell a caller whose time is over.
fn give_up<R: Remote>(remote: &R, pending: &mut Pending<R::Answer>) -> Result<R::Answer, StoreError> {
    pending.answer.close();
    if let Ok(arrived) = pending.answer.try_recv() {
        return arrived;
    }
    fence(SeqCst);
    let message = format!("{}: no answer within {:?}", R::NAME, remote.budget());
    let has_left = pending.has_left.load(Relaxed);
    Err(if has_left { StoreError::lost(message) } else { StoreError::transient(message) }.too_late())
}

/// Works out the decision from what the server decided from; `None` if that makes no sense. It has spent; these are the
/// numbers.
pub(crate) fn work_out<R: Remote>(
    operation: &Operation<'_>,
    now: Moment,
    is_allowed: bool,
    known: Option<Known>,
) -> Result<Decision, StoreError> {
    // Whatever comes of its answer here, the server has decided.
    let odd = |what| {
        let message = format!("{}: {what}; is another version at work?", R::NAME);
        StoreError::permanent(message).perhaps_counted()
    };
    let mut known = known.ok_or_else(|| odd("the record makes no sense"))?;
    let action = Action::at(operation.verb, now, operation.check.cost);
    let (policy, blocked_until_ms) = (operation.check.policy, known.blocked_until_ms);
    let (decision, _) = decide_matched(&mut known.states, policy, action, blocked_until_ms);
    if decision.is_allowed() == is_allowed {
        Ok(decision.found(known.is_found))
    } else {
        Err(odd("the server and the library disagree"))
    }
}
