//! Transport of the listeners: timeouts, buffers, TLS, HTTP by hyper, and the drain of connections. Does not depend on
//! `protocols`.

pub(crate) mod buffered_stream;
pub(crate) mod cork;
pub(crate) mod hyper_connection;
pub(crate) mod io_timeout;
pub(crate) mod lingering_close;
mod paced_body;
mod request_stream;
pub(crate) mod stop;
pub(crate) mod streams;
pub(crate) mod tls;

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Sleep;

/// Returns a future that completes after `duration`, for timeouts. Pauses use the store's clock instead.
#[expect(clippy::disallowed_methods, reason = "a timeout, not a pause")]
pub(crate) fn timer(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(duration))
}
