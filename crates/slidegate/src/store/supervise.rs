//! Background tasks that never die silently.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::task::JoinHandle;

use super::backoff::Backoff;
use crate::clock::{Clock, SystemClock};

/// Runs what `task` makes until it ends by itself. If it fails, that is told, and after a pause it is made anew: a defect
/// must not leave callers without an answer forever.
pub(crate) fn supervise<F, T>(what: &'static str, mut task: F) -> JoinHandle<()>
where
    F: FnMut() -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        let mut backoff = Backoff::default();
        // What is made anew takes nothing over from what has failed but what it guards itself.
        while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
            tracing::error!("{what} failed and starts anew");
            SystemClock::default().sleep(backoff.next_ms()).await;
        }
    })
}
