//! The runtime's timers, for what must end in time. Whoever only pauses does so by the store's clock.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Sleep;

/// Done when so much time has passed.
#[expect(clippy::disallowed_methods, reason = "a timeout, not a pause")]
pub(crate) fn timer(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(duration))
}
