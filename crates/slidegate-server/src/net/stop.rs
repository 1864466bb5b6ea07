//! The phases of a stop, as each connection sees them.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::unconstrained;

/// How far a stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// There is none.
    Open,
    /// No new connection is accepted. A connection ends with its next response, which announces that.
    Draining,
    /// A connection on which nothing has begun ends now.
    Closing,
}

/// Returns the phase that a receiver sees which has never marked one as seen. Takes no lock before a stop.
pub(crate) fn phase(told: &watch::Receiver<Phase>) -> Phase {
    match told.has_changed() {
        Ok(false) => Phase::Open,
        Ok(true) => *told.borrow(),
        Err(_) => Phase::Closing,
    }
}

type Change = Pin<Box<dyn Future<Output = watch::Receiver<Phase>> + Send>>;

/// A stop that may come. The service waits for a connection for as long as there is one of these.
pub(crate) struct Stop {
    told: watch::Receiver<Phase>,
    change: Change,
    /// The task that the first change wakes. To register takes a lock that all connections share, so it is done once.
    registered: Option<Waker>,
}

/// Completes when a phase comes that `told` has not seen, or none can come any more.
fn change(mut told: watch::Receiver<Phase>) -> Change {
    Box::pin(async move {
        // A task that has done much in one turn is put off before it is registered, and that is done only once.
        let _ = unconstrained(told.changed()).await;
        told
    })
}

impl Stop {
    pub(crate) fn new(told: watch::Receiver<Phase>) -> Self {
        let change = change(told.clone());
        Self { told, change, registered: None }
    }

    /// What it looks at.
    pub(crate) fn told(&self) -> watch::Receiver<Phase> {
        self.told.clone()
    }

    pub(crate) fn has_come(&self) -> bool {
        !matches!(self.told.has_changed(), Ok(false))
    }

    pub(crate) fn phase(&self) -> Phase {
        phase(&self.told)
    }

    /// Waits until it is as far as `wanted`.
    pub(crate) fn poll(&mut self, wanted: Phase, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let phase = self.phase();
            if phase >= wanted {
                return Poll::Ready(());
            }
            // After a stop, a wake-up may belong to a later registration, so each one reads the phase.
            let is_registered = |waker: &Waker| waker.will_wake(context.waker());
            if phase == Phase::Open && self.registered.as_ref().is_some_and(is_registered) {
                return Poll::Pending;
            }
            match self.change.as_mut().poll(context) {
                Poll::Ready(told) => self.change = change(told),
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
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Regression: a connection that was busy up to its first pause did not notice the stop.
    #[tokio::test]
    async fn whoever_was_busy_before_is_told_too() {
        let (sender, told) = watch::channel(Phase::Open);
        let mut stop = Stop::new(told);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        assert_eq!(stop.poll(Phase::Draining, &mut Context::from_waker(&waker)), Poll::Pending);
        drop(sender);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn whoever_asked_last_is_told_of_it() {
        let (sender, told) = watch::channel(Phase::Open);
        let mut stop = Stop::new(told);
        let wakers: [Arc<Woken>; 2] = Default::default();
        for asked in [0, 0, 1, 1] {
            let waker = Waker::from(Arc::clone(&wakers[asked]));
            assert_eq!(stop.poll(Phase::Draining, &mut Context::from_waker(&waker)), Poll::Pending);
        }
        assert!(!stop.has_come());
        drop(sender);
        assert_eq!(wakers.map(|woken| woken.0.load(Ordering::Relaxed)), [0, 1]);
        assert!(stop.has_come());
        poll_fn(|context| stop.poll(Phase::Closing, context)).await;
        poll_fn(|context| stop.poll(Phase::Closing, context)).await;
    }

    /// Regression: the notification of one phase can wake a task that has registered for the next one meanwhile, which
    /// removes that registration.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_tasks_hear_of_every_phase() {
        for round in 0..200 {
            let (sender, told) = watch::channel(Phase::Open);
            let waiting = Arc::new(AtomicUsize::new(0));
            let wait = |_| {
                let (mut stop, waiting) = (Stop::new(told.clone()), Arc::clone(&waiting));
                tokio::spawn(async move {
                    poll_fn(|context| {
                        let polled = stop.poll(Phase::Closing, context);
                        waiting.fetch_add(1, Ordering::Relaxed);
                        polled
                    })
                    .await;
                })
            };
            let tasks: Vec<_> = (0..32).map(wait).collect();
            for (phase, polls) in [(Phase::Draining, 32), (Phase::Closing, 64)] {
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
    async fn one_task_hears_of_every_phase() {
        let (sender, told) = watch::channel(Phase::Open);
        let mut stop = Stop::new(told);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut poll = |wanted| stop.poll(wanted, &mut Context::from_waker(&waker));
        assert_eq!(poll(Phase::Closing), Poll::Pending);
        sender.send_replace(Phase::Draining);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(Phase::Draining), Poll::Ready(()));
        assert_eq!((poll(Phase::Closing), poll(Phase::Closing)), (Poll::Pending, Poll::Pending));
        sender.send_replace(Phase::Closing);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(Phase::Closing), Poll::Ready(()));
    }
}
