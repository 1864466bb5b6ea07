//! Connections: commands in, replies out. Operations of pipelined commands are executed in batches.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use slidegate::Decision;
use slidegate::store::Store;
use slidegate_config::Limits;
use slidegate_engine::{Engine, Policies, Rejection, RejectionKind, Selection};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tracing::Instrument;

use super::RespState;
use super::command::{self, StoreCommand, find_policy};
use super::decision_reply::{self, ReplyFormat};
use super::forget;
use super::frame::{Arguments, Frame, FrameParser, MAX_BYTES};
use super::grammar::{CommandError, Keyword, PolicySelector};
use super::key_reply::KeyCount;
use super::keys::{self, ANY_RATE, KeyCommand};
use super::quotas::LastQuotasPolicy;
use super::reply;
use super::session::{Session, SessionStep, write_arity_error};
use super::throttle::LastRatePolicy;
use crate::net::buffered_stream::{BufferLimits, BufferedStream, Event};
use crate::net::cork::Cork;
use crate::net::lingering_close::LingeringClose;
use crate::net::stop::Stop;
use crate::net::timer;
use crate::request_metrics::{Stopwatch, Task, record_rejection_of};
use crate::traces::{self, TraceContext};

/// Buffer sizes. The input holds several of the largest commands. The output lets clients send long pipelines before they read
/// a reply.
const BUFFERS: BufferLimits = BufferLimits { input: 4 * MAX_BYTES, output: 256 << 10 };
/// Number of commands after which a connection yields to others. Also the number of operations at which a batch is executed.
const MAX_COMMANDS_PER_PASS: usize = 1000;

/// A connection with its buffers.
pub(super) struct Connection<'s, I, S> {
    stream: BufferedStream<I>,
    parser: FrameParser,
    executor: Executor<'s, S>,
    auth_deadline: AuthDeadline,
}

/// Deadline for the authentication of a connection.
struct AuthDeadline {
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AuthDeadline {
    /// Completes at the deadline. The first call without authentication starts the timer.
    fn poll(&mut self, is_authenticated: bool, context: &mut Context<'_>) -> Poll<()> {
        if is_authenticated {
            self.timer = None;
            return Poll::Pending;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| timer(timeout));
        timer.as_mut().poll(context)
    }
}

/// Executor of a connection's commands.
struct Executor<'s, S> {
    engine: &'s Engine<S>,
    state: &'s RespState,
    session: Session,
    last_rate_policy: LastRatePolicy,
    last_quotas_policy: LastQuotasPolicy,
}

/// Operations that are executed in one call of the store. One is the usual number, because most clients wait for each reply.
type Batch<'a> = SmallVec<[(ReplyFormat, Selection<'a>); 1]>;

/// Command that adds no operation to the batch.
enum Unbatched {
    /// A command of the session, an unknown command, or any command before authentication.
    Session,
    /// A command that is not executed.
    Invalid(CommandError),
}

impl From<CommandError> for Unbatched {
    fn from(error: CommandError) -> Self {
        Self::Invalid(error)
    }
}

/// Result of a pass over the input.
struct Pass {
    next: SessionStep,
    consumed_bytes: usize,
    commands: usize,
    /// Whether the rest of the input may contain complete commands.
    has_more: bool,
}

impl<'s, I: AsyncRead + AsyncWrite + Cork + Unpin, S: Store> Connection<'s, I, S> {
    pub(super) fn new(
        stream: I,
        engine: &'s Engine<S>,
        state: &'s RespState,
        id: u64,
        limits: &Limits,
    ) -> Self {
        let executor = Executor {
            engine,
            state,
            session: Session::new(id, state.passwords.as_deref()),
            last_rate_policy: LastRatePolicy::default(),
            last_quotas_policy: LastQuotasPolicy::default(),
        };
        Self {
            stream: BufferedStream::new(stream, BUFFERS, limits.body_timeout),
            parser: FrameParser::default(),
            executor,
            auth_deadline: AuthDeadline { timeout: limits.head_timeout, timer: None },
        }
    }

    /// Reads, executes and replies until the connection ends.
    pub(super) async fn run(mut self, mut stop: Stop) -> io::Result<()> {
        let mut has_more = false;
        loop {
            let is_authenticated = self.executor.session.is_authenticated();
            let event = poll_fn(|context| match self.auth_deadline.poll(is_authenticated, context) {
                Poll::Ready(()) => Poll::Ready(Ok(Event::TimedOut)),
                Poll::Pending => self.stream.poll_exchange(has_more, &mut stop, context),
            })
            .await?;
            match event {
                Event::Progress => {}
                Event::End => return self.finish(false).await,
                Event::Stopped => return self.finish(true).await,
                Event::TimedOut => {
                    let message = if is_authenticated {
                        "timeout while a command was incomplete"
                    } else {
                        "timeout before authentication"
                    };
                    record_rejection_of(RejectionKind::TooSlow, message);
                    return Ok(());
                }
            }
            self.executor.session.revalidate(self.executor.state.passwords.as_deref());
            let (input, output) = self.stream.buffers();
            // Measures all commands of the pass together: reading the clock takes longer than some commands.
            let stopwatch = Stopwatch::start();
            let pass = self.executor.execute_all(input, &mut self.parser, output).await;
            if pass.consumed_bytes > 0 {
                Task::Resp.record(stopwatch);
            }
            self.stream.consume(pass.consumed_bytes);
            has_more = pass.has_more;
            if pass.commands >= MAX_COMMANDS_PER_PASS {
                tokio::task::yield_now().await;
            }
            let is_last_pass =
                stop.has_begun() && pass.consumed_bytes > 0 && !has_more && self.stream.is_input_empty();
            if is_last_pass {
                self.stream.stream().cork();
            }
            if pass.next != SessionStep::Continue || is_last_pass {
                return self.finish(is_last_pass || pass.next == SessionStep::LingeringClose).await;
            }
        }
    }

    /// Sends the remaining replies and closes the connection.
    async fn finish(mut self, is_lingering: bool) -> io::Result<()> {
        let mut lingering_close = is_lingering.then(LingeringClose::new);
        poll_fn(|context| self.stream.poll_finish(lingering_close.as_mut(), context)).await.map(drop)
    }
}

impl<S: Store> Executor<'_, S> {
    /// Executes the complete commands in `input` in their order.
    async fn execute_all(&mut self, input: &[u8], parser: &mut FrameParser, out: &mut Vec<u8>) -> Pass {
        let policies = OnceLock::new();
        let mut batch = Batch::new();
        let mut pass = Pass { next: SessionStep::Continue, consumed_bytes: 0, commands: 0, has_more: false };
        while pass.next == SessionStep::Continue {
            if out.len() >= BUFFERS.output || pass.commands >= MAX_COMMANDS_PER_PASS {
                pass.has_more = true;
                break;
            }
            pass.commands += 1;
            let rest = &input[pass.consumed_bytes..];
            match parser.parse(rest, self.session.is_authenticated()) {
                Frame::Command(length) => {
                    let words = parser.arguments(&rest[..length]);
                    let name = Keyword::of(words.word(0));
                    pass.consumed_bytes += length;
                    match self.add_to_batch(&name, words, &policies, &mut batch) {
                        Ok(()) => {}
                        Err(Unbatched::Session) if self.is_authenticated_forget(&name) => {
                            self.execute_batch(&mut batch, out).await;
                            forget::execute(self.engine, &self.session, words, out).await;
                        }
                        Err(unbatched) => {
                            self.execute_batch(&mut batch, out).await;
                            pass.next = self.execute_unbatched(&name, words, &unbatched, out);
                        }
                    }
                }
                Frame::Inline(length) => {
                    pass.consumed_bytes += length;
                    self.execute_batch(&mut batch, out).await;
                    pass.next = self.execute_inline(parser.inline_arguments(), &policies, out).await;
                }
                Frame::Empty(length) => pass.consumed_bytes += length,
                Frame::Incomplete => break,
                Frame::Invalid(error) => {
                    self.execute_batch(&mut batch, out).await;
                    let message = error.to_string();
                    record_rejection_of(RejectionKind::Malformed, &message);
                    reply::error(out, &format!("ERR {message}"));
                    pass.next = SessionStep::LingeringClose;
                }
            }
            // One command can add several operations.
            if batch.len() >= MAX_COMMANDS_PER_PASS {
                self.execute_batch(&mut batch, out).await;
            }
        }
        self.execute_batch(&mut batch, out).await;
        pass
    }

    /// Executes an inline command at once, because the parser overwrites its words with the next one.
    async fn execute_inline(
        &mut self,
        words: Arguments<'_, '_>,
        policies: &OnceLock<Arc<Policies>>,
        out: &mut Vec<u8>,
    ) -> SessionStep {
        let (name, mut batch) = (Keyword::of(words.word(0)), Batch::new());
        match self.add_to_batch(&name, words, policies, &mut batch) {
            Ok(()) => {
                self.execute_batch(&mut batch, out).await;
                SessionStep::Continue
            }
            Err(Unbatched::Session) if self.is_authenticated_forget(&name) => {
                forget::execute(self.engine, &self.session, words, out).await;
                SessionStep::Continue
            }
            Err(unbatched) => self.execute_unbatched(&name, words, &unbatched, out),
        }
    }

    fn is_authenticated_forget(&self, name: &Keyword) -> bool {
        forget::is_forget(name) && self.session.is_authenticated()
    }

    /// Adds the operations of a command to the batch. Adds none for invalid commands and commands that need no store.
    #[inline]
    fn add_to_batch<'a>(
        &mut self,
        name: &Keyword,
        words: Arguments<'a, '_>,
        policies: &OnceLock<Arc<Policies>>,
        batch: &mut Batch<'a>,
    ) -> Result<(), Unbatched> {
        if !self.session.is_authenticated() {
            return Err(Unbatched::Session);
        }
        let Some(command) = command::parse(name, words) else {
            let command = KeyCommand::parse(name, words).ok_or(Unbatched::Session)??;
            self.session.authorize(command.verb()).map_err(CommandError::Rejected)?;
            let policy = ANY_RATE.policy(self.engine.rates()).map_err(CommandError::RedisCell)?;
            let add = |format, verb, key| {
                batch.push((format, Selection::new(verb, Arc::clone(&policy), key, 0)));
            };
            return Ok(keys::add_operations(command, words, add).map_err(CommandError::Rejected)?);
        };
        let StoreCommand { format, verb, policy, key, cost } = command?;
        self.session.authorize(verb).map_err(CommandError::Rejected)?;
        let policy = match policy {
            PolicySelector::Rate(rate) => {
                let policy = self.last_rate_policy.find(rate, self.engine.rates());
                Arc::clone(policy.map_err(|message| CommandError::invalid_rate(rate.dialect, message))?)
            }
            PolicySelector::Configured { name, tier } => {
                let policies = policies.get_or_init(|| self.engine.policies());
                Arc::clone(find_policy(policies, name, tier, key).map_err(CommandError::Rejected)?)
            }
            PolicySelector::Quotas(quotas) => {
                self.last_quotas_policy.find(&quotas).map_err(CommandError::Rejected)?
            }
        };
        batch.push((format, Selection::new(verb, policy, key, cost)));
        Ok(())
    }

    /// Executes the batch in one call of the store, writes the replies and empties the batch.
    async fn execute_batch(&self, batch: &mut Batch<'_>, out: &mut Vec<u8>) {
        let prepared: SmallVec<[_; 1]> = batch.iter().map(|(_, operation)| operation.prepared()).collect();
        let span = traces::request_span("RESP", TraceContext::default());
        let responses = self.engine.decide(&prepared).instrument(span).await;
        let mut key_count = KeyCount::default();
        for ((format, _), response) in batch.iter().zip(responses) {
            write_reply(*format, response.map_err(Rejection::from), &mut key_count, out);
        }
        drop(prepared);
        batch.clear();
    }

    /// Executes a command of the session, or replies to an invalid command.
    fn execute_unbatched(
        &mut self,
        name: &Keyword,
        words: Arguments<'_, '_>,
        unbatched: &Unbatched,
        out: &mut Vec<u8>,
    ) -> SessionStep {
        match unbatched {
            Unbatched::Session => {
                return self.session.execute(name, words, self.state.passwords.as_deref(), out);
            }
            Unbatched::Invalid(CommandError::RedisCell(message)) => {
                record_rejection_of(RejectionKind::OutOfRange, message);
                reply::error(out, &format!("Cell error: {message}"));
            }
            Unbatched::Invalid(CommandError::Arity(name)) => {
                record_rejection_of(RejectionKind::OutOfRange, name);
                write_arity_error(out, name);
            }
            Unbatched::Invalid(CommandError::Rejected(rejection)) => {
                record_rejection_of(rejection.kind, &rejection.detail);
                reply::rejection(out, rejection);
            }
        }
        SessionStep::Continue
    }
}

#[inline]
fn write_reply(
    format: ReplyFormat,
    decision: Result<Decision, Rejection>,
    key_count: &mut KeyCount,
    out: &mut Vec<u8>,
) {
    if let Err(rejection) = decision_reply::write(out, format, decision, key_count) {
        record_rejection_of(rejection.kind, &rejection.detail);
        reply::rejection(out, &rejection);
    }
}
