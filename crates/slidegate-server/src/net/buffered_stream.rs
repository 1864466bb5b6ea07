//! Bytes in and out, with bounds to what waits in either direction.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::lingering_close::LingeringClose;
use super::stop::{Phase, Stop};
use crate::timer::timer;

/// Enough for whoever waits for each answer.
const FIRST_BYTES: usize = 1 << 10;
/// What an idle connection may keep.
const IDLE_BYTES: usize = 16 << 10;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    /// Of what was read: as much as the largest that can be understood, so that there is room for the rest of it.
    pub(crate) input: usize,
    /// Of what is to be written, before nothing more is read or answered: it lets those through who write much before they
    /// read.
    pub(crate) output: usize,
}

/// A stream, what was read of it and what is to be written.
pub(crate) struct BufferedStream<I> {
    stream: I,
    input: Vec<u8>,
    /// Which of the bytes in it were read and not yet understood.
    unread: std::ops::Range<usize>,
    output: Vec<u8>,
    written: usize,
    is_flushed: bool,
    is_at_end: bool,
    room: BufferLimits,
    patience: Duration,
    /// When whoever has begun something must have ended it.
    end: Option<Pin<Box<Sleep>>>,
}

/// What has come to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is more to read, or room to write.
    Progress,
    /// There is nothing more to come.
    End,
    /// Something was begun and not ended in time.
    TooSlow,
    /// There is a stop, and nothing has begun.
    Stopped,
}

impl<I> BufferedStream<I> {
    pub(crate) fn new(stream: I, room: BufferLimits, patience: Duration) -> Self {
        Self {
            stream,
            input: vec![0; FIRST_BYTES],
            unread: 0..0,
            output: Vec::new(),
            written: 0,
            is_flushed: true,
            is_at_end: false,
            room,
            patience,
            end: None,
        }
    }

    pub(crate) fn stream(&self) -> &I {
        &self.stream
    }

    /// What was read and not yet taken, and where to put answers.
    pub(crate) fn sides(&mut self) -> (&[u8], &mut Vec<u8>) {
        self.output.drain(..self.written);
        self.written = 0;
        (&self.input[self.unread.clone()], &mut self.output)
    }

    /// Nothing more is read or answered here. What was answered must have been written.
    pub(crate) fn into_parts(mut self) -> (I, Vec<u8>) {
        self.input.truncate(self.unread.end);
        self.input.drain(..self.unread.start);
        (self.stream, self.input)
    }

    /// So many bytes were understood.
    pub(crate) fn take(&mut self, count: usize) {
        if count > 0 {
            self.unread.start += count;
            self.end = None;
        }
    }

    /// Whether all that has come was understood.
    pub(crate) fn is_read_up(&self) -> bool {
        self.unread.is_empty()
    }

    /// Whether no more waits to be written than usual. Then no more is kept for it than that may take.
    pub(crate) fn has_little_to_write(&mut self) -> bool {
        let has_little = self.output.len() - self.written < self.room.output;
        if has_little {
            self.output.drain(..self.written);
            self.written = 0;
            self.output.shrink_to(2 * self.room.output);
        }
        has_little
    }

    fn has_output(&self) -> bool {
        !self.is_flushed || self.written < self.output.len()
    }

    /// Makes space behind the unread bytes, and enlarges the buffer if it was full.
    fn make_room(&mut self) {
        if self.unread.end == self.input.len() && self.input.len() < self.room.input {
            self.input.resize((4 * self.input.len()).min(self.room.input), 0);
        }
        if self.unread.start > 0 {
            self.input.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }

    fn forget_what_is_large(&mut self) {
        if self.input.len() > IDLE_BYTES {
            self.input = vec![0; FIRST_BYTES];
            self.unread = 0..0;
        }
        if self.output.capacity() > IDLE_BYTES {
            self.output = Vec::new();
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> BufferedStream<I> {
    /// Writes what there is, reads what there is, and waits for one or the other. `has_more` says that what was read has more
    /// to be understood as soon as there is room for answers.
    pub(crate) fn poll_exchange(
        &mut self,
        has_more: bool,
        stop: &mut Stop,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Event>> {
        let _ = self.poll_write(context)?;
        let waiting = self.output.len() - self.written;
        if has_more && waiting < self.room.output {
            return Poll::Ready(Ok(Event::Progress));
        }
        let may_read = !self.is_at_end && !has_more && waiting < self.room.output;
        if may_read && self.poll_read(context)?.is_ready() && !self.is_at_end {
            return Poll::Ready(Ok(Event::Progress));
        }
        if self.is_at_end && !self.has_output() {
            return Poll::Ready(Ok(Event::End));
        }
        if !self.has_output() && self.unread.is_empty() {
            self.forget_what_is_large();
            return stop.poll(Phase::Closing, context).map(|()| Ok(Event::Stopped));
        }
        self.poll_end(context).map(|()| Ok(Event::TooSlow))
    }

    /// Writes what there is and says that it is all. With `linger`, reads what may still come, for a while: a connection that
    /// is closed over something unread takes the answer back.
    pub(crate) fn poll_finish(
        &mut self,
        linger: Option<&mut LingeringClose>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Event>> {
        if self.poll_write(context)?.is_ready()
            && Pin::new(&mut self.stream).poll_shutdown(context)?.is_ready()
            && linger.is_none_or(|linger| linger.poll(&mut self.stream, context).is_ready())
        {
            return Poll::Ready(Ok(Event::End));
        }
        self.poll_end(context).map(|()| Ok(Event::TooSlow))
    }

    /// Writes what there is, however long that takes.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            self.is_flushed = false;
            let rest = &self.output[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
            self.end = None;
        }
        self.output.clear();
        self.written = 0;
        if !self.is_flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_flushed = true;
            // With TLS it may be this that was waited for, and not to write.
            self.end = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.make_room();
        let mut buffer = ReadBuf::new(&mut self.input[self.unread.end..]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        match buffer.filled().len() {
            0 => self.is_at_end = true,
            count => self.unread.end += count,
        }
        Poll::Ready(Ok(()))
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let end = self.end.get_or_insert_with(|| timer(patience));
        end.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::watch;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    /// Takes every byte at once; like TLS it may be slower to say that they have left. Half a request comes as soon as they
    /// have.
    #[derive(Default)]
    struct Slow {
        has_left: bool,
        has_come: bool,
    }

    impl AsyncRead for Slow {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if !self.has_left || self.has_come {
                return Poll::Pending;
            }
            self.has_come = true;
            buffer.put_slice(b"half");
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.has_left { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn poll(wire: &mut BufferedStream<Slow>) -> Option<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let (_never, told) = watch::channel(Phase::Open);
        match wire.poll_exchange(false, &mut Stop::new(told), &mut context) {
            Poll::Ready(event) => Some(event.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Regression: the time that a client took to read a response was subtracted from the time for its next request.
    #[tokio::test(start_paused = true)]
    async fn patience_begins_anew_when_an_answer_has_left() {
        let room = BufferLimits { input: 1 << 10, output: 1 << 10 };
        let mut wire = BufferedStream::new(Slow::default(), room, PATIENCE);
        wire.sides().1.extend_from_slice(b"answer");
        assert_eq!(poll(&mut wire), None, "it has not left");
        tokio::time::advance(PATIENCE.mul_f64(0.9)).await;
        assert_eq!(poll(&mut wire), None, "there is time left");
        wire.stream.has_left = true;
        assert_eq!(poll(&mut wire), Some(Event::Progress));
        assert_eq!(poll(&mut wire), None, "the rest is yet to come");
        tokio::time::advance(PATIENCE.mul_f64(0.9)).await;
        assert_eq!(poll(&mut wire), None, "and has all the time that there is");
        tokio::time::advance(PATIENCE.mul_f64(0.2)).await;
        assert_eq!(poll(&mut wire), Some(Event::TooSlow));
    }
}
