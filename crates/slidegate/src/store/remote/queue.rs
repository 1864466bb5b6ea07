//! Where requests wait for a call, and what was asked for together stays together.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

use crate::error::StoreError;

/// A request that can be told why nothing comes of it.
pub(crate) trait Refuse {
    fn refuse(self, error: StoreError);
}

/// What waits for a call: requests that were asked for together, mostly one by itself.
pub(crate) enum Waiting<R> {
    One(R),
    Many(Vec<R>),
}

impl<R> Waiting<R> {
    /// How many requests it is.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(requests) => requests.len(),
        }
    }

    pub(crate) fn for_each(self, mut take: impl FnMut(R)) {
        match self {
            Self::One(request) => take(request),
            Self::Many(requests) => requests.into_iter().for_each(take),
        }
    }
}

impl<R: Refuse> Waiting<R> {
    pub(crate) fn refuse(self, error: &StoreError) {
        self.for_each(|request| request.refuse(error.clone()));
    }
}

/// The end that requests are put into.
pub(crate) struct Queue<R> {
    /// What messages begin with.
    name: &'static str,
    sender: mpsc::Sender<Waiting<R>>,
    company: Arc<Semaphore>,
}

/// The end that calls are gathered from.
pub(crate) struct Line<R> {
    receiver: mpsc::Receiver<Waiting<R>>,
    /// Room for as many as may wait alone, for those who came in the company of another. Apart from the channel's, so that
    /// a batch that waits for room takes it from nobody who needs little.
    company: Arc<Semaphore>,
}

/// A queue for so many.
pub(crate) fn queue<R>(name: &'static str, max_waiting: usize) -> (Queue<R>, Line<R>) {
    let (sender, receiver) = mpsc::channel(max_waiting);
    let company = Arc::new(Semaphore::new(max_waiting));
    (Queue { name, sender, company: Arc::clone(&company) }, Line { receiver, company })
}

// Not derived: a request need not be one that can be cloned.
impl<R> Clone for Queue<R> {
    fn clone(&self) -> Self {
        Self { name: self.name, sender: self.sender.clone(), company: Arc::clone(&self.company) }
    }
}

impl<R: Refuse> Queue<R> {
    pub(crate) fn max_waiting(&self) -> usize {
        self.sender.max_capacity()
    }

    /// Puts a request into the queue, or refuses it if that is full.
    pub(crate) fn send_now(&self, request: R) {
        if let Err(refused) = self.sender.try_send(Waiting::One(request)) {
            self.refuse(refused);
        }
    }

    /// Puts requests into the queue, so that they leave together, or refuses them if there is no room for all of them.
    pub(crate) fn send_together_now(&self, requests: Vec<R>) {
        let waiting = Waiting::Many(requests);
        let Ok(room) = self.company.try_acquire_many(company_of(&waiting)) else {
            return self.refuse(TrySendError::Full(waiting));
        };
        match self.sender.try_send(waiting) {
            // Whoever takes them gives it back.
            Ok(()) => room.forget(),
            Err(refused) => self.refuse(refused),
        }
    }

    fn refuse(&self, refused: TrySendError<Waiting<R>>) {
        match refused {
            TrySendError::Full(waiting) => {
                let (name, most) = (self.name, self.max_waiting());
                waiting.refuse(&StoreError::transient(format!("{name}: {most} calls wait already")));
            }
            TrySendError::Closed(waiting) => waiting.refuse(&gone(self.name)),
        }
    }

    /// Puts requests into the queue as soon as there is room for all of them, so that they leave together. There are not
    /// more than may wait.
    pub(crate) async fn send_together(&self, requests: Vec<R>) {
        let waiting = Waiting::Many(requests);
        let company = self.company.acquire_many(company_of(&waiting)).await;
        match (company, self.sender.reserve().await) {
            (Ok(room), Ok(place)) => {
                place.send(waiting);
                // Whoever takes them gives it back.
                room.forget();
            }
            _ => waiting.refuse(&gone(self.name)),
        }
    }

    /// Whether both lead to the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

impl<R> Line<R> {
    /// How many requests wait, or have not been let in.
    pub(crate) fn requests(&self) -> usize {
        let company = self.receiver.max_capacity().saturating_sub(self.company.available_permits());
        self.receiver.len() + company
    }

    /// The next; `None` if nobody can ask any more. It has its room until it is [let in](Self::let_in).
    pub(crate) async fn next(&mut self) -> Option<Waiting<R>> {
        self.receiver.recv().await
    }

    /// The next, if somebody waits.
    pub(crate) fn next_now(&mut self) -> Option<Waiting<R>> {
        self.receiver.try_recv().ok()
    }

    /// From now on others have its room.
    pub(crate) fn let_in(&self, waiting: &Waiting<R>) {
        if let Waiting::Many(requests) = waiting {
            self.company.add_permits(requests.len().saturating_sub(1));
        }
    }
}

/// How many came in the company of the first.
fn company_of<R>(waiting: &Waiting<R>) -> u32 {
    u32::try_from(waiting.count().saturating_sub(1)).unwrap_or(u32::MAX)
}

/// Why nobody will ever take a request.
pub(crate) fn gone(name: &str) -> StoreError {
    StoreError::transient(format!("{name}: the task that asks it is gone"))
}
