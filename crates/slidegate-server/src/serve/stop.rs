//! Whether it is time to stop, for those who ask all the time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::unconstrained;

/// A stop that may come.
pub(crate) struct Stop {
    told: watch::Receiver<()>,
    comes: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Who is told. To say so takes a lock that all connections share, so it is said once.
    waker: Option<Waker>,
}

impl Stop {
    pub(crate) fn new(told: watch::Receiver<()>) -> Self {
        let mut other = told.clone();
        let comes = Box::pin(async move {
            // If nobody is left who could tell, that is one. Whoever has done much in one turn is told to wait before it has
            // said whom to wake, and it is said only once.
            let _ = unconstrained(other.changed()).await;
        });
        Self { told, comes, waker: None }
    }

    pub(crate) fn has_come(&self) -> bool {
        !matches!(self.told.has_changed(), Ok(false))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_come() {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        self.waker = Some(context.waker().clone());
        self.comes.as_mut().poll(context)
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

    /// Once wrong: a connection that was busy up to its first pause was never told.
    #[tokio::test]
    async fn whoever_was_busy_before_is_told_too() {
        let (sender, told) = watch::channel(());
        let mut stop = Stop::new(told);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        assert_eq!(stop.poll(&mut Context::from_waker(&waker)), Poll::Pending);
        drop(sender);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn whoever_asked_last_is_told_of_it() {
        let (sender, told) = watch::channel(());
        let mut stop = Stop::new(told);
        let wakers: [Arc<Woken>; 2] = Default::default();
        for asked in [0, 0, 1, 1] {
            let waker = Waker::from(Arc::clone(&wakers[asked]));
            assert_eq!(stop.poll(&mut Context::from_waker(&waker)), Poll::Pending);
        }
        assert!(!stop.has_come());
        drop(sender);
        assert_eq!(wakers.map(|woken| woken.0.load(Ordering::Relaxed)), [0, 1]);
        assert!(stop.has_come());
        poll_fn(|context| stop.poll(context)).await;
        poll_fn(|context| stop.poll(context)).await;
    }
}
