//! One connection: commands in, answers out, those that wait for the store together.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::counter;
use slidegate::{Decision, Store};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tracing::debug;

use super::Shared;
use super::command::{Name, Under, Wanted, Wrong, wanted};
use super::decided::{self, Shape};
use super::frame::{Arguments, Frame, Words};
use super::reply;
use super::session::{Next, Session, arity};
use super::throttle::Recent;
use super::wire::{self, Event, Wire};
use crate::app::App;
use crate::app::asked::Asked;
use crate::policies::Policies;
use crate::request::{MAX_BATCH, Refusal, RefusalKind};

/// A connection.
pub(super) struct Connection<'s, I, S> {
    wire: Wire<I>,
    words: Words,
    talk: Talk<'s, S>,
}

/// Who talks, and to whom.
struct Talk<'s, S> {
    app: &'s App<S>,
    shared: &'s Shared,
    session: Session,
    recent: Recent,
}

/// Those whose answers wait for the store.
type Run<'a> = Vec<(Shape, Asked<'a>)>;

/// What becomes of a command.
enum Fate<'a> {
    /// It is answered.
    Done,
    /// It waits for the store.
    Waits(Shape, Asked<'a>),
    /// It is not for the store.
    Other(Other),
}

/// What a command is that is not for the store.
enum Other {
    /// One of those between a client and this server.
    Talk,
    /// One that cannot be executed.
    Wrong(Wrong),
}

/// How far what was read has been answered.
struct Answered {
    next: Next,
    /// So many bytes.
    taken: usize,
    /// Whether there may be more of it.
    has_more: bool,
}

impl<'s, I: AsyncRead + AsyncWrite + Unpin, S: Store> Connection<'s, I, S> {
    pub(super) fn new(
        stream: I,
        app: &'s App<S>,
        shared: &'s Shared,
        number: u64,
        patience: Duration,
    ) -> Self {
        let session = Session::new(number, shared.passwords.as_ref());
        let talk = Talk { app, shared, session, recent: Recent::default() };
        Self { wire: Wire::new(stream, patience), words: Words::default(), talk }
    }

    pub(super) async fn run(mut self, mut stop: watch::Receiver<()>) -> io::Result<()> {
        let mut stop = pin!(stop.changed());
        let mut has_more = false;
        loop {
            let event = poll_fn(|context| self.wire.poll_exchange(has_more, stop.as_mut(), context)).await?;
            match event {
                Event::Progress => {}
                Event::End | Event::Stopped => return Ok(()),
                Event::TooSlow => {
                    refused(RefusalKind::TooSlow, "a command was begun and not ended in time");
                    return Ok(());
                }
            }
            let (bytes, output) = self.wire.sides();
            let answered = self.talk.answer(bytes, &mut self.words, output).await;
            self.wire.take(answered.taken);
            has_more = answered.has_more;
            if answered.next == Next::End {
                return poll_fn(|context| self.wire.poll_finish(context)).await.map(drop);
            }
        }
    }
}

impl<S: Store> Talk<'_, S> {
    /// Answers whatever is complete in `bytes`, in its order.
    async fn answer(&mut self, bytes: &[u8], words: &mut Words, out: &mut Vec<u8>) -> Answered {
        let policies = OnceLock::new();
        let mut run = Run::new();
        let mut answered = Answered { next: Next::GoOn, taken: 0, has_more: false };
        while answered.next == Next::GoOn {
            if wire::is_full(out) {
                answered.has_more = true;
                break;
            }
            let rest = &bytes[answered.taken..];
            match words.find(rest, self.session.is_stranger()) {
                Frame::Command(length) => {
                    let words = words.within(&rest[..length]);
                    let name = Name::of(words.word(0));
                    answered.taken += length;
                    match self.decide(&name, words, &policies, run.is_empty(), out) {
                        Fate::Done => {}
                        Fate::Waits(shape, asked) => run.push((shape, asked)),
                        Fate::Other(other) => {
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
                    refused(RefusalKind::Malformed, &why);
                    reply::error(out, &format!("ERR {why}"));
                    answered.next = Next::End;
                }
            }
            if run.len() >= MAX_BATCH {
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
        let name = Name::of(words.word(0));
        match self.decide(&name, words, policies, true, out) {
            Fate::Done => Next::GoOn,
            Fate::Waits(shape, asked) => {
                self.settle(&mut vec![(shape, asked)], out).await;
                Next::GoOn
            }
            Fate::Other(other) => self.tell(&name, words, &other, out),
        }
    }

    /// Decides and answers what can be decided at once, if it `may` be.
    #[inline]
    fn decide<'a>(
        &mut self,
        name: &Name,
        words: Arguments<'a, '_>,
        policies: &OnceLock<Arc<Policies>>,
        may: bool,
        out: &mut Vec<u8>,
    ) -> Fate<'a> {
        let Some(wanted) = wanted(name, words) else { return Fate::Other(Other::Talk) };
        if self.session.is_stranger() {
            return Fate::Other(Other::Talk);
        }
        let Wanted { shape, verb, under, key, cost } = match wanted {
            Ok(wanted) => wanted,
            Err(wrong) => return Fate::Other(Other::Wrong(wrong)),
        };
        let named = match under {
            Under::Rate(rate) => self.recent.find(rate, &self.shared.throttles).map_err(Wrong::Cell),
            Under::Name(name) => policies
                .get_or_init(|| self.app.policies())
                .find(&String::from_utf8_lossy(name), None)
                .map_err(Wrong::Refused),
        };
        let named = match named {
            Ok(named) => named,
            Err(wrong) => return Fate::Other(Other::Wrong(wrong)),
        };
        // Whoever comes behind one that waits has to wait too.
        if may && let Some(decision) = self.app.decide_at_once(verb, named, key, cost) {
            write(shape, &decision, out);
            return Fate::Done;
        }
        Fate::Waits(shape, Asked { verb, named: Arc::clone(named), key, cost })
    }

    /// Has the store decide those that wait, and answers them.
    async fn settle(&self, run: &mut Run<'_>, out: &mut Vec<u8>) {
        if run.is_empty() {
            return;
        }
        let (shapes, asked): (Vec<_>, Vec<_>) = run.drain(..).unzip();
        for (shape, decision) in shapes.iter().zip(self.app.decide_each(&asked).await) {
            write(*shape, &decision, out);
        }
    }

    /// Answers what is not for the store.
    fn tell(&mut self, name: &Name, words: Arguments<'_, '_>, other: &Other, out: &mut Vec<u8>) -> Next {
        match other {
            Other::Talk => {
                return self.session.answer(name, words, self.shared.passwords.as_ref(), out);
            }
            Other::Wrong(Wrong::Cell(why)) => {
                refused(RefusalKind::OutOfRange, why);
                reply::error(out, &format!("Cell error: {why}"));
            }
            Other::Wrong(Wrong::Arity(name)) => {
                refused(RefusalKind::OutOfRange, name);
                arity(out, name);
            }
            Other::Wrong(Wrong::Refused(refusal)) => {
                refused(refusal.kind, &refusal.detail);
                reply::refusal(out, refusal);
            }
        }
        Next::GoOn
    }
}

#[inline]
fn write(shape: Shape, decision: &Result<Decision, Refusal>, out: &mut Vec<u8>) {
    match decision {
        Ok(decision) => decided::write(out, shape, decision),
        Err(refusal) => {
            refused(refusal.kind, &refusal.detail);
            reply::refusal(out, refusal);
        }
    }
}

fn refused(kind: RefusalKind, why: &str) {
    debug!(?kind, why, "refused");
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}
