//! Splits the bytes of an HTTP/1 connection into requests, so that a drain recognizes the last one.
//!
//! hyper reads as much as its buffer holds, and does not expose how many of these bytes belong to later requests. During
//! a drain the last response announces the end of the connection, and hyper drops all requests after it. So this stream
//! delivers the bytes of one request at a time, and holds the rest back.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of a read that only detects the end of the connection.
const PROBE_BYTES: usize = 4 << 10;

/// Position of a connection in its sequence of requests, shared by the stream and the service.
#[derive(Debug, Default)]
pub(super) struct RequestSequence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    position: Position,
    has_unread: bool,
    /// The task that waits for the end of the request before it reads on.
    reader: Option<Waker>,
}

#[derive(Debug)]
enum Position {
    Head(HeadEnd),
    /// The service processes the request. `None`: the body is chunked and its end unknown.
    Serving {
        body_left: Option<u64>,
    },
    /// The response is ready, and the body is not completely received.
    Body {
        left: u64,
    },
    /// HTTP/2, which multiplexes requests.
    Http2,
}

impl Default for Position {
    fn default() -> Self {
        Self::Head(HeadEnd::default())
    }
}

impl RequestSequence {
    /// Records that the service begins a request, after hyper has read its head.
    pub(super) fn begin(&self, body_length: Option<u64>) {
        let mut state = self.lock();
        if !matches!(state.position, Position::Http2) {
            // Only a head of an unusual form is delivered together with a part of the body.
            state.position = Position::Serving { body_left: body_length };
        }
    }

    /// Records that the response is ready.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if let Position::Serving { body_left } = state.position {
            state.position = match body_left {
                None | Some(0) => Position::default(),
                Some(left) => Position::Body { left },
            };
        }
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Returns whether bytes of a later request were received.
    pub(super) fn has_next(&self) -> bool {
        self.lock().has_unread
    }

    /// Returns whether a complete or partial request was received that the service has not begun.
    pub(super) fn has_begun(&self) -> bool {
        let state = self.lock();
        state.has_unread || matches!(state.position, Position::Head(HeadEnd { has_begun: true, .. }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the number of received bytes to deliver to hyper now.
    fn deliver(&mut self, bytes: &[u8]) -> usize {
        match &mut self.position {
            Position::Http2 | Position::Serving { body_left: None } => bytes.len(),
            Position::Head(end) if !end.has_begun && bytes.starts_with(b"PRI ") => {
                self.position = Position::Http2;
                bytes.len()
            }
            Position::Head(end) => match end.find(bytes) {
                Some(count) => {
                    *end = HeadEnd::default();
                    count
                }
                None => bytes.len(),
            },
            Position::Serving { body_left: Some(left) } => take(left, bytes.len()),
            Position::Body { left } => {
                let count = take(left, bytes.len());
                if *left == 0 {
                    self.position = Position::default();
                }
                count
            }
        }
    }
}

fn take(left: &mut u64, count: usize) -> usize {
    let taken = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= taken as u64;
    taken
}

/// Finds the empty line that ends a head. Empty lines before the head do not count.
#[derive(Debug, Default)]
struct HeadEnd {
    has_begun: bool,
    line: Line,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Line {
    #[default]
    Empty,
    CarriageReturn,
    Text,
}

impl HeadEnd {
    /// Returns how many bytes belong to the head if it ends here.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        while let Some(length) = bytes[start..].iter().position(|byte| *byte == b'\n') {
            self.read(&bytes[start..start + length]);
            start += length + 1;
            if std::mem::take(&mut self.line) != Line::Text && self.has_begun {
                return Some(start);
            }
        }
        self.read(&bytes[start..]);
        None
    }

    fn read(&mut self, part: &[u8]) {
        self.line = match (self.line, part) {
            (line, []) => line,
            (Line::Empty, [b'\r']) => Line::CarriageReturn,
            _ => Line::Text,
        };
        self.has_begun |= self.line == Line::Text;
    }
}

/// A connection that delivers one request at a time.
pub(super) struct RequestStream<I> {
    stream: I,
    unread: Bytes,
    requests: Arc<RequestSequence>,
}

impl<I> RequestStream<I> {
    /// `unread` was received before, and comes before the rest of `stream`.
    pub(super) fn new(stream: I, unread: Vec<u8>, requests: Arc<RequestSequence>) -> Self {
        requests.lock().has_unread = !unread.is_empty();
        Self { stream, unread: unread.into(), requests }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for RequestStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, unread, requests } = &mut *self;
        let mut state = requests.lock();
        if let Position::Serving { body_left: Some(0) } = state.position {
            // hyper polls for the end of the connection. Bytes of the next request are held back until the response is
            // ready.
            if unread.is_empty() {
                let mut space = [0; PROBE_BYTES];
                let mut probe = ReadBuf::new(&mut space);
                ready!(Pin::new(&mut *stream).poll_read(context, &mut probe))?;
                if probe.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
                *unread = Bytes::copy_from_slice(probe.filled());
                state.has_unread = true;
            }
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        if unread.is_empty() {
            let start = buffer.filled().len();
            ready!(Pin::new(stream).poll_read(context, buffer))?;
            let received = &buffer.filled()[start..];
            let count = state.deliver(received);
            *unread = Bytes::copy_from_slice(&received[count..]);
            buffer.set_filled(start + count);
        } else {
            let count = state.deliver(&unread[..unread.len().min(buffer.remaining())]);
            buffer.put_slice(&unread.split_to(count));
        }
        state.has_unread = !unread.is_empty();
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for RequestStream<I> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_across_reads() {
        let table: [(&[u8], Option<usize>); 8] = [
            (b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET", Some(27)),
            (b"\r\n\r\nGET / HTTP/1.1\r\n\r\nPOST", Some(22)),
            (b"GET / HTTP/1.1\n\nGET", Some(16)),
            (b"GET / HTTP/1.1\r\n\n\r\n", Some(17)),
            (b"GET / HTTP/1.1\r\nhost: a\r\n", None),
            (b"GET / HTTP/1.1\r\n\r\r\n", None),
            (b"\r\n\r\n", None),
            (b"", None),
        ];
        for (bytes, expected) in table {
            for split in 0..=bytes.len() {
                let mut end = HeadEnd::default();
                let (first, second) = bytes.split_at(split);
                let found = end.find(first).or_else(|| Some(split + end.find(second)?));
                assert_eq!(found, expected, "{:?} at {split}", String::from_utf8_lossy(bytes));
            }
        }
    }

    #[tokio::test]
    async fn each_request_is_delivered_after_the_previous_response() {
        use tokio::io::AsyncReadExt;
        let received = b"POST / HTTP/1.1\r\n\r\nbodyGET /a HTTP/1.1\r\n\r\nGET /b".as_slice();
        for is_handed_over in [false, true] {
            let requests = Arc::new(RequestSequence::default());
            let (unread, stream) =
                if is_handed_over { (received.to_vec(), &b""[..]) } else { (Vec::new(), received) };
            let mut stream = RequestStream::new(stream, unread, Arc::clone(&requests));
            let mut read = async || {
                let mut bytes = [0; 100];
                let count = stream.read(&mut bytes).await.unwrap();
                String::from_utf8(bytes[..count].to_vec()).unwrap()
            };
            assert_eq!(read().await, "POST / HTTP/1.1\r\n\r\n");
            requests.begin(Some(4));
            assert_eq!(read().await, "body");
            assert!(requests.has_next() && requests.has_begun());
            {
                let mut blocked = Box::pin(read());
                let mut context = Context::from_waker(Waker::noop());
                assert!(blocked.as_mut().poll(&mut context).is_pending(), "before the response");
            }
            requests.end();
            assert_eq!(read().await, "GET /a HTTP/1.1\r\n\r\n");
            requests.begin(Some(0));
            requests.end();
            assert_eq!(read().await, "GET /b");
            assert!(!requests.has_next() && requests.has_begun(), "a head has begun");
        }
    }
}
