//! Requests, and the script calls that they are gathered into.

use redis::{Cmd, ServerError, Value};

use super::description::Description;
use super::failure::server_error;
use super::script;
use crate::error::StoreError;
use crate::store::remote::{Refuse, Reply};

pub(super) const UNKNOWN_SHAPE: &str = "redis: the script's answer has an unknown shape";

/// What the script said about one request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) now_ms: u64,
    pub(super) is_allowed: bool,
    pub(super) before: Before,
}

/// What was known of a key before.
#[derive(Debug)]
pub(super) enum Before {
    Nothing,
    /// A record that is a number.
    Number(u64),
    /// Any other.
    Record(Vec<u8>),
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
    /// Whether it writes something if it is allowed.
    pub(super) is_spending: bool,
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

impl Refuse for Request {
    fn refuse(self, error: StoreError) {
        self.answer(Err(error));
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
        // With one operation for all, by the server's time and no key twice there is nothing more to say.
        let mut head = Vec::new();
        let is_repeated = self.has_a_key_twice();
        if is_repeated || given_ms.is_some() || descriptions.len() > 1 {
            // A time has seven bytes, and the eighth says whether there is one and whether a key is there twice.
            head.extend(given_ms.unwrap_or_default().to_be_bytes());
            head[0] = u8::from(is_repeated) + 2 * u8::from(given_ms.is_some());
        }
        if descriptions.len() > 1 {
            head.extend(places);
        }
        command.arg(head);
        for description in descriptions {
            command.arg(description.bytes());
        }
        command
    }

    fn has_a_key_twice(&self) -> bool {
        let mut names: Vec<&[u8]> = self.requests.iter().map(|request| request.name.as_slice()).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }

    pub(super) fn fail(self, error: &StoreError) {
        for request in self.requests {
            request.answer(Err(error.clone()));
        }
    }

    /// Hands out the script's answer.
    pub(super) fn settle(self, values: Vec<Value>) -> Told {
        let Ok([Value::Int(now_ms), Value::BulkString(denied), known]) = <[Value; 3]>::try_from(values)
        else {
            self.fail(&StoreError::lost(UNKNOWN_SHAPE));
            return Told::default();
        };
        let now_ms = now_ms.cast_unsigned();
        let mut known = Known::new(known, self.requests.len());
        let mut denied = denied.into_iter().map(usize::from).peekable();
        let mut told = Told { now_ms: Some(now_ms), ..Told::default() };
        for (place, request) in (1..).zip(self.requests) {
            let is_allowed = denied.next_if_eq(&place).is_none();
            let is_spent = is_allowed && request.is_spending;
            request.answer(match known.next() {
                Some(Ok(before)) => {
                    told.has_written |= is_spent;
                    Ok(Answer { now_ms, is_allowed, before })
                }
                Some(Err(error)) => {
                    let answer = Err(server_error(&error));
                    told.refused = Some(error);
                    answer
                }
                None => Err(StoreError::lost(UNKNOWN_SHAPE)),
            });
        }
        told
    }
}

/// What an answer says of the server.
#[derive(Default)]
pub(super) struct Told {
    /// Its time.
    pub(super) now_ms: Option<u64>,
    /// What it refused to some of the keys.
    pub(super) refused: Option<ServerError>,
    pub(super) has_written: bool,
}

/// What the script says was known of the keys, one after the other.
enum Known {
    /// Numbers only, with commas between them.
    Text {
        text: Vec<u8>,
        at: usize,
    },
    Parts(std::vec::IntoIter<Value>),
}

impl Known {
    fn new(value: Value, keys: usize) -> Self {
        match value {
            // One part too many, and the others would be those of somebody else.
            Value::BulkString(text) if text.split(|byte| *byte == b',').count() == keys => {
                Self::Text { text, at: 0 }
            }
            Value::Array(parts) => Self::Parts(parts.into_iter()),
            _ => Self::Parts(Vec::new().into_iter()),
        }
    }

    /// `None` if it is missing, or not what the script answers with.
    fn next(&mut self) -> Option<Result<Before, ServerError>> {
        match self {
            Self::Text { text, at } => {
                let number = text.get(*at..)?.split(|byte| *byte == b',').next()?;
                *at += number.len() + 1;
                Some(Ok(Before::read(number)))
            }
            Self::Parts(parts) => match parts.next()? {
                Value::BulkString(record) => Some(Ok(Before::read(&record))),
                Value::ServerError(error) => Some(Err(error)),
                _ => None,
            },
        }
    }
}

impl Before {
    fn read(record: &[u8]) -> Self {
        if record.is_empty() {
            return Self::Nothing;
        }
        let number = std::str::from_utf8(record).ok().and_then(|digits| digits.parse().ok());
        number.map_or_else(|| Self::Record(record.to_vec()), Self::Number)
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
    pub(super) fn has_key(&self, name: &[u8]) -> bool {
        self.calls.iter().any(|call| call.requests.iter().any(|request| request.name == name))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(known: Value, keys: usize) -> Vec<Option<u64>> {
        let mut known = Known::new(known, keys);
        let number = |part| match part {
            Some(Ok(Before::Number(number))) => Some(number),
            Some(Ok(Before::Nothing)) => Some(0),
            _ => None,
        };
        (0..keys).map(|_| number(known.next())).collect()
    }

    #[test]
    fn numbers_come_as_one_text_or_as_parts() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(numbers(text("12,,7"), 3), [Some(12), Some(0), Some(7)]);
        assert_eq!(numbers(text(""), 1), [Some(0)]);
        let parts = Value::Array(vec![text("12"), text(""), text("\u{1}")]);
        assert_eq!(numbers(parts, 4), [Some(12), Some(0), None, None]);
    }

    #[test]
    fn a_text_of_another_length_is_nobodys() {
        let text = Value::BulkString(b"12,1,7".to_vec());
        assert_eq!(numbers(text, 2), [None, None]);
    }
}
