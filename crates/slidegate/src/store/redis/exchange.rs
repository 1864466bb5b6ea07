//! Calls go out, replies come in: once, and never again for what may have been executed.

use std::sync::Weak;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, ServerError, Value};

use super::call::{Call, Calls, UNKNOWN_SHAPE};
use super::cluster::Cluster;
use super::endpoint::Link;
use super::failure::{Refusal, connect_error, is_wrong_server, refusal, server_error};
use super::node::Shared;
use super::script;
use crate::clock::wall_ms;
use crate::error::StoreError;

/// How often a script that the server has forgotten is sent again. Each time nothing was executed.
const MAX_RELOADS: usize = 3;

/// Calls and what became of them.
pub(super) struct Exchange {
    calls: Vec<(Call, Option<Value>)>,
    pub(super) requests: usize,
    sent_ms: u64,
    /// Why the rest has no reply.
    broken: Option<StoreError>,
}

/// What calls say about the server.
pub(super) enum Outcome {
    Fine,
    /// The connection is lost.
    Broken(StoreError),
    /// It answers, but it is not the one to ask any more.
    WrongServer(StoreError),
}

/// Sends the calls in one go and collects the replies.
pub(super) async fn exchange(
    mut connection: MultiplexedConnection,
    calls: Calls,
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
        Err(_) => Some(StoreError::lost(format!("redis: no reply within {budget:?}"))),
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
                open.push(None);
            }
            if call.is_asking() {
                pipeline.cmd("ASKING");
                open.push(None);
            }
            pipeline.add_command(call.command(given_ms));
            open.push(Some(index));
            *reply = None;
        }
        if open.is_empty() {
            return Ok(false);
        }
        let values = connection.send_packed_commands(&pipeline, 0, open.len()).await?;
        let mut unprepared = None;
        for (index, value) in open.into_iter().zip(values) {
            match (index, value) {
                // If the script must not be loaded, that is what the caller has to hear.
                (Some(index), value) if is_unknown_script(&value) => {
                    self.calls[index].1 = Some(unprepared.clone().unwrap_or(value));
                }
                (Some(index), value) => self.calls[index].1 = Some(value),
                (None, error @ Value::ServerError(_)) => unprepared = Some(error),
                (None, _) => {}
            }
        }
        Ok(true)
    }

    /// Hands out the replies.
    pub(super) fn settle(self, shared: &Shared, cluster: &Weak<Cluster>) -> Outcome {
        let mut wrong = None;
        let mut server_ms = None;
        for (call, reply) in self.calls {
            match reply {
                Some(Value::Array(values)) => {
                    let (now_ms, refused) = call.settle(values);
                    server_ms = now_ms.or(server_ms);
                    wrong = refused.filter(is_wrong_server).or(wrong);
                }
                Some(Value::ServerError(error)) => {
                    refuse(call, &error, cluster);
                    wrong = Some(error).filter(is_wrong_server).or(wrong);
                }
                Some(_) => call.fail(&StoreError::lost(UNKNOWN_SHAPE)),
                None => {
                    let lost = self.broken.clone();
                    call.fail(&lost.unwrap_or_else(|| StoreError::lost("redis: the reply was lost")));
                }
            }
        }
        if let (Some(server_ms), None) = (server_ms, &shared.given_time) {
            shared.skew.observe(server_ms, self.sent_ms);
        }
        match (wrong, self.broken) {
            (Some(wrong), _) => Outcome::WrongServer(server_error(&wrong)),
            (None, Some(broken)) => {
                // Whoever asks next has not been sent, so nothing of it can have been counted.
                Outcome::Broken(StoreError::transient(broken.to_string()))
            }
            (None, None) => Outcome::Fine,
        }
    }
}

fn is_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if refusal(error) == Refusal::NoScript)
}

/// Passes on what a server refused as a whole: to whoever it names, or to the callers.
fn refuse(mut call: Call, error: &ServerError, cluster: &Weak<Cluster>) {
    let failed = match (refusal(error), cluster.upgrade()) {
        (Refusal::Elsewhere { address, is_asking }, Some(cluster)) => {
            for request in &mut call.requests {
                request.is_asking = is_asking;
            }
            return cluster.redirect(call, &address);
        }
        (Refusal::OneByOne, Some(cluster)) => {
            for request in &mut call.requests {
                request.is_alone = true;
            }
            return cluster.resend(call);
        }
        (Refusal::Failed(failed), _) => failed,
        (_, _) => server_error(error),
    };
    call.fail(&failed);
}

/// Asks for the time, to learn the skew before anybody asks for anything.
pub(super) async fn measure_skew(link: &mut Link, shared: &Shared) -> Result<(), StoreError> {
    let sent_ms = wall_ms();
    let question = redis::cmd("TIME");
    let asked = question.query_async::<(u64, u64)>(&mut link.connection);
    let (seconds, micros) = match tokio::time::timeout(shared.budget.max(Duration::from_secs(1)), asked).await
    {
        Ok(Ok(time)) => time,
        Ok(Err(error)) => return Err(connect_error(&link.place, &error)),
        Err(_) => {
            let message = format!("redis at {}: it lets us in and then says nothing", link.place);
            return Err(StoreError::transient(message));
        }
    };
    if shared.given_time.is_none() {
        shared.skew.observe(seconds * 1000 + micros / 1000, sent_ms);
    }
    Ok(())
}
