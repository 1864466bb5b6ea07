//! One connection: commands in, answers out, those that wait for the store together.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use metrics::counter;
use slidegate::{Decision, Store};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tracing::debug;

use super::Shared;
use super::command::{Name, Under, Wanted, Wrong, find, wanted};
use super::decided::{self, Shape};
use super::forget;
use super::frame::{Arguments, Frame, MAX_BYTES, Words};
use super::keys::{self, ANY_RATE, DecisionCounts, KeyCommand};
use super::quotas::RecentQuotas;
use super::reply;
use super::session::{Next, Session, arity};
use super::throttle::Recent;
use crate::app::App;
use crate::app::operation::PolicyOperation;
use crate::net::buffered_stream::{BufferLimits, BufferedStream, Event};
use crate::net::cork::Cork;
use crate::net::lingering_close::LingeringClose;
use crate::net::stop::Stop;
use crate::policies::Policies;
use crate::protocols::http::Task;
use crate::request::{Rejection, RejectionKind};
use crate::stopwatch::Stopwatch;
use crate::timer::timer;
use slidegate_config::Limits;

/// More than the largest command, and as much as whoever writes long before it reads may leave unread.
const BUFFERS: BufferLimits = BufferLimits { input: 4 * MAX_BYTES, output: 256 << 10 };
/// So many commands may be decided together and answered before it is another connection's turn.
const TURN: usize = 1000;

/// A connection.
pub(super) struct Connection<'s, I, S> {
    wire: BufferedStream<I>,
    words: Words,
    talk: Talk<'s, S>,
    introduction: Introduction,
}

/// When a stranger must have said a password.
struct Introduction {
    patience: Duration,
    end: Option<Pin<Box<Sleep>>>,
}

impl Introduction {
    /// Whether a stranger has had its time, which begins with the first call that finds one.
    fn poll_end(&mut self, is_stranger: bool, context: &mut Context<'_>) -> Poll<()> {
        if !is_stranger {
            self.end = None;
            return Poll::Pending;
        }
        let patience = self.patience;
        let end = self.end.get_or_insert_with(|| timer(patience));
        end.as_mut().poll(context)
    }
}

/// Who talks, and to whom.
struct Talk<'s, S> {
    app: &'s App<S>,
    shared: &'s Shared,
    session: Session,
    recent: Recent,
    recent_quotas: RecentQuotas,
}

/// Those that are to be decided together: one for most, who wait for each answer.
type Run<'a> = SmallVec<[(Shape, PolicyOperation<'a>); 1]>;

/// What a command is that is not for the store.
enum Other {
    /// One of those between a client and this server.
    Talk,
    /// One that cannot be executed.
    Wrong(Wrong),
}

impl From<Wrong> for Other {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

/// How far what was read has been answered.
struct Answered {
    next: Next,
    /// So many bytes.
    taken: usize,
    commands: usize,
    /// Whether there may be more of it.
    has_more: bool,
}

impl<'s, I: AsyncRead + AsyncWrite + Cork + Unpin, S: Store> Connection<'s, I, S> {
    pub(super) fn new(stream: I, app: &'s App<S>, shared: &'s Shared, number: u64, limits: &Limits) -> Self {
        let session = Session::new(number, shared.passwords.as_deref());
        let talk =
            Talk { app, shared, session, recent: Recent::default(), recent_quotas: RecentQuotas::default() };
        let introduction = Introduction { patience: limits.head_timeout, end: None };
        Self {
            wire: BufferedStream::new(stream, BUFFERS, limits.body_timeout),
            words: Words::default(),
            talk,
            introduction,
        }
    }

    pub(super) async fn run(mut self, mut stop: Stop) -> io::Result<()> {
        let mut has_more = false;
        loop {
            let is_stranger = self.talk.session.is_stranger();
            let event = poll_fn(|context| match self.introduction.poll_end(is_stranger, context) {
                Poll::Ready(()) => Poll::Ready(Ok(Event::TimedOut)),
                Poll::Pending => self.wire.poll_exchange(has_more, &mut stop, context),
            })
            .await?;
            match event {
                Event::Progress => {}
                Event::End => return self.finish(false).await,
                Event::Stopped => return self.finish(true).await,
                Event::TimedOut => {
                    let awaited = if is_stranger { "a password" } else { "the rest of a command" };
                    refused(RejectionKind::TooSlow, &format!("{awaited} did not come in time"));
                    return Ok(());
                }
            }
            self.talk.session.look_again(self.talk.shared.passwords.as_deref());
            let (bytes, output) = self.wire.buffers();
            // One reading for all commands: reading a clock takes longer than some commands do.
            let watch = Stopwatch::start();
            let answered = self.talk.answer(bytes, &mut self.words, output).await;
            if answered.taken > 0 {
                Task::Resp.record(watch);
            }
            self.wire.consume(answered.taken);
            has_more = answered.has_more;
            if answered.commands >= TURN {
                tokio::task::yield_now().await;
            }
            let is_last = stop.has_begun() && answered.taken > 0 && !has_more && self.wire.is_input_empty();
            if is_last {
                self.wire.stream().cork();
            }
            if answered.next != Next::GoOn || is_last {
                return self.finish(is_last || answered.next == Next::Break).await;
            }
        }
    }

    async fn finish(mut self, lingers: bool) -> io::Result<()> {
        let mut linger = lingers.then(LingeringClose::new);
        poll_fn(|context| self.wire.poll_finish(linger.as_mut(), context)).await.map(drop)
    }
}

impl<S: Store> Talk<'_, S> {
    /// Answers whatever is complete in `bytes`, in its order.
    async fn answer(&mut self, bytes: &[u8], words: &mut Words, out: &mut Vec<u8>) -> Answered {
        let policies = OnceLock::new();
        let mut run = Run::new();
        let mut answered = Answered { next: Next::GoOn, taken: 0, commands: 0, has_more: false };
        while answered.next == Next::GoOn {
            if out.len() >= BUFFERS.output || answered.commands >= TURN {
                answered.has_more = true;
                break;
            }
            answered.commands += 1;
            let rest = &bytes[answered.taken..];
            match words.find(rest, self.session.is_stranger()) {
                Frame::Command(length) => {
                    let words = words.within(&rest[..length]);
                    let name = Name::of(words.word(0));
                    answered.taken += length;
                    match self.understand(&name, words, &policies, &mut run) {
                        Ok(()) => {}
                        Err(Other::Talk) if self.may_forget(&name) => {
                            self.settle(&mut run, out).await;
                            forget::answer(self.app, &self.session, words, out).await;
                        }
                        Err(other) => {
                            self.settle(&mut run, out).await;
                            answered.next = self.tell(&name, words, &other, out);
                        }
                    }
                }
                Frame::Line(length) => {
                    answered.taken += length;
                    self.settle(&mut run, out).await;
                    answered.next = self.answer_line(words.of_line(), &policies, out).await;
                }
                Frame::Nothing(length) => answered.taken += length,
                Frame::Half => break,
                Frame::Broken(why) => {
                    self.settle(&mut run, out).await;
                    let why = why.to_string();
                    refused(RejectionKind::Malformed, &why);
                    reply::error(out, &format!("ERR {why}"));
                    answered.next = Next::Break;
                }
            }
            if run.len() >= TURN {
                self.settle(&mut run, out).await;
            }
        }
        self.settle(&mut run, out).await;
        answered
    }

    /// The words of a line are gone with the next one, so it waits for nobody.
    async fn answer_line(
        &mut self,
        words: Arguments<'_, '_>,
        policies: &OnceLock<Arc<Policies>>,
        out: &mut Vec<u8>,
    ) -> Next {
        let (name, mut run) = (Name::of(words.word(0)), Run::new());
        match self.understand(&name, words, policies, &mut run) {
            Ok(()) => {
                self.settle(&mut run, out).await;
                Next::GoOn
            }
            Err(Other::Talk) if self.may_forget(&name) => {
                forget::answer(self.app, &self.session, words, out).await;
                Next::GoOn
            }
            Err(other) => self.tell(&name, words, &other, out),
        }
    }

    /// Whether it is the command that forgets a policy, by a client that is let in.
    fn may_forget(&self, name: &Name) -> bool {
        forget::is_forget(name) && !self.session.is_stranger()
    }

    /// Adds what a command asks of the store to the run. Of one that is not for the store, or makes no sense, nothing is
    /// added.
    #[inline]
    fn understand<'a>(
        &mut self,
        name: &Name,
        words: Arguments<'a, '_>,
        policies: &OnceLock<Arc<Policies>>,
        run: &mut Run<'a>,
    ) -> Result<(), Other> {
        // Of a stranger nothing is read but who it is.
        if self.session.is_stranger() {
            return Err(Other::Talk);
        }
        let Some(wanted) = wanted(name, words) else {
            let command = KeyCommand::read(name, words).ok_or(Other::Talk)??;
            self.session.may(command.verb()).map_err(Wrong::Refused)?;
            let named = self.app.throttles().find(ANY_RATE).map_err(Wrong::Cell)?;
            let add = |shape, verb, key| {
                run.push((shape, PolicyOperation { verb, named: Arc::clone(&named), key, cost: 0 }));
            };
            return Ok(keys::plan(command, words, add).map_err(Wrong::Refused)?);
        };
        let Wanted { shape, verb, under, key, cost } = wanted?;
        self.session.may(verb).map_err(Wrong::Refused)?;
        let named = match under {
            Under::Rate(rate) => {
                let named = self.recent.find(rate, self.app.throttles());
                Arc::clone(named.map_err(|why| Wrong::rate(rate.dialect, why))?)
            }
            Under::Name { name, tier } => {
                let policies = policies.get_or_init(|| self.app.policies());
                Arc::clone(find(policies, name, tier, key).map_err(Wrong::Refused)?)
            }
            Under::Quotas(texts) => self.recent_quotas.find(&texts).map_err(Wrong::Refused)?,
        };
        run.push((shape, PolicyOperation { verb, named, key, cost }));
        Ok(())
    }

    /// Executes the collected operations in one call of the store, and writes their replies.
    async fn settle(&self, run: &mut Run<'_>, out: &mut Vec<u8>) {
        let prepared: SmallVec<[_; 1]> = run.iter().map(|(_, operation)| operation.prepared()).collect();
        let responses = self.app.execute(&prepared).await;
        let mut counts = DecisionCounts::default();
        for ((shape, _), response) in run.iter().zip(responses) {
            write(*shape, response.map_err(Rejection::from), &mut counts, out);
        }
        drop(prepared);
        run.clear();
    }

    /// Answers what is not for the store.
    fn tell(&mut self, name: &Name, words: Arguments<'_, '_>, other: &Other, out: &mut Vec<u8>) -> Next {
        match other {
            Other::Talk => {
                return self.session.answer(name, words, self.shared.passwords.as_deref(), out);
            }
            Other::Wrong(Wrong::Cell(why)) => {
                refused(RejectionKind::OutOfRange, why);
                reply::error(out, &format!("Cell error: {why}"));
            }
            Other::Wrong(Wrong::Arity(name)) => {
                refused(RejectionKind::OutOfRange, name);
                arity(out, name);
            }
            Other::Wrong(Wrong::Refused(rejection)) => {
                refused(rejection.kind, &rejection.detail);
                reply::rejection(out, rejection);
            }
        }
        Next::GoOn
    }
}

#[inline]
fn write(shape: Shape, decision: Result<Decision, Rejection>, tally: &mut DecisionCounts, out: &mut Vec<u8>) {
    if let Err(rejection) = decided::write(out, shape, decision, tally) {
        refused(rejection.kind, &rejection.detail);
        reply::rejection(out, &rejection);
    }
}

fn refused(kind: RejectionKind, why: &str) {
    debug!(?kind, why, "refused");
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}
