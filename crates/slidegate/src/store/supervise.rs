//! Background tasks that never die silently.

use super::backoff::Backoff;
use crate::clock::{Clock, SystemClock};

/// Runs what `task` makes until it ends by itself. If it fails, that is told, and after a pause it is made anew: a defect
/// must not leave callers without an answer forever.
pub(crate) fn supervise<F, T>(what: &'static str, mut task: F)
where
    F: FnMut() -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        let mut backoff = Backoff::default();
        while let Err(error) = tokio::spawn(task()).await {
            if !error.is_panic() {
                return;
            }
            tracing::error!(%error, "{what} failed and starts anew");
            SystemClock::default().sleep(backoff.next_ms()).await;
        }
    });
}
