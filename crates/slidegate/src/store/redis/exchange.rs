//! Gathered go out, replies come in: once, and never again for what may have been executed.

use std::sync::{Arc, Weak};
use std::time::Duration;

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
    mut connection: MultiplexedConnection,
    calls: Gathered,
    given_ms: Option<u64>,
    budget: Duration,
) -> Exchange {
    let requests = calls.requests;
    let calls = calls.calls.into_iter().map(|call| (call, None)).collect();
    let mut exchange = Exchange { calls, requests, sent_ms: wall_ms(), broken: None };
    let rounds = async {
        for round in 0..=MAX_RELOADS {
            if !exchange.send_round(&mut connection, given_ms, round > 0).await? {
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
    async fn send_round(
        &mut self,
        connection: &mut MultiplexedConnection,
        given_ms: Option<u64>,
        is_reload: bool,
    ) -> Result<bool, RedisError> {
        let mut pipeline = Pipeline::new();
        let mut open = Vec::new();
        for (index, (call, reply)) in self.calls.iter_mut().enumerate() {
            if reply.as_ref().is_some_and(|reply| !is_unknown_script(reply)) {
                continue;
            }
            if open.is_empty() && is_reload {
                // By itself, since a call that brings it along may be sent elsewhere before it is read.
                pipeline.cmd("SCRIPT").arg("LOAD").arg(script::TEXT);
                open.push(Sent::Script);
            }
            if call.is_asking() {
                pipeline.cmd("ASKING");
                open.push(Sent::Asking);
            }
            pipeline.add_command(call.command(given_ms));
            open.push(Sent::Call(index));
            *reply = None;
        }
        if open.is_empty() {
            return Ok(false);
        }
        let values = connection.send_packed_commands(&pipeline, 0, open.len()).await?;
        // If a script must not be loaded or a slot not asked for, that is what the caller has to hear.
        let (mut unloaded, mut unasked) = (None, None);
        for (sent, value) in open.into_iter().zip(values) {
            match sent {
                Sent::Script => unloaded = Some(value).filter(is_refused),
                Sent::Asking => unasked = Some(value).filter(is_refused),
                Sent::Call(index) => {
                    let unloaded = unloaded.clone().filter(|_| is_unknown_script(&value));
                    // Unless it was executed all the same.
                    let unasked = unasked.take().filter(|_| is_refused(&value));
                    self.calls[index].1 = Some(unasked.or(unloaded).unwrap_or(value));
                }
            }
        }
        Ok(true)
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

/// One command of a pipeline.
enum Sent {
    Script,
    Asking,
    Call(usize),
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
