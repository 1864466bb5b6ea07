//! Timeouts by the runtime's timer. Pauses use the store's clock instead.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Sleep;

/// Returns a future that completes after `duration`.
#[expect(clippy::disallowed_methods, reason = "a timeout, not a pause")]
pub(crate) fn timer(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(duration))
}
