//! The fast path of HTTP/1: serves plain decision requests without hyper.
//!
//! hyper takes several times as long to parse a request and to write the response as the decision itself. So each
//! connection starts here, and stays as long as all its requests are [plain](PlainRequest). The first other request moves
//! the connection to hyper for good, with all bytes that have no response yet.

mod request;

use std::future::poll_fn;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use slidegate::store::Store;
use slidegate::{Clock, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

pub(super) use self::request::PlainRequest;
use self::request::{Parsed, RequestParser};
use super::Routes;
use super::body_budget::BudgetPermit;
use super::reply::PlainReply;
use crate::net::buffered_stream::{BufferLimits, BufferedStream, Event};
use crate::net::io_timeout::{Activity, HTTP2_PREFACE};
use crate::net::stop::{Stop, StopPhase};
use crate::net::streams::UnreadResponse;

/// Timeout for the rest of a partial request. Then hyper takes over, which sends an error response if the rest never
/// arrives.
const PARTIAL_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// Buffers no larger than hyper's. The output limit is checked before each response, so one response may exceed it.
const BUFFER_LIMITS: BufferLimits = BufferLimits { input: request::MAX_BYTES, output: 16 << 10 };
/// Number of requests after which the connection yields to other tasks.
const REQUESTS_PER_YIELD: usize = 16;

/// Serves a connection until its end, or until its first request that is not plain.
pub(crate) async fn serve<I: AsyncRead + AsyncWrite + Unpin, S: Store>(
    stream: I,
    routes: &Routes<S>,
    activity: &Activity,
    stop: Stop,
) -> io::Result<FastPathEnd<I>> {
    FastPath::new(stream, routes, activity, stop).run().await
}

/// A connection on the fast path.
struct FastPath<'r, I, S> {
    stream: BufferedStream<I>,
    routes: &'r Routes<S>,
    activity: &'r Activity,
    stop: Stop,
    parser: RequestParser,
    reply: PlainReply,
    date: DateLine,
    has_responded: bool,
    large_response: Option<LargeResponse>,
}

/// Guard of a large response that is not written completely: starts its timeout and holds its share of the memory budget.
struct LargeResponse {
    _unread: UnreadResponse,
    _permit: Option<BudgetPermit>,
}

/// Result of serving a connection on the fast path.
pub(crate) enum FastPathEnd<I> {
    /// The connection is closed.
    Closed,
    /// The connection moves to hyper. `unread` was received and has no response.
    HandedOver { stream: I, unread: Vec<u8>, may_be_http2: bool },
}

/// Next step of the serving loop.
enum NextStep {
    /// Wait for more input.
    Read,
    /// Write the output before the next request in the input is decided.
    Write,
    /// Hand the connection over to hyper.
    HandOver,
    /// Close the connection.
    Close,
}

impl<'r, I: AsyncRead + AsyncWrite + Unpin, S: Store> FastPath<'r, I, S> {
    fn new(stream: I, routes: &'r Routes<S>, activity: &'r Activity, stop: Stop) -> Self {
        Self {
            stream: BufferedStream::new(stream, BUFFER_LIMITS, PARTIAL_REQUEST_TIMEOUT),
            routes,
            activity,
            stop,
            parser: RequestParser::default(),
            reply: PlainReply::new(),
            date: DateLine::default(),
            has_responded: false,
            large_response: None,
        }
    }

    async fn run(mut self) -> io::Result<FastPathEnd<I>> {
        let mut has_more = false;
        loop {
            let Self { stream, stop, .. } = &mut self;
            match poll_fn(|context| stream.poll_exchange(has_more, stop, context)).await? {
                Event::Progress => {}
                Event::End if self.stream.is_input_empty() => return self.close().await,
                Event::Stopped => {
                    self.activity.request_lingering_close();
                    return self.close().await;
                }
                Event::End | Event::TimedOut => return self.hand_over().await,
            }
            if self.large_response.is_some() && self.stream.shrink_output() {
                self.large_response = None;
            }
            let next = self.respond().await;
            has_more = matches!(next, NextStep::Write);
            match next {
                NextStep::Read => {}
                NextStep::Write => tokio::task::yield_now().await,
                NextStep::HandOver => return self.hand_over().await,
                NextStep::Close => return self.close().await,
            }
        }
    }

    /// Decides the plain requests of the input in order, and appends their responses to the output.
    async fn respond(&mut self) -> NextStep {
        let (bytes, output) = self.stream.buffers();
        let (mut consumed, mut responses) = (0, 0);
        let next = loop {
            if output.len() >= BUFFER_LIMITS.output || responses >= REQUESTS_PER_YIELD {
                break NextStep::Write;
            }
            if consumed == bytes.len() {
                break NextStep::Read;
            }
            match self.parser.parse(&bytes[consumed..]) {
                Parsed::Plain(request, length) => {
                    self.routes.decide_plain(&mut self.reply, &request).await;
                    (consumed, responses) = (consumed + length, responses + 1);
                    // Requests after the last response stay unserved, so a drain first serves all requests that have arrived.
                    let is_last = match self.stop.phase() {
                        StopPhase::Running => false,
                        StopPhase::Draining => consumed == bytes.len(),
                        StopPhase::Closing => true,
                    };
                    self.reply.write(output, self.date.line(), is_last);
                    let permit = self.reply.take_permit();
                    if output.len() >= BUFFER_LIMITS.output {
                        let unread = UnreadResponse::new(self.activity.streams());
                        self.large_response = Some(LargeResponse { _unread: unread, _permit: permit });
                    }
                    if is_last {
                        self.activity.request_lingering_close();
                        break NextStep::Close;
                    }
                }
                Parsed::Incomplete => break NextStep::Read,
                Parsed::Other => break NextStep::HandOver,
            }
        };
        if consumed > 0 {
            self.stream.consume(consumed);
            self.activity.end_request();
            self.has_responded = true;
        }
        self.reply.shrink();
        next
    }

    async fn hand_over(mut self) -> io::Result<FastPathEnd<I>> {
        poll_fn(|context| self.stream.poll_write(context)).await?;
        let (stream, unread) = self.stream.into_parts();
        // A connection that has begun with HTTP/1 stays with it.
        let may_be_http2 = !self.has_responded && either_is_prefix(&unread, HTTP2_PREFACE);
        Ok(FastPathEnd::HandedOver { stream, unread, may_be_http2 })
    }

    /// Writes the rest and shuts the stream down. With TLS this sends `close_notify`, which distinguishes the end from a
    /// lost connection.
    async fn close(mut self) -> io::Result<FastPathEnd<I>> {
        poll_fn(|context| self.stream.poll_write(context)).await?;
        self.stream.into_parts().0.shutdown().await?;
        Ok(FastPathEnd::Closed)
    }
}

/// Returns whether one of the slices is a prefix of the other.
fn either_is_prefix(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

/// The `date` line of a response head, cached for one second.
#[derive(Default)]
struct DateLine {
    clock: SystemClock,
    expires_at_ms: u64,
    line: String,
}

impl DateLine {
    fn line(&mut self) -> &str {
        if self.clock.now_ms() >= self.expires_at_ms {
            // A new clock follows changes of the system time.
            self.clock = SystemClock::default();
            let now_ms = self.clock.now_ms();
            self.expires_at_ms = now_ms - now_ms % 1000 + 1000;
            let now = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(now_ms));
            self.line = format!("date: {now}\r\n");
        }
        &self.line
    }
}

#[cfg(test)]
mod tests;
