//! The lane for plain requests: one decision after the other, without hyper.
//!
//! To read a request, to make it a future and a response, and to write that down takes hyper several times as long as to
//! decide. So connections begin here, and as long as all that comes is [plain](crate::protocols::http::Plain), they stay. With the
//! first request that is not, hyper takes over, for good and with every byte that was not answered.

mod request;

use std::future::poll_fn;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use slidegate::{Clock, Store, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

pub(crate) use self::request::Plain;
use self::request::{Finder, Found};
use super::activity::Activity;
use super::buffered_stream::{BufferLimits, BufferedStream, Event};
use super::io_timeout::PREFACE;
use super::stop::{Phase, Stop};
use super::streams::Waiting;
use crate::protocols::http::{self, PlainReply, Routes};

/// How long the rest of a request may take before hyper waits for it, and knows what to say if it never comes.
const PATIENCE: Duration = Duration::from_millis(100);

/// Not more than hyper would take: a few answers, and one that is large.
const BUFFERS: BufferLimits = BufferLimits { input: request::MAX_BYTES, output: 16 << 10 };
/// So many requests may be answered before it is another connection's turn.
const TURN: usize = 16;

/// A connection on the lane.
pub(super) struct Lane<'r, I, S> {
    wire: BufferedStream<I>,
    routes: &'r Routes<S>,
    activity: &'r Activity,
    stop: Stop,
    finder: Finder,
    reply: PlainReply,
    date: Date,
    has_answered: bool,
    large: Option<Large>,
}

/// That there is a large answer which has not all been taken: it is waited for only so long, and has room of its own.
struct Large {
    _waiting: Waiting,
    _room: Option<http::BudgetPermit>,
}

/// What became of a connection.
pub(super) enum Left<I> {
    /// It has ended.
    Ended,
    /// Something has come that is not plain: hyper's, which is told whether it may be HTTP/2.
    Other { stream: I, unread: Vec<u8>, may_be_http2: bool },
}

/// What is to be done next.
enum Next {
    /// Wait for more.
    Read,
    /// Write before there is more to say.
    Write,
    /// Leave the rest to hyper.
    Leave,
    /// Close.
    Close,
}

impl<'r, I: AsyncRead + AsyncWrite + Unpin, S: Store> Lane<'r, I, S> {
    pub(super) fn new(stream: I, routes: &'r Routes<S>, activity: &'r Activity, stop: Stop) -> Self {
        let wire = BufferedStream::new(stream, BUFFERS, PATIENCE);
        let (finder, reply, date) = (Finder::default(), PlainReply::new(), Date::default());
        Self { wire, routes, activity, stop, finder, reply, date, has_answered: false, large: None }
    }

    pub(super) async fn run(mut self) -> io::Result<Left<I>> {
        let mut has_more = false;
        loop {
            let Self { wire, stop, .. } = &mut self;
            match poll_fn(|context| wire.poll_exchange(has_more, stop, context)).await? {
                Event::Progress => {}
                Event::End if self.wire.is_read_up() => return self.close().await,
                Event::Stopped => {
                    self.activity.linger_on_close();
                    return self.close().await;
                }
                Event::End | Event::TooSlow => return self.leave().await,
            }
            if self.large.is_some() && self.wire.has_little_to_write() {
                self.large = None;
            }
            let next = self.answer().await;
            has_more = matches!(next, Next::Write);
            match next {
                Next::Read => {}
                Next::Write => tokio::task::yield_now().await,
                Next::Leave => return self.leave().await,
                Next::Close => return self.close().await,
            }
        }
    }

    /// Answers what is plain, in its order.
    async fn answer(&mut self) -> Next {
        let (bytes, output) = self.wire.sides();
        let (mut taken, mut answered) = (0, 0);
        let next = loop {
            if output.len() >= BUFFERS.output || answered >= TURN {
                break Next::Write;
            }
            if taken == bytes.len() {
                break Next::Read;
            }
            match self.finder.find(&bytes[taken..]) {
                Found::Plain(plain, length) => {
                    self.routes.decide_plain(&mut self.reply, &plain).await;
                    (taken, answered) = (taken + length, answered + 1);
                    // After this response no request is answered, so all that came before it is.
                    let is_last = match self.stop.phase() {
                        Phase::Open => false,
                        Phase::Draining => taken == bytes.len(),
                        Phase::Closing => true,
                    };
                    self.reply.write(output, self.date.line(), is_last);
                    let room = self.reply.take_permit();
                    if output.len() >= BUFFERS.output {
                        let waiting = Waiting::new(self.activity.streams());
                        self.large = Some(Large { _waiting: waiting, _room: room });
                    }
                    if is_last {
                        self.activity.linger_on_close();
                        break Next::Close;
                    }
                }
                Found::Half => break Next::Read,
                Found::Other => break Next::Leave,
            }
        };
        if taken > 0 {
            self.wire.take(taken);
            self.activity.end();
            self.has_answered = true;
        }
        self.reply.shrink();
        next
    }

    async fn leave(mut self) -> io::Result<Left<I>> {
        poll_fn(|context| self.wire.poll_write(context)).await?;
        let (stream, unread) = self.wire.into_parts();
        // Whatever has begun with HTTP/1 goes on with it.
        let may_be_http2 = !self.has_answered && begins_alike(&unread, PREFACE);
        Ok(Left::Other { stream, unread, may_be_http2 })
    }

    /// Says that it was all: with TLS the other side can tell that from a connection that broke.
    async fn close(mut self) -> io::Result<Left<I>> {
        poll_fn(|context| self.wire.poll_write(context)).await?;
        self.wire.into_parts().0.shutdown().await?;
        Ok(Left::Ended)
    }
}

fn begins_alike(one: &[u8], other: &[u8]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

/// What time it is, as a line of an HTTP head. Good for the second in which it was asked for.
#[derive(Default)]
struct Date {
    clock: SystemClock,
    until_ms: u64,
    line: String,
}

impl Date {
    fn line(&mut self) -> &str {
        if self.clock.now_ms() >= self.until_ms {
            // Made anew, so that it follows when the time of the day is set.
            self.clock = SystemClock::default();
            let now_ms = self.clock.now_ms();
            self.until_ms = now_ms - now_ms % 1000 + 1000;
            let now = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(now_ms));
            self.line = format!("date: {now}\r\n");
        }
        &self.line
    }
}

#[cfg(test)]
mod tests;
