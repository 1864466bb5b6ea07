//! Lingering close: reads and discards the client's data after the last response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::timer;

const MAX_BYTES: usize = 1 << 20;
const MAX_TIME: Duration = Duration::from_secs(1);

/// State of a lingering close, which is limited in bytes and time.
///
/// The kernel resets a connection that is closed while received data is unread. A proxy that sees the reset may lose the
/// response.
pub(crate) struct LingeringClose {
    /// Set when the first read has to wait.
    timer: Option<Pin<Box<Sleep>>>,
    bytes_left: usize,
}

impl LingeringClose {
    pub(crate) fn new() -> Self {
        Self { timer: None, bytes_left: MAX_BYTES }
    }

    /// Completes when the client closes its side, or a limit is reached.
    pub(crate) fn poll(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while self.bytes_left > 0 {
            let mut space = [0; 8 << 10];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    let timer = self.timer.get_or_insert_with(|| timer(MAX_TIME));
                    return timer.as_mut().poll(context);
                }
            }
        }
        Poll::Ready(())
    }
}
