//! Requests, and the script calls that they are gathered into.

use redis::{Cmd, ServerError, Value};

use super::description::Description;
use super::failure::server_error;
use super::script;
use crate::error::StoreError;
use crate::store::remote::Reply;

pub(super) const UNKNOWN_SHAPE: &str = "redis: the script's answer has an unknown shape";

/// What the script said about one request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) now_ms: u64,
    pub(super) is_allowed: bool,
    /// What was known of the key before.
    pub(super) before: Option<Vec<u8>>,
}

/// One operation on its way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) name: Vec<u8>,
    /// The cluster's slot; the same for all if there is no cluster.
    pub(super) slot: u16,
    pub(super) description: Description,
    pub(super) reply: Reply<Answer>,
    /// How much of the server's time it may take, in that of an ordinary one.
    pub(super) weight: usize,
    /// How often a server has sent it elsewhere.
    pub(super) hops: u8,
    /// Whether the slot is on its way to the server that is asked.
    pub(super) is_asking: bool,
    /// Whether it must not share a call, because the slot's keys are on two servers.
    pub(super) is_alone: bool,
}

impl Request {
    pub(super) fn answer(self, answer: Result<Answer, StoreError>) {
        self.reply.send(answer);
    }
}

/// Requests that are decided by one run of the script.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) requests: Vec<Request>,
}

impl Call {
    pub(super) fn is_asking(&self) -> bool {
        self.requests[0].is_asking
    }

    fn admits(&self, request: &Request) -> bool {
        let first = &self.requests[0];
        first.is_asking == request.is_asking && !first.is_alone && !request.is_alone
    }

    /// The command, which decides by `given_ms` or by the server's own time.
    pub(super) fn command(&self, given_ms: Option<u64>) -> Cmd {
        let mut descriptions: Vec<&Description> = Vec::new();
        let places: Vec<u8> = self
            .requests
            .iter()
            .map(|request| {
                let known = descriptions.iter().rposition(|known| **known == request.description);
                let place = known.unwrap_or_else(|| {
                    descriptions.push(&request.description);
                    descriptions.len() - 1
                });
                place as u8 + 1
            })
            .collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::SHA.as_str()).arg(self.requests.len());
        for request in &self.requests {
            command.arg(request.name.as_slice());
        }
        let mut head = Vec::new();
        if let Some(given_ms) = given_ms {
            head.extend(given_ms.to_be_bytes());
            // A time has seven bytes, and the eighth says that there is one.
            head[0] = 0;
        }
        // With one operation for all there is nothing more to say.
        if descriptions.len() > 1 {
            head.extend(places);
        }
        command.arg(head);
        for description in descriptions {
            command.arg(description.bytes());
        }
        command
    }

    pub(super) fn fail(self, error: &StoreError) {
        for request in self.requests {
            request.answer(Err(error.clone()));
        }
    }

    /// Hands out the script's answer. Returns the server's time, and what it refused to some of the keys, if it did.
    pub(super) fn settle(self, values: Vec<Value>) -> (Option<u64>, Option<ServerError>) {
        let mut values = values.into_iter();
        let (Some(Value::Int(now_ms)), Some(Value::BulkString(flags))) = (values.next(), values.next())
        else {
            self.fail(&StoreError::lost(UNKNOWN_SHAPE));
            return (None, None);
        };
        let now_ms = now_ms.cast_unsigned();
        let mut flags = flags.into_iter().map(|flag| flag == b'1');
        let mut refused = None;
        for request in self.requests {
            match (flags.next(), values.next()) {
                (Some(is_allowed), Some(Value::BulkString(before))) => {
                    request.answer(Ok(Answer { now_ms, is_allowed, before: Some(before) }));
                }
                (Some(is_allowed), Some(Value::Nil)) => {
                    request.answer(Ok(Answer { now_ms, is_allowed, before: None }));
                }
                (_, Some(Value::ServerError(error))) => {
                    request.answer(Err(server_error(&error)));
                    refused = Some(error);
                }
                _ => request.answer(Err(StoreError::lost(UNKNOWN_SHAPE))),
            }
        }
        (Some(now_ms), refused)
    }
}

/// Requests in the order in which they came, by slot.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) calls: Vec<Call>,
    pub(super) requests: usize,
    pub(super) weight: usize,
}

impl Gathered {
    pub(super) fn add(&mut self, request: Request) {
        self.requests += 1;
        self.weight += request.weight;
        // Only the last call of its slot, or it would overtake those in between.
        match self.calls.iter_mut().rfind(|call| call.requests[0].slot == request.slot) {
            Some(call) if call.admits(&request) => call.requests.push(request),
            _ => self.calls.push(Call { requests: vec![request] }),
        }
    }
}
