//! Queue between the callers and the task that sends their requests. Requests enqueued as a group are dequeued as one.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::{RemoteStore, Request};
use crate::error::StoreError;

/// Entry of the queue.
pub(crate) enum Queued<S: RemoteStore> {
    Single(Request<S>),
    /// Requests that were enqueued together, and the slots of those beyond the first.
    Group(Vec<Request<S>>, OwnedSemaphorePermit),
}

impl<S: RemoteStore> Queued<S> {
    pub(crate) fn for_each(self, mut take: impl FnMut(Request<S>)) {
        match self {
            Self::Single(request) => take(request),
            Self::Group(requests, _slots) => requests.into_iter().for_each(take),
        }
    }

    /// Responds to the requests with the error.
    pub(crate) fn reject(self, error: &StoreError) {
        self.for_each(|request| request.respond(Err(error.clone())));
    }
}

#[cfg(feature = "postgres")]
impl<S: RemoteStore> Queued<S> {
    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Group(requests, _) => requests.len(),
        }
    }

    /// Frees the slots before the requests are taken.
    pub(crate) fn free_slots(&mut self) {
        if let Self::Group(_, slots) = self {
            drop(slots.split(slots.num_permits()));
        }
    }
}

/// Callers' end of the queue.
pub(crate) struct QueueSender<S: RemoteStore> {
    sender: mpsc::Sender<Queued<S>>,
    group_slots: Arc<Semaphore>,
}

/// Sending task's end of the queue.
pub(crate) struct QueueReceiver<S: RemoteStore> {
    receiver: mpsc::Receiver<Queued<S>>,
    /// Slots for the requests of each group beyond its first, as many as the channel has. They are separate from the
    /// channel's, so that a group that waits for slots does not block single requests.
    group_slots: Arc<Semaphore>,
}

/// Creates a queue for `max_waiting` entries.
pub(crate) fn queue<S: RemoteStore>(max_waiting: usize) -> (QueueSender<S>, QueueReceiver<S>) {
    let (sender, receiver) = mpsc::channel(max_waiting);
    let group_slots = Arc::new(Semaphore::new(max_waiting));
    (QueueSender { sender, group_slots: Arc::clone(&group_slots) }, QueueReceiver { receiver, group_slots })
}

// Not derived: that would require the store to be `Clone`.
impl<S: RemoteStore> Clone for QueueSender<S> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), group_slots: Arc::clone(&self.group_slots) }
    }
}

impl<S: RemoteStore> QueueSender<S> {
    /// Enqueues a request, or rejects it if the queue is full.
    pub(crate) fn try_send(&self, request: Request<S>) {
        if let Err(unsent) = self.sender.try_send(Queued::Single(request)) {
            self.reject(unsent);
        }
    }

    /// Enqueues requests as one group, or rejects them if the queue has too few slots for all of them.
    #[cfg(feature = "redis")]
    pub(crate) fn try_send_group(&self, requests: Vec<Request<S>>) {
        let slots = Arc::clone(&self.group_slots).try_acquire_many_owned(extra_slots(&requests));
        let Ok(slots) = slots else { return Request::fail_all(requests, &self.full_error()) };
        if let Err(unsent) = self.sender.try_send(Queued::Group(requests, slots)) {
            self.reject(unsent);
        }
    }

    fn reject(&self, unsent: TrySendError<Queued<S>>) {
        match unsent {
            TrySendError::Full(entry) => entry.reject(&self.full_error()),
            TrySendError::Closed(entry) => entry.reject(&task_stopped::<S>()),
        }
    }

    fn full_error(&self) -> StoreError {
        let (store, max) = (S::NAME, self.sender.max_capacity());
        StoreError::transient(format!("{store}: the queue of {max} requests is full; retry later"))
    }

    /// Waits for free slots and enqueues requests as one group. The group must not exceed `max_waiting`.
    pub(crate) async fn send_group(&self, requests: Vec<Request<S>>) {
        let slots = Arc::clone(&self.group_slots).acquire_many_owned(extra_slots(&requests)).await;
        match (slots, self.sender.reserve().await) {
            (Ok(slots), Ok(permit)) => permit.send(Queued::Group(requests, slots)),
            _ => Request::fail_all(requests, &task_stopped::<S>()),
        }
    }

    /// Returns whether both are senders of the same queue.
    #[cfg(feature = "redis")]
    pub(crate) fn is_same_queue(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }
}

impl<S: RemoteStore> QueueReceiver<S> {
    /// Returns the number of requests that are queued, and of received ones whose slots are not free yet.
    pub(crate) fn waiting_requests(&self) -> usize {
        let extra = self.receiver.max_capacity().saturating_sub(self.group_slots.available_permits());
        self.receiver.len() + extra
    }

    /// Waits for the next entry; `None` once all senders are dropped.
    pub(crate) async fn recv(&mut self) -> Option<Queued<S>> {
        self.receiver.recv().await
    }

    /// Returns the next entry, if there is one.
    pub(crate) fn try_recv(&mut self) -> Option<Queued<S>> {
        self.receiver.try_recv().ok()
    }
}

/// Returns the number of slots that a group takes beyond its slot in the channel.
fn extra_slots<S: RemoteStore>(requests: &[Request<S>]) -> u32 {
    u32::try_from(requests.len().saturating_sub(1)).unwrap_or(u32::MAX)
}

/// Error of a request that no task will send any more.
pub(crate) fn task_stopped<S: RemoteStore>() -> StoreError {
    let store = S::NAME;
    StoreError::transient(format!("{store}: the task that sends requests has stopped; retry later"))
}

#[cfg(test)]
mod tests {
    use slidegate_core::Decision;

    use super::super::{PendingResponse, RemoteSettings};
    use super::*;
    use crate::store::{Operation, output_now};

    /// Store whose operations are numbers. Only its queue is used.
    struct Numbers;

    impl RemoteStore for Numbers {
        type KeyedOperation = u8;
        type Response = ();

        const NAME: &'static str = "numbers";

        fn settings(&self) -> &RemoteSettings {
            unreachable!()
        }

        fn encode(&self, _: &Operation<'_>) -> u8 {
            unreachable!()
        }

        async fn enqueue(&self, _: Request<Self>) {}

        async fn enqueue_group(&self, _: Vec<Request<Self>>) {}

        fn decode(&self, _: &Operation<'_>, (): ()) -> Result<Decision, StoreError> {
            unreachable!()
        }
    }

    fn requests(count: u8) -> (Vec<Request<Numbers>>, Vec<PendingResponse<()>>) {
        (0..count).map(Request::new).unzip()
    }

    fn numbers(entry: Option<Queued<Numbers>>) -> Vec<u8> {
        let mut numbers = Vec::new();
        entry.unwrap().for_each(|request| numbers.push(request.operation));
        numbers
    }

    fn error(pending: &mut PendingResponse<()>) -> String {
        pending.receiver.try_recv().unwrap().unwrap_err().to_string()
    }

    #[test]
    fn a_full_queue_rejects_and_a_received_entry_frees_its_place() {
        let (sender, mut receiver) = queue::<Numbers>(2);
        let (requests, mut pending) = requests(4);
        let mut requests = requests.into_iter();
        requests.by_ref().take(3).for_each(|request| sender.try_send(request));
        assert_eq!(error(&mut pending[2]), "numbers: the queue of 2 requests is full; retry later");
        assert_eq!(numbers(receiver.try_recv()), [0]);
        sender.try_send(requests.next().unwrap());
        assert_eq!((numbers(receiver.try_recv()), numbers(receiver.try_recv())), (vec![1], vec![3]));
        assert!(receiver.try_recv().is_none() && receiver.waiting_requests() == 0);
    }

    #[test]
    fn a_group_holds_its_slots_until_it_is_taken_or_dropped() {
        let (sender, mut receiver) = queue::<Numbers>(8);
        for is_dropped in [true, false] {
            output_now(sender.send_group(requests(5).0)).unwrap();
            assert_eq!(receiver.waiting_requests(), 5);
            let group = receiver.try_recv();
            assert_eq!(receiver.waiting_requests(), 4, "its slots beyond the first");
            if is_dropped {
                drop(group);
            } else {
                assert_eq!(numbers(group), [0, 1, 2, 3, 4]);
            }
            assert_eq!(receiver.waiting_requests(), 0);
        }
    }

    /// A caller whose timeout has expired drops the call in which it waits.
    #[test]
    fn a_group_whose_caller_gives_up_takes_no_slots() {
        let (sender, mut receiver) = queue::<Numbers>(8);
        output_now(sender.send_group(requests(8).0)).unwrap();
        // The first waits for slots.
        assert!(output_now(sender.send_group(requests(3).0)).is_none());
        assert_eq!(numbers(receiver.try_recv()).len(), 8);
        // The second has slots and waits for a place in the channel.
        (0..8).for_each(|_| sender.try_send(requests(1).0.remove(0)));
        assert!(output_now(sender.send_group(requests(3).0)).is_none());
        assert_eq!(receiver.waiting_requests(), 8);
        (0..8).for_each(|_| drop(receiver.try_recv()));
        assert!(receiver.try_recv().is_none() && receiver.waiting_requests() == 0);
        output_now(sender.send_group(requests(8).0)).unwrap();
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_group_that_does_not_fit_is_rejected_and_takes_no_slots() {
        let (sender, mut receiver) = queue::<Numbers>(4);
        let reject = |count, message: &str| {
            let (requests, mut pending) = requests(count);
            sender.try_send_group(requests);
            assert!(pending.iter_mut().all(|pending| error(pending).contains(message)), "{count}");
        };
        // Too many slots, and enough slots but no place in the channel.
        reject(6, "queue of 4 requests is full");
        (0..4).for_each(|_| sender.try_send(requests(1).0.remove(0)));
        reject(3, "queue of 4 requests is full");
        assert_eq!(receiver.waiting_requests(), 4);
        (0..4).for_each(|_| drop(receiver.try_recv()));
        sender.try_send_group(requests(5).0);
        assert_eq!(numbers(receiver.try_recv()).len(), 5);
        drop(receiver);
        reject(2, "the task that sends requests has stopped");
    }
}
