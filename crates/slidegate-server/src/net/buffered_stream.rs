//! Buffered input and output of a connection, with limits for both.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::lingering_close::LingeringClose;
use super::stop::{Stop, StopPhase};
use super::timer;

/// Initial size of the input buffer, enough for a client that waits for each response.
const INITIAL_BYTES: usize = 1 << 10;
/// Largest size of each buffer of an idle connection.
const MAX_IDLE_BYTES: usize = 16 << 10;

/// Sizes of the buffers in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    /// Maximum size of the input buffer. At least the size of the largest request, so that it can become complete.
    pub(crate) input: usize,
    /// Amount of unwritten output that suspends reading. Permits clients that pipeline many requests before they read.
    pub(crate) output: usize,
}

/// A stream with its input and output buffers.
pub(crate) struct BufferedStream<I> {
    stream: I,
    input: Vec<u8>,
    /// The bytes of `input` that were received and not yet consumed.
    unread: std::ops::Range<usize>,
    output: Vec<u8>,
    written: usize,
    is_flushed: bool,
    is_at_end: bool,
    limits: BufferLimits,
    timeout: Duration,
    /// Set while a partial request or unwritten output is pending.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Reason why an exchange returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// More input was received, or the output buffer has capacity again.
    Progress,
    /// The client has closed its side, and all output is written.
    End,
    /// A partial request did not become complete, or no output could be written, within the timeout.
    TimedOut,
    /// The service stops, and the connection is idle.
    Stopped,
}

impl<I> BufferedStream<I> {
    pub(crate) fn new(stream: I, limits: BufferLimits, timeout: Duration) -> Self {
        Self {
            stream,
            input: vec![0; INITIAL_BYTES],
            unread: 0..0,
            output: Vec::new(),
            written: 0,
            is_flushed: true,
            is_at_end: false,
            limits,
            timeout,
            timer: None,
        }
    }

    pub(crate) fn stream(&self) -> &I {
        &self.stream
    }

    /// Returns the received bytes that are not consumed, and the output buffer to append to.
    pub(crate) fn buffers(&mut self) -> (&[u8], &mut Vec<u8>) {
        self.output.drain(..self.written);
        self.written = 0;
        (&self.input[self.unread.clone()], &mut self.output)
    }

    /// Returns the stream and the bytes that are not consumed. All output must have been written.
    pub(crate) fn into_parts(mut self) -> (I, Vec<u8>) {
        self.input.truncate(self.unread.end);
        self.input.drain(..self.unread.start);
        (self.stream, self.input)
    }

    /// Removes `count` bytes from the front of the input.
    pub(crate) fn consume(&mut self, count: usize) {
        if count > 0 {
            self.unread.start += count;
            self.timer = None;
        }
    }

    /// Returns whether all received bytes are consumed.
    pub(crate) fn is_input_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// Returns whether the unwritten output is below its limit. If it is, shrinks the output buffer.
    pub(crate) fn shrink_output(&mut self) -> bool {
        let is_below_limit = self.output.len() - self.written < self.limits.output;
        if is_below_limit {
            self.output.drain(..self.written);
            self.written = 0;
            self.output.shrink_to(2 * self.limits.output);
        }
        is_below_limit
    }

    fn has_output(&self) -> bool {
        !self.is_flushed || self.written < self.output.len()
    }

    /// Moves the unread bytes to the front of the input buffer, and enlarges the buffer if it was full.
    fn reserve_input(&mut self) {
        if self.unread.end == self.input.len() && self.input.len() < self.limits.input {
            self.input.resize((4 * self.input.len()).min(self.limits.input), 0);
        }
        if self.unread.start > 0 {
            self.input.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }

    fn shrink_idle_buffers(&mut self) {
        if self.input.len() > MAX_IDLE_BYTES {
            self.input = vec![0; INITIAL_BYTES];
            self.unread = 0..0;
        }
        if self.output.capacity() > MAX_IDLE_BYTES {
            self.output = Vec::new();
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> BufferedStream<I> {
    /// Writes pending output and reads input, until one of them makes progress. `has_more` states that the input already
    /// contains requests that can be processed once the output buffer has capacity.
    pub(crate) fn poll_exchange(
        &mut self,
        has_more: bool,
        stop: &mut Stop,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Event>> {
        let _ = self.poll_write(context)?;
        let pending = self.output.len() - self.written;
        if has_more && pending < self.limits.output {
            return Poll::Ready(Ok(Event::Progress));
        }
        let may_read = !self.is_at_end && !has_more && pending < self.limits.output;
        if may_read && self.poll_read(context)?.is_ready() && !self.is_at_end {
            return Poll::Ready(Ok(Event::Progress));
        }
        if self.is_at_end && !self.has_output() {
            return Poll::Ready(Ok(Event::End));
        }
        if !self.has_output() && self.unread.is_empty() {
            self.shrink_idle_buffers();
            return stop.poll(StopPhase::Closing, context).map(|()| Ok(Event::Stopped));
        }
        self.poll_timeout(context).map(|()| Ok(Event::TimedOut))
    }

    /// Writes pending output and shuts the stream down. With a lingering close, then reads and discards input: the kernel
    /// resets a connection that is closed over unread input, and the client may lose the response.
    pub(crate) fn poll_finish(
        &mut self,
        lingering_close: Option<&mut LingeringClose>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Event>> {
        if self.poll_write(context)?.is_ready()
            && Pin::new(&mut self.stream).poll_shutdown(context)?.is_ready()
            && lingering_close.is_none_or(|close| close.poll(&mut self.stream, context).is_ready())
        {
            return Poll::Ready(Ok(Event::End));
        }
        self.poll_timeout(context).map(|()| Ok(Event::TimedOut))
    }

    /// Writes and flushes all pending output, without a timeout.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            self.is_flushed = false;
            let rest = &self.output[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
            self.timer = None;
        }
        self.output.clear();
        self.written = 0;
        if !self.is_flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_flushed = true;
            // With TLS, the flush may be the slow part, and not the write.
            self.timer = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reserve_input();
        let mut buffer = ReadBuf::new(&mut self.input[self.unread.end..]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        match buffer.filled().len() {
            0 => self.is_at_end = true,
            count => self.unread.end += count,
        }
        Poll::Ready(Ok(()))
    }

    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| timer(timeout));
        timer.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::watch;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// A stream that accepts every write at once and completes the flush later, as TLS may. After the flush it delivers a
    /// partial request.
    #[derive(Default)]
    struct SlowFlush {
        can_flush: bool,
        has_delivered: bool,
    }

    impl AsyncRead for SlowFlush {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if !self.can_flush || self.has_delivered {
                return Poll::Pending;
            }
            self.has_delivered = true;
            buffer.put_slice(b"partial");
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for SlowFlush {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.can_flush { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn poll(stream: &mut BufferedStream<SlowFlush>) -> Option<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let (_sender, receiver) = watch::channel(StopPhase::Running);
        match stream.poll_exchange(false, &mut Stop::new(receiver), &mut context) {
            Poll::Ready(event) => Some(event.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Regression: the time that a client took to read a response was subtracted from the time for its next request.
    #[tokio::test(start_paused = true)]
    async fn the_timeout_restarts_when_a_response_is_flushed() {
        let limits = BufferLimits { input: 1 << 10, output: 1 << 10 };
        let mut stream = BufferedStream::new(SlowFlush::default(), limits, TIMEOUT);
        stream.buffers().1.extend_from_slice(b"response");
        assert_eq!(poll(&mut stream), None, "the response is not flushed");
        tokio::time::advance(TIMEOUT.mul_f64(0.9)).await;
        assert_eq!(poll(&mut stream), None, "before the timeout");
        stream.stream.can_flush = true;
        assert_eq!(poll(&mut stream), Some(Event::Progress));
        assert_eq!(poll(&mut stream), None, "the request is incomplete");
        tokio::time::advance(TIMEOUT.mul_f64(0.9)).await;
        assert_eq!(poll(&mut stream), None, "before the restarted timeout");
        tokio::time::advance(TIMEOUT.mul_f64(0.2)).await;
        assert_eq!(poll(&mut stream), Some(Event::TimedOut));
    }
}
