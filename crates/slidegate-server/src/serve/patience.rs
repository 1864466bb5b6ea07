//! A connection that says nothing at first is not waited for without end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// As long as what HTTP/2 begins with. Until so much is there, nobody knows which version it is, and nobody but this looks
/// at the time.
const FIRST_BYTES: usize = 24;

/// A stream whose first bytes come in time, or it fails.
pub(super) struct Patience<I> {
    stream: I,
    missing: usize,
    end: Option<Pin<Box<Sleep>>>,
}

impl<I> Patience<I> {
    pub(super) fn new(stream: I, patience: Duration) -> Self {
        // The timer of the runtime, like those of the protocols that take over from here.
        #[expect(clippy::disallowed_methods, reason = "a timeout, not a pause")]
        let end = tokio::time::sleep(patience);
        Self { stream, missing: FIRST_BYTES, end: Some(Box::pin(end)) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patience<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => match self.end.as_mut().map(|end| end.as_mut().poll(context)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                _ => Poll::Pending,
            },
            ready @ Poll::Ready(_) => {
                self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
                if self.missing == 0 {
                    self.end = None;
                }
                ready
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patience<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
