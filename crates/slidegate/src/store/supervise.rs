//! Background tasks that never die silently.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::task::JoinHandle;

use super::backoff::Backoff;
use crate::clock::{Clock, SystemClock};

/// Runs a task until it ends. If it panics, logs that and restarts it after a backoff: a defect must not leave callers
/// without a response forever.
pub(crate) fn supervise<F, T>(name: &'static str, mut task: F) -> JoinHandle<()>
where
    F: FnMut() -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        let mut backoff = Backoff::default();
        // A restarted task shares only state that it guards against a panic itself.
        while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
            tracing::error!("the {name} has panicked; restarting it");
            SystemClock::default().sleep(backoff.next_ms()).await;
        }
    })
}
