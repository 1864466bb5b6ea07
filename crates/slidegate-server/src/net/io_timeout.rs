//! Timeouts of a connection: for request heads, idle connections and unread responses.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::lingering_close::LingeringClose;
use super::streams::Streams;
use super::timer;

/// Connection preface of HTTP/2.
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Value of `idle_since_ms` while a request is in progress.
const IN_PROGRESS: u64 = u64::MAX;

/// Request activity of a connection, shared by its stream and the service: since when it waits for a request head.
///
/// A timer for each head would be set and cancelled with every request, and hardly ever fire. So the service only records
/// the time, and the stream checks it with one timer that spans many requests.
#[derive(Debug)]
pub(crate) struct Activity {
    clock: SystemClock,
    /// Read with HTTP/1 only.
    idle_since_ms: AtomicU64,
    /// Used with HTTP/2, and for large responses of HTTP/1.
    streams: OnceLock<Arc<Streams>>,
    is_http2: AtomicBool,
    needs_lingering_close: AtomicBool,
}

impl Activity {
    /// Returns the activity of a connection that begins now.
    pub(crate) fn new() -> Self {
        let clock = SystemClock::default();
        let idle_since_ms = AtomicU64::new(clock.now_ms());
        Self {
            clock,
            idle_since_ms,
            streams: OnceLock::new(),
            is_http2: AtomicBool::new(false),
            needs_lingering_close: AtomicBool::new(false),
        }
    }

    /// Returns the streams of an HTTP/2 connection, or the large responses of an HTTP/1 connection.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        self.streams.get_or_init(|| Arc::new(Streams::new()))
    }

    /// Records that the connection uses HTTP/2.
    pub(crate) fn begin_http2(&self) -> &Arc<Streams> {
        self.is_http2.store(true, Ordering::Relaxed);
        self.streams()
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Requests a lingering close: further input is read and discarded when the connection ends.
    pub(crate) fn request_lingering_close(&self) {
        self.needs_lingering_close.store(true, Ordering::Relaxed);
    }

    pub(crate) fn needs_lingering_close(&self) -> bool {
        self.needs_lingering_close.load(Ordering::Relaxed)
    }

    /// Records that a request head is complete.
    pub(crate) fn begin_request(&self) {
        self.idle_since_ms.store(IN_PROGRESS, Ordering::Relaxed);
    }

    /// Records that the response is ready, which starts the timeout of the next head.
    pub(crate) fn end_request(&self) {
        self.idle_since_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    /// Returns the time left for the client to read its large responses.
    pub(crate) fn time_left_to_read(&self, timeout: Duration) -> Duration {
        self.streams.get().map_or(timeout, |streams| streams.time_left_to_read(timeout))
    }

    /// Returns the time left for the next head; all of it while a request is in progress.
    pub(crate) fn time_left(&self, timeout: Duration) -> Duration {
        match self.idle_since_ms.load(Ordering::Relaxed) {
            IN_PROGRESS => timeout,
            since_ms => {
                let idle_ms = self.clock.now_ms().saturating_sub(since_ms);
                timeout.saturating_sub(Duration::from_millis(idle_ms))
            }
        }
    }
}

/// A stream that fails with `TimedOut` when a request head does not become complete, or a response is not read, in time.
pub(crate) struct IoTimeout<I> {
    stream: I,
    activity: Arc<Activity>,
    head_timeout: Duration,
    /// Spans many requests. When it fires, `activity` or `streams` decides whether the connection has timed out.
    read_timer: Pin<Box<Sleep>>,
    /// Set with HTTP/2.
    streams: Option<Arc<Streams>>,
    /// Number of received bytes of the HTTP/2 preface; `None` once the protocol is known.
    preface_bytes: Option<usize>,
    /// Set while a write is blocked. Fires when the write, or a large response as a whole, times out.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Whether the latest response has a 4xx status. The client may still be sending the rejected request.
    is_client_error: bool,
    /// Set after the shutdown of the stream.
    lingering_close: Option<LingeringClose>,
}

impl<I> IoTimeout<I> {
    pub(crate) fn new(stream: I, head_timeout: Duration, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            activity,
            head_timeout,
            read_timer: timer(head_timeout),
            streams: None,
            preface_bytes: Some(0),
            write_timer: None,
            is_client_error: false,
            lingering_close: None,
        }
    }

    /// Detects HTTP/2 by the first received bytes.
    fn detect_http2(&mut self, received: &[u8]) {
        let Some(before) = self.preface_bytes else { return };
        let rest = &HTTP2_PREFACE[before..];
        let length = received.len().min(rest.len());
        self.preface_bytes = (received[..length] == rest[..length]).then_some(before + length);
        if self.preface_bytes == Some(HTTP2_PREFACE.len()) {
            (self.preface_bytes, self.streams) = (None, Some(Arc::clone(self.activity.begin_http2())));
        }
    }

    /// Records the status class if the written bytes begin with the head of a response.
    fn detect_client_error(&mut self, written: &[u8]) {
        if let Some([class, ..]) = written.strip_prefix(b"HTTP/1.1 ") {
            self.is_client_error = *class == b'4';
        }
    }

    /// Completes when the next request, or the reading of a large response, has timed out.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.read_timer.as_mut().poll(context));
            let left = match &self.streams {
                None => self.activity.time_left(self.head_timeout),
                Some(streams) => streams.time_left(self.head_timeout),
            };
            if left.is_zero() {
                return Poll::Ready(());
            }
            self.read_timer = timer(left);
        }
    }

    /// Returns the result of a write, or an error if writes have been blocked for too long.
    fn or_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let (activity, timeout) = (&self.activity, self.head_timeout);
        let write_timer = self.write_timer.get_or_insert_with(|| timer(activity.time_left_to_read(timeout)));
        write_timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
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
            self.detect_http2(&buffer.filled()[before..]);
            return read;
        }
        self.poll_timeout(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for IoTimeout<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.detect_client_error(bytes);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_write_timeout(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.or_write_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering_close.is_none() {
            let shutdown = Pin::new(&mut self.stream).poll_shutdown(context);
            let shutdown = ready!(self.or_write_timeout(context, shutdown));
            if shutdown.is_err() || !(self.is_client_error || self.activity.needs_lingering_close()) {
                return Poll::Ready(shutdown);
            }
        }
        let Self { stream, lingering_close, .. } = &mut *self;
        lingering_close.get_or_insert_with(LingeringClose::new).poll(stream, context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.detect_client_error(buffers.first().map_or(&[], |first| first));
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.or_write_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
