//! The last word is heard: whoever is still talking is listened to for a moment.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use crate::timer::timer;

const MAX_BYTES: usize = 1 << 20;
const MAX_TIME: Duration = Duration::from_secs(1);

/// What is still said after the last answer, and thrown away.
///
/// A connection that is closed with something unread is reset, and a proxy that is reset has no answer to hand on.
pub(crate) struct LingeringClose {
    /// Set when it begins.
    end: Option<Pin<Box<Sleep>>>,
    left: usize,
}

impl LingeringClose {
    pub(crate) fn new() -> Self {
        Self { end: None, left: MAX_BYTES }
    }

    /// Until nobody talks, or for long enough.
    pub(crate) fn poll(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while self.left > 0 {
            let mut space = [0; 8 << 10];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    let end = self.end.get_or_insert_with(|| timer(MAX_TIME));
                    return end.as_mut().poll(context);
                }
            }
        }
        Poll::Ready(())
    }
}
