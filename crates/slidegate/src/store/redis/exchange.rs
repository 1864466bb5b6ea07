//! Gathered go out, replies come in: once, and never again for what may have been executed.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, ServerError, Value};

use super::call::{Call, Gathered, UNKNOWN_SHAPE};
use super::cluster::Cluster;
use super::endpoint::Link;
use super::failure::{Refusal, is_a_cluster, is_wrong_server, refusal, server_error};
use super::node::Shared;
use super::script;
use super::skew::Skew;
use crate::clock::wall_ms;
use crate::error::StoreError;

/// How often a script that the server has forgotten is sent again. Each time nothing was executed.
const MAX_RELOADS: usize = 3;

/// Gathered and what became of them.
pub(super) struct Exchange {
    calls: Vec<(Call, Option<Value>)>,
    pub(super) requests: usize,
    sent_ms: u64,
    /// Why the rest has no reply.
    broken: Option<StoreError>,
}

/// Who answers.
pub(super) struct Origin {
    pub(super) cluster: Weak<Cluster>,
    /// Its host, for those who say only that a slot is at another port.
    pub(super) host: String,
    /// Whether others say who is the primary, and may have named another one since.
    pub(super) is_appointed: bool,
    pub(super) skew: Arc<Skew>,
}

impl Origin {
    /// Whether whoever answered so is not the one to ask any more. A primary without its replicas may have been replaced by
    /// one of them.
    fn is_wrong(&self, error: &ServerError) -> bool {
        is_wrong_server(error) || (self.is_appointed && error.code() == "NOREPLICAS")
    }
}

/// What calls say about the server.
pub(super) enum Outcome {
    /// It answers. One that may not write does so too, as long as it is asked by those who are denied.
    Fine { has_written: bool },
    /// The connection is lost.
    Broken(StoreError),
    /// It answers, but it is not the one to ask any more.
    WrongServer(StoreError),
}

/// Sends the calls in one go and collects the replies.
pub(super) async fn exchange(
    connection: MultiplexedConnection,
    calls: Gathered,
    given_ms: Option<u64>,
    budget: Duration,
) -> Exchange {
    let requests = calls.requests;
    let calls = calls.calls.into_iter().map(|call| (call, None)).collect();
    let mut exchange = Exchange { calls, requests, sent_ms: wall_ms(), broken: None };
    let rounds = async {
        for round in 0..=MAX_RELOADS {
            if !exchange.send_round(&connection, given_ms, round > 0).await? {
                break;
            }
        }
        Ok::<_, RedisError>(())
    };
    exchange.broken = match tokio::time::timeout(budget, rounds).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(StoreError::lost(format!("redis: the reply was lost: {error}"))),
        Err(_) => Some(StoreError::lost(format!("redis: no reply within {budget:?}")).too_late()),
    };
    exchange
}

impl Exchange {
    /// Sends what has no reply yet, or only that the script is unknown. Returns whether there was anything to send.
    ///
    /// Each call is a message of its own, with an answer of its own, and the connection writes them together: what comes too
    /// late, or not at all, spoils nothing else.
    async fn send_round(
        &mut self,
        connection: &MultiplexedConnection,
        given_ms: Option<u64>,
        is_reload: bool,
    ) -> Result<bool, RedisError> {
        let is_open = |reply: &Option<Value>| reply.as_ref().is_none_or(is_unknown_script);
        let open: Vec<usize> = (0..self.calls.len()).filter(|index| is_open(&self.calls[*index].1)).collect();
        if open.is_empty() {
            return Ok(false);
        }
        let loading = is_reload.then(|| {
            // By itself, since a call that brings it along may be sent elsewhere before it is read.
            let mut load = Pipeline::new();
            load.cmd("SCRIPT").arg("LOAD").arg(script::TEXT);
            message(connection, load, None)
        });
        let sending = open.into_iter().map(|index| {
            let (call, reply) = &mut self.calls[index];
            *reply = None;
            let mut pipeline = Pipeline::new();
            if call.is_asking() {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(call.command(given_ms));
            message(connection, pipeline, Some(index))
        });
        let mut messages: Vec<Message> = loading.into_iter().chain(sending).collect();
        // If a script must not be loaded or a slot not asked for, that is what the caller has to hear.
        let (mut unloaded, mut broken) = (None, None);
        let mut take = |(index, replied): Replied| match (index, replied) {
            (_, Err(error)) => broken = Some(error),
            (None, Ok(values)) => unloaded = values.into_iter().find(is_refused),
            (Some(index), Ok(mut values)) => {
                let reply = values.pop();
                // Unless it was executed all the same.
                let is_executed = !reply.as_ref().is_some_and(is_refused);
                let unasked = values.pop().filter(|asked| is_refused(asked) && !is_executed);
                self.calls[index].1 = unasked.or(reply);
            }
        };
        match messages.pop() {
            // As it is everywhere but on a cluster.
            Some(only) if messages.is_empty() => take(only.await),
            last => {
                messages.extend(last);
                let mut under_way = in_order(messages).await;
                while let Some(replied) = under_way.next().await {
                    take(replied);
                }
            }
        }
        if let Some(unloaded) = unloaded {
            let replies = self.calls.iter_mut().filter_map(|(_, reply)| reply.as_mut());
            replies.filter(|reply| is_unknown_script(reply)).for_each(|reply| *reply = unloaded.clone());
        }
        broken.map_or(Ok(true), Err)
    }

    /// Whether the server refused nothing of it, so that more may be sent there before it is settled.
    pub(super) fn is_taken(&self) -> bool {
        self.calls.iter().all(|(_, reply)| reply.as_ref().is_some_and(is_taken))
    }

    /// Hands out the replies.
    pub(super) fn settle(self, shared: &Shared, from: &Origin) -> Outcome {
        let mut wrong = None;
        let (mut server_ms, mut has_written) = (None, false);
        for (call, reply) in self.calls {
            match reply {
                Some(Value::Array(values)) => {
                    let told = call.settle(values);
                    server_ms = told.now_ms.or(server_ms);
                    has_written |= told.has_written;
                    wrong = told.refused.filter(|error| from.is_wrong(error)).or(wrong);
                }
                Some(Value::ServerError(error)) => {
                    refuse(call, &error, from);
                    wrong = Some(error).filter(|error| from.is_wrong(error)).or(wrong);
                }
                Some(_) => call.fail(&StoreError::lost(UNKNOWN_SHAPE)),
                None => {
                    let lost = self.broken.clone();
                    call.fail(&lost.unwrap_or_else(|| StoreError::lost("redis: the reply was lost")));
                }
            }
        }
        if let (Some(server_ms), None) = (server_ms, &shared.given_time) {
            from.skew.observe(server_ms, self.sent_ms);
        }
        match (wrong, self.broken) {
            (Some(wrong), _) => Outcome::WrongServer(server_error(&wrong)),
            (None, Some(broken)) => {
                // Whoever asks next has not been sent, so nothing of it can have been counted.
                Outcome::Broken(StoreError::transient(broken.to_string()))
            }
            (None, None) => Outcome::Fine { has_written },
        }
    }
}

/// What became of a message: for which call it was, none for a script, and the replies to its commands.
type Replied = (Option<usize>, Result<Vec<Value>, RedisError>);

type Message = Pin<Box<dyn Future<Output = Replied> + Send>>;

fn message(connection: &MultiplexedConnection, pipeline: Pipeline, call: Option<usize>) -> Message {
    let mut connection = connection.clone();
    Box::pin(async move {
        let count = pipeline.len();
        (call, connection.send_packed_commands(&pipeline, 0, count).await)
    })
}

/// Hands messages to the connection one after the other; they are answered as they come.
async fn in_order(messages: Vec<Message>) -> FuturesUnordered<Message> {
    let under_way = FuturesUnordered::new();
    for mut message in messages {
        let polled = poll_fn(|context| Poll::Ready(message.as_mut().poll(context))).await;
        under_way.push(match polled {
            Poll::Ready(replied) => Box::pin(ready(replied)),
            Poll::Pending => message,
        });
    }
    under_way
}

fn is_refused(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
}

/// Whether all keys of a call were decided.
fn is_taken(reply: &Value) -> bool {
    let refuses = |part: &Value| match part {
        Value::Array(keys) => keys.iter().any(is_refused),
        other => is_refused(other),
    };
    matches!(reply, Value::Array(parts) if !parts.iter().any(refuses))
}

fn is_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if refusal(error) == Refusal::NoScript)
}

/// Passes on what a server refused as a whole: to whoever it names, or to the callers.
fn refuse(mut call: Call, error: &ServerError, from: &Origin) {
    let failed = match (refusal(error), from.cluster.upgrade()) {
        (Refusal::Elsewhere { address, is_asking }, Some(cluster)) => {
            for request in &mut call.requests {
                request.is_asking = is_asking;
            }
            return cluster.redirect(call, &address, &from.host);
        }
        (Refusal::OneByOne, Some(cluster)) => {
            for request in &mut call.requests {
                request.is_alone = true;
            }
            return cluster.resend(call);
        }
        (Refusal::Elsewhere { .. }, None) => is_a_cluster(error),
        (Refusal::Failed(failed), cluster) => {
            if let ("CLUSTERDOWN", Some(cluster)) = (error.code(), cluster) {
                cluster.refresh();
            }
            failed
        }
        (_, _) => server_error(error),
    };
    call.fail(&failed);
}

/// Asks for the time, to learn the skew before anybody asks for anything.
pub(super) async fn measure_skew(link: &mut Link, shared: &Shared, skew: &Skew) -> Result<(), StoreError> {
    let sent_ms = wall_ms();
    let (seconds, micros): (u64, u64) = link.ask(&redis::cmd("TIME"), shared.access.budget).await?;
    if shared.given_time.is_none() {
        skew.observe(seconds * 1000 + micros / 1000, sent_ms);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that may not write any more says so for each key of a call that it ran all the same.
    #[test]
    fn what_refuses_even_one_key_is_not_taken() {
        let is_taken = |text: &str| is_taken(&redis::parse_redis_value(text.as_bytes()).unwrap());
        assert!(is_taken("*3\r\n:1\r\n$0\r\n\r\n$3\r\n1,2\r\n"));
        assert!(is_taken("*3\r\n:1\r\n$0\r\n\r\n*2\r\n:1\r\n:2\r\n"));
        assert!(!is_taken("*3\r\n:1\r\n$0\r\n\r\n*2\r\n:1\r\n-READONLY no\r\n"));
        assert!(!is_taken("-MOVED 1 a:1\r\n"));
        assert!(!is_taken("$2\r\nOK\r\n"));
    }
}
