//! Request of a caller to a remote store, and the two ends of its response.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, fence};

use tokio::sync::oneshot;

use super::RemoteStore;
use crate::error::StoreError;

/// Request for one decision, with the sending end of its response.
pub(crate) struct Request<S: RemoteStore> {
    pub(crate) operation: S::KeyedOperation,
    sender: oneshot::Sender<Result<S::Response, StoreError>>,
    is_dispatched: Arc<AtomicBool>,
}

/// Receiving end of a request's response, held by its caller.
#[derive(Debug)]
pub(crate) struct PendingResponse<A> {
    pub(in super::super) receiver: oneshot::Receiver<Result<A, StoreError>>,
    /// Whether the request has left the queue. From then on the server may count it.
    pub(in super::super) is_dispatched: Arc<AtomicBool>,
}

impl<S: RemoteStore> Request<S> {
    pub(crate) fn new(operation: S::KeyedOperation) -> (Self, PendingResponse<S::Response>) {
        let (sender, receiver) = oneshot::channel();
        let is_dispatched = Arc::new(AtomicBool::new(false));
        let pending = PendingResponse { receiver, is_dispatched: Arc::clone(&is_dispatched) };
        (Self { operation, sender, is_dispatched }, pending)
    }

    /// Marks the request as dispatched. Returns `false` if its caller has given up; the request must not be sent then.
    pub(crate) fn mark_dispatched(&self) -> bool {
        // The caller closes the channel first and reads the flag second (see `PendingResponse::give_up`). With the fences, a
        // caller that misses the flag is seen here as closed, so a request that is reported as not counted is never sent.
        self.is_dispatched.store(true, Relaxed);
        fence(SeqCst);
        !self.sender.is_closed()
    }

    pub(crate) fn respond(self, response: Result<S::Response, StoreError>) {
        // Fails if the caller has given up.
        let _ = self.sender.send(response);
    }

    /// Responds to each request with the error.
    pub(crate) fn fail_all(requests: impl IntoIterator<Item = Self>, error: &StoreError) {
        for request in requests {
            request.respond(Err(error.clone()));
        }
    }
}

impl<A> PendingResponse<A> {
    /// Gives up the request. Returns the response if it has arrived meanwhile, else whether the request was dispatched.
    pub(super) fn give_up(&mut self) -> Result<Result<A, StoreError>, bool> {
        self.receiver.close();
        if let Ok(arrived) = self.receiver.try_recv() {
            return Ok(arrived);
        }
        fence(SeqCst);
        Err(self.is_dispatched.load(Relaxed))
    }
}
