//! Exchange of one batch: sends its script calls and collects the replies. A call that may have been executed is never
//! sent again.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, ServerError, Value};
use slidegate_core::Moment;

use super::batch::{Batch, ScriptCall, UNEXPECTED_FORMAT};
use super::cluster::Cluster;
use super::connector::Link;
use super::failure::{Rejection, cluster_error, is_not_serving, rejection, server_error};
use super::script;
use super::shared::Shared;
use super::skew::Skew;
use crate::clock::wall_ms;
use crate::error::StoreError;

/// Number of times that a script is loaded again. Nothing was executed each time.
const MAX_RELOADS: usize = 3;

/// Batch and its replies.
pub(super) struct Exchange {
    calls: Vec<(ScriptCall, Option<Value>)>,
    pub(super) requests: usize,
    sent_ms: u64,
    /// Error of the calls without a reply.
    failure: Option<StoreError>,
}

/// Server at the other end of a connection.
pub(super) struct Peer {
    pub(super) cluster: Weak<Cluster>,
    /// Host of the server, for redirects that name only a port.
    pub(super) host: String,
    /// Whether sentinels name the primary, and may have named another one since.
    pub(super) is_named_by_sentinel: bool,
    pub(super) skew: Arc<Skew>,
}

impl Peer {
    /// Returns whether the error shows that requests have to go to another server. A primary without replicas may have
    /// been replaced by one of them.
    fn is_wrong_server(&self, error: &ServerError) -> bool {
        is_not_serving(error) || (self.is_named_by_sentinel && error.code() == "NOREPLICAS")
    }
}

/// State of the connection and the server after a batch.
pub(super) enum Outcome {
    /// The server replied. Without a write this does not prove that it is the primary: a replica also replies to denied
    /// requests.
    Served { has_written: bool },
    /// The connection failed.
    Broken(StoreError),
    /// The server replied, but requests have to go to another one.
    WrongServer(StoreError),
}

/// Sends the calls of a batch together and collects the replies.
pub(super) async fn exchange(
    connection: MultiplexedConnection,
    batch: Batch,
    given: Option<Moment>,
    budget: Duration,
) -> Exchange {
    let requests = batch.requests;
    let calls = batch.calls.into_iter().map(|call| (call, None)).collect();
    let mut exchange = Exchange { calls, requests, sent_ms: wall_ms(), failure: None };
    let rounds = async {
        for round in 0..=MAX_RELOADS {
            if !exchange.send_round(&connection, given, round > 0).await? {
                break;
            }
        }
        Ok::<_, RedisError>(())
    };
    exchange.failure = match tokio::time::timeout(budget, rounds).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(StoreError::lost(format!("redis: the reply was lost: {error}"))),
        Err(_) => Some(StoreError::lost(format!("redis: no reply within {budget:?}")).too_late()),
    };
    exchange
}

impl Exchange {
    /// Sends the calls that have no reply, or whose reply is that the script is unknown. Returns whether there were any.
    ///
    /// Each call is a message with a reply of its own, and the connection writes all messages together: a late or missing
    /// reply affects no other call.
    async fn send_round(
        &mut self,
        connection: &MultiplexedConnection,
        given: Option<Moment>,
        is_reload: bool,
    ) -> Result<bool, RedisError> {
        let is_open = |reply: &Option<Value>| reply.as_ref().is_none_or(is_unknown_script);
        let open: Vec<usize> = (0..self.calls.len()).filter(|index| is_open(&self.calls[*index].1)).collect();
        if open.is_empty() {
            return Ok(false);
        }
        let load = is_reload.then(|| {
            // A message of its own: a call that carries the script may be redirected before the script is loaded.
            let mut pipeline = Pipeline::new();
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script::TEXT);
            message(connection, pipeline, None)
        });
        let calls = open.into_iter().map(|index| {
            let (call, reply) = &mut self.calls[index];
            *reply = None;
            let mut pipeline = Pipeline::new();
            if call.is_importing() {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(call.command(given));
            message(connection, pipeline, Some(index))
        });
        let mut messages: Vec<Message> = load.into_iter().chain(calls).collect();
        // An error of `SCRIPT LOAD` or `ASKING` explains the error of the call, and is reported in its place.
        let (mut load_error, mut connection_error) = (None, None);
        let mut take = |(index, result): Replied| match (index, result) {
            (_, Err(error)) => connection_error = Some(error),
            (None, Ok(values)) => load_error = values.into_iter().find(is_error),
            (Some(index), Ok(mut values)) => {
                let reply = values.pop();
                let is_executed = !reply.as_ref().is_some_and(is_error);
                let import_error = values.pop().filter(|value| is_error(value) && !is_executed);
                self.calls[index].1 = import_error.or(reply);
            }
        };
        match messages.pop() {
            // The usual case without a cluster.
            Some(only) if messages.is_empty() => take(only.await),
            last => {
                messages.extend(last);
                let mut in_flight = send_in_order(messages).await;
                while let Some(replied) = in_flight.next().await {
                    take(replied);
                }
            }
        }
        if let Some(load_error) = load_error {
            let replies = self.calls.iter_mut().filter_map(|(_, reply)| reply.as_mut());
            replies.filter(|reply| is_unknown_script(reply)).for_each(|reply| *reply = load_error.clone());
        }
        connection_error.map_or(Ok(true), Err)
    }

    /// Returns whether the server decided every request, so that a further batch cannot overtake any of them.
    pub(super) fn is_decided(&self) -> bool {
        self.calls.iter().all(|(_, reply)| reply.as_ref().is_some_and(is_decided))
    }

    /// Responds to the requests.
    pub(super) fn complete(self, shared: &Shared, peer: &Peer) -> Outcome {
        let mut wrong_server = None;
        let (mut server_ms, mut has_written) = (None, false);
        for (call, reply) in self.calls {
            match reply {
                Some(Value::Array(values)) => {
                    let summary = call.complete(values);
                    server_ms = summary.server_ms.or(server_ms);
                    has_written |= summary.has_written;
                    let key_error = summary.key_error.filter(|error| peer.is_wrong_server(error));
                    wrong_server = key_error.or(wrong_server);
                }
                Some(Value::ServerError(error)) => {
                    handle_rejection(call, &error, peer);
                    wrong_server = Some(error).filter(|error| peer.is_wrong_server(error)).or(wrong_server);
                }
                Some(_) => call.fail(&StoreError::lost(UNEXPECTED_FORMAT)),
                None => {
                    let failure = self.failure.clone();
                    call.fail(&failure.unwrap_or_else(|| StoreError::lost("redis: the reply was lost")));
                }
            }
        }
        if let (Some(server_ms), None) = (server_ms, &shared.settings.given_time) {
            peer.skew.observe(server_ms, self.sent_ms);
        }
        match (wrong_server, self.failure) {
            (Some(error), _) => Outcome::WrongServer(server_error(&error)),
            (None, Some(failure)) => {
                // For later requests: these were not sent, so they cannot have been counted.
                Outcome::Broken(StoreError::transient(failure.to_string()))
            }
            (None, None) => Outcome::Served { has_written },
        }
    }
}

/// Result of a message: the index of its call, or `None` for `SCRIPT LOAD`, and the replies to its commands.
type Replied = (Option<usize>, Result<Vec<Value>, RedisError>);

type Message = Pin<Box<dyn Future<Output = Replied> + Send>>;

fn message(connection: &MultiplexedConnection, pipeline: Pipeline, call: Option<usize>) -> Message {
    let mut connection = connection.clone();
    Box::pin(async move {
        let count = pipeline.len();
        (call, connection.send_packed_commands(&pipeline, 0, count).await)
    })
}

/// Passes messages to the connection in order. Their replies are awaited together.
async fn send_in_order(messages: Vec<Message>) -> FuturesUnordered<Message> {
    let in_flight = FuturesUnordered::new();
    for mut message in messages {
        let polled = poll_fn(|context| Poll::Ready(message.as_mut().poll(context))).await;
        in_flight.push(match polled {
            Poll::Ready(replied) => Box::pin(ready(replied)),
            Poll::Pending => message,
        });
    }
    in_flight
}

fn is_error(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
}

/// Returns whether a call's reply contains a decision for each of its keys.
fn is_decided(reply: &Value) -> bool {
    let has_error = |part: &Value| match part {
        Value::Array(keys) => keys.iter().any(is_error),
        other => is_error(other),
    };
    matches!(reply, Value::Array(parts) if !parts.iter().any(has_error))
}

fn is_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if rejection(error) == Rejection::NoScript)
}

/// Sends a call that the server rejected as a whole to the right server, or fails its requests.
fn handle_rejection(mut call: ScriptCall, error: &ServerError, peer: &Peer) {
    let failure = match (rejection(error), peer.cluster.upgrade()) {
        (Rejection::Redirect { address, is_importing }, Some(cluster)) => {
            for request in &mut call.requests {
                request.operation.is_importing = is_importing;
            }
            return cluster.redirect(call, &address, &peer.host);
        }
        (Rejection::Split, Some(cluster)) => {
            for request in &mut call.requests {
                request.operation.is_unbatched = true;
            }
            return cluster.resend(call);
        }
        (Rejection::Redirect { .. }, None) => cluster_error(error),
        (Rejection::Failed(failure), cluster) => {
            if let ("CLUSTERDOWN", Some(cluster)) = (error.code(), cluster) {
                cluster.refresh();
            }
            failure
        }
        (_, _) => server_error(error),
    };
    call.fail(&failure);
}

/// Measures the clock skew of a new connection.
pub(super) async fn measure_skew(link: &mut Link, shared: &Shared, skew: &Skew) -> Result<(), StoreError> {
    let sent_ms = wall_ms();
    let (seconds, micros): (u64, u64) = link.query(&redis::cmd("TIME"), shared.connector.budget).await?;
    if shared.settings.given_time.is_none() {
        skew.observe(seconds * 1000 + micros / 1000, sent_ms);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A demoted primary runs the script and returns an error for each key that it would write.
    #[test]
    fn a_reply_with_the_error_of_one_key_is_not_decided() {
        let is_decided = |text: &str| is_decided(&redis::parse_redis_value(text.as_bytes()).unwrap());
        assert!(is_decided("*3\r\n:1\r\n$0\r\n\r\n$3\r\n1,2\r\n"));
        assert!(is_decided("*3\r\n:1\r\n$0\r\n\r\n*2\r\n:1\r\n:2\r\n"));
        assert!(!is_decided("*3\r\n:1\r\n$0\r\n\r\n*2\r\n:1\r\n-READONLY no\r\n"));
        assert!(!is_decided("-MOVED 1 a:1\r\n"));
        assert!(!is_decided("$2\r\nOK\r\n"));
    }
}
