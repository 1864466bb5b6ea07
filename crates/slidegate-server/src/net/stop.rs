//! The phases of a stop, as seen by each connection.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::unconstrained;

/// Progress of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopPhase {
    /// No stop was requested.
    Running,
    /// No new connections are accepted. A connection ends with its next response, which announces the end.
    Draining,
    /// A connection without a partial request is closed at once.
    Closing,
}

/// Returns the phase, for a receiver that has never marked a phase as seen. Takes no lock before a stop.
pub(crate) fn phase(receiver: &watch::Receiver<StopPhase>) -> StopPhase {
    match receiver.has_changed() {
        Ok(false) => StopPhase::Running,
        Ok(true) => *receiver.borrow(),
        Err(_) => StopPhase::Closing,
    }
}

type PhaseChange = Pin<Box<dyn Future<Output = watch::Receiver<StopPhase>> + Send>>;

/// A connection's handle on the stop of the service. The service waits until all handles are dropped.
pub(crate) struct Stop {
    receiver: watch::Receiver<StopPhase>,
    change: PhaseChange,
    /// The task that the first change wakes. A registration takes a lock that all connections share, so a task registers
    /// only once.
    registered: Option<Waker>,
}

/// Completes on a phase that `receiver` has not seen, or when the sender is dropped.
fn phase_change(mut receiver: watch::Receiver<StopPhase>) -> PhaseChange {
    Box::pin(async move {
        // With an exhausted coop budget, `changed` would return before it registers the waker, and there is only one
        // registration.
        let _ = unconstrained(receiver.changed()).await;
        receiver
    })
}

impl Stop {
    pub(crate) fn new(receiver: watch::Receiver<StopPhase>) -> Self {
        let change = phase_change(receiver.clone());
        Self { receiver, change, registered: None }
    }

    /// Returns a receiver of the phases that has seen none of them.
    pub(crate) fn receiver(&self) -> watch::Receiver<StopPhase> {
        self.receiver.clone()
    }

    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.receiver.has_changed(), Ok(false))
    }

    pub(crate) fn phase(&self) -> StopPhase {
        phase(&self.receiver)
    }

    /// Completes when the stop has reached `wanted` or a later phase.
    pub(crate) fn poll(&mut self, wanted: StopPhase, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let phase = self.phase();
            if phase >= wanted {
                return Poll::Ready(());
            }
            // After a stop, a wake-up may belong to a later registration, so each one reads the phase.
            let is_registered = |waker: &Waker| waker.will_wake(context.waker());
            if phase == StopPhase::Running && self.registered.as_ref().is_some_and(is_registered) {
                return Poll::Pending;
            }
            match self.change.as_mut().poll(context) {
                Poll::Ready(receiver) => self.change = phase_change(receiver),
                Poll::Pending => {
                    self.registered = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Regression: the stop did not wake a connection that first waited with an exhausted coop budget.
    #[tokio::test]
    async fn a_task_with_an_exhausted_coop_budget_is_woken() {
        let (sender, receiver) = watch::channel(StopPhase::Running);
        let mut stop = Stop::new(receiver);
        let wakes = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&wakes));
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        assert_eq!(stop.poll(StopPhase::Draining, &mut Context::from_waker(&waker)), Poll::Pending);
        drop(sender);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn only_the_latest_waker_is_woken() {
        let (sender, receiver) = watch::channel(StopPhase::Running);
        let mut stop = Stop::new(receiver);
        let wakers: [Arc<WakeCount>; 2] = Default::default();
        for index in [0, 0, 1, 1] {
            let waker = Waker::from(Arc::clone(&wakers[index]));
            assert_eq!(stop.poll(StopPhase::Draining, &mut Context::from_waker(&waker)), Poll::Pending);
        }
        assert!(!stop.has_begun());
        drop(sender);
        assert_eq!(wakers.map(|wakes| wakes.0.load(Ordering::Relaxed)), [0, 1]);
        assert!(stop.has_begun());
        poll_fn(|context| stop.poll(StopPhase::Closing, context)).await;
        poll_fn(|context| stop.poll(StopPhase::Closing, context)).await;
    }

    /// Regression: the notification of one phase can wake a task that has registered for the next one meanwhile, which
    /// removes that registration.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn every_phase_wakes_all_tasks() {
        for round in 0..200 {
            let (sender, receiver) = watch::channel(StopPhase::Running);
            let waiting = Arc::new(AtomicUsize::new(0));
            let wait = |_| {
                let (mut stop, waiting) = (Stop::new(receiver.clone()), Arc::clone(&waiting));
                tokio::spawn(async move {
                    poll_fn(|context| {
                        let polled = stop.poll(StopPhase::Closing, context);
                        waiting.fetch_add(1, Ordering::Relaxed);
                        polled
                    })
                    .await;
                })
            };
            let tasks: Vec<_> = (0..32).map(wait).collect();
            for (phase, polls) in [(StopPhase::Draining, 32), (StopPhase::Closing, 64)] {
                while waiting.load(Ordering::Relaxed) < polls {
                    tokio::task::yield_now().await;
                }
                sender.send_replace(phase);
            }
            let all = futures_util::future::join_all(tasks);
            let ended = tokio::time::timeout(std::time::Duration::from_secs(30), all).await;
            assert!(ended.is_ok(), "round {round}");
        }
    }

    #[tokio::test]
    async fn every_phase_wakes_one_task() {
        let (sender, receiver) = watch::channel(StopPhase::Running);
        let mut stop = Stop::new(receiver);
        let wakes = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut poll = |wanted| stop.poll(wanted, &mut Context::from_waker(&waker));
        assert_eq!(poll(StopPhase::Closing), Poll::Pending);
        sender.send_replace(StopPhase::Draining);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(StopPhase::Draining), Poll::Ready(()));
        assert_eq!((poll(StopPhase::Closing), poll(StopPhase::Closing)), (Poll::Pending, Poll::Pending));
        sender.send_replace(StopPhase::Closing);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(StopPhase::Closing), Poll::Ready(()));
    }
}
