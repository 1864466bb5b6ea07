//! A connection that says nothing, says it too slowly or does not listen is not waited for without end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::activity::Activity;
use super::lingering_close::LingeringClose;
use super::streams::Streams;

use crate::timer::timer;

/// What HTTP/2 begins with.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream on which the heads of requests are complete in time and on which somebody listens, or it fails.
pub(super) struct IoTimeout<I> {
    stream: I,
    activity: Arc<Activity>,
    head_timeout: Duration,
    /// Set once for many requests: when it is over, the activity or the streams say whether the connection is late.
    end: Pin<Box<Sleep>>,
    /// What is under way, if it is HTTP/2.
    streams: Option<Arc<Streams>>,
    /// How much of the preface has come, as long as nothing else has.
    preface: Option<usize>,
    /// Set while the other side takes nothing of what it is told: to the time when it must have, or have taken all.
    stuck: Option<Pin<Box<Sleep>>>,
    /// Whether the last answer was that the client is wrong, who may then not have said everything yet.
    has_refused: bool,
    /// Set after the last answer.
    linger: Option<LingeringClose>,
}

impl<I> IoTimeout<I> {
    pub(super) fn new(stream: I, head_timeout: Duration, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            activity,
            head_timeout,
            end: timer(head_timeout),
            streams: None,
            preface: Some(0),
            stuck: None,
            has_refused: false,
            linger: None,
        }
    }

    /// Looks at what has come, until it is known which version it is.
    fn listen(&mut self, said: &[u8]) {
        let Some(before) = self.preface else { return };
        let rest = &PREFACE[before..];
        let length = said.len().min(rest.len());
        self.preface = (said[..length] == rest[..length]).then_some(before + length);
        if self.preface == Some(PREFACE.len()) {
            (self.preface, self.streams) = (None, Some(Arc::clone(self.activity.begin_http2())));
        }
    }

    /// Looks at what is answered.
    fn overhear(&mut self, answer: &[u8]) {
        if let Some([class, ..]) = answer.strip_prefix(b"HTTP/1.1 ") {
            self.has_refused = *class == b'4';
        }
    }

    /// Whether a request has been awaited for too long, or that an answer is taken.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.end.as_mut().poll(context));
            let left = match &self.streams {
                None => self.activity.left(self.head_timeout),
                Some(streams) => streams.left(self.head_timeout),
            };
            if left.is_zero() {
                return Poll::Ready(());
            }
            self.end = timer(left);
        }
    }
}

impl<I> IoTimeout<I> {
    /// What came of writing, unless nothing has for too long.
    fn or_stuck<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| timer(self.activity.left_to_take(self.head_timeout)));
        stuck.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for IoTimeout<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.listen(&buffer.filled()[before..]);
            return read;
        }
        self.poll_late(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for IoTimeout<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.overhear(bytes);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_stuck(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.or_stuck(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(context);
            let shut = ready!(self.or_stuck(context, shut));
            if shut.is_err() || !(self.has_refused || self.activity.lingers()) {
                return Poll::Ready(shut);
            }
        }
        let Self { stream, linger, .. } = &mut *self;
        linger.get_or_insert_with(LingeringClose::new).poll(stream, context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.overhear(buffers.first().map_or(&[], |first| first));
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.or_stuck(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
