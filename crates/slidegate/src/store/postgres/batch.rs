//! Requests, gathered into one call of a function.

use std::collections::BTreeMap;
use std::fmt;

use slidegate_core::{Algorithm, Anchor, Verb};

use super::answers::{Answers, place};
use super::statement::Unreadable;
use crate::error::StoreError;
use crate::store::Operation;
use crate::store::remote::{MAX_COST, Reject, Responder};

/// As `sql/step.sql` has it.
const CHECK: i64 = 1;
pub(super) const SLIDING_WINDOW: i64 = 1;

/// What a key is called in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(super) [u8; 16]);

/// As PostgreSQL reads a `uuid`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What was said about one request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) now_ms: u64,
    pub(super) is_allowed: bool,
    /// What was known of the key before; nothing if it is new.
    pub(super) before: Vec<i64>,
}

/// One operation on its way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) name: Name,
    pub(super) is_durable: bool,
    pub(super) verb: Verb,
    /// Everything but the key, as the functions read it.
    pub(super) description: Vec<i64>,
    pub(super) reply: Responder<Answer>,
}

impl Request {
    pub(super) fn answer(self, answer: Result<Answer, StoreError>) {
        self.reply.send(answer);
    }
}

impl Reject for Request {
    fn reject(self, error: StoreError) {
        self.answer(Err(error));
    }
}

/// An operation as `sql/step.sql` reads it.
pub(super) fn describe(operation: &Operation<'_>) -> Vec<i64> {
    let quotas = operation.check.policy.quotas();
    let verb = match operation.verb {
        Verb::Check => CHECK,
        Verb::Peek => 2,
        Verb::Refund => 3,
        Verb::Reset => 4,
        Verb::Charge => 5,
        Verb::Block => 6,
    };
    let cost = operation.check.cost.min(MAX_COST);
    let mut numbers = vec![verb, cost.cast_signed(), i64::from(place(quotas.len())) - 1];
    for quota in quotas {
        let (algorithm, option) = match quota.algorithm() {
            Algorithm::SlidingWindow => (SLIDING_WINDOW, i64::from(quota.anchor() == Anchor::FirstRequest)),
            Algorithm::StrictWindow => (2, i64::from(quota.slots())),
            Algorithm::SlidingLog => (3, 0),
            Algorithm::FixedWindow => (4, i64::from(quota.anchor() == Anchor::FirstRequest)),
            Algorithm::TokenBucket => (5, 0),
        };
        let [limit, window, capacity] =
            [quota.limit(), quota.window_ms(), quota.capacity()].map(u64::cast_signed);
        numbers.extend([algorithm, limit, window, capacity, option]);
    }
    numbers
}

/// Requests by key, in the order in which they came.
#[derive(Debug)]
pub(super) struct Batch {
    by_name: BTreeMap<Name, Vec<Request>>,
    pub(super) requests: usize,
}

/// The check that all requests of a batch are.
#[derive(Debug)]
pub(super) struct Alike {
    /// How many there are for each key.
    pub(super) counts: Vec<i32>,
    pub(super) cost: i64,
    pub(super) limit: i64,
    pub(super) window_ms: i64,
}

/// The arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) names: Vec<Name>,
    pub(super) from_op: Vec<i32>,
    pub(super) which: Vec<i32>,
    pub(super) ops: Vec<i64>,
    pub(super) op_at: Vec<i32>,
}

impl Batch {
    pub(super) fn of(request: Request) -> Self {
        Self { requests: 1, by_name: BTreeMap::from([(request.name, vec![request])]) }
    }

    pub(super) fn add(&mut self, request: Request) {
        self.requests += 1;
        self.by_name.entry(request.name).or_default().push(request);
    }

    pub(super) fn has(&self, name: Name) -> bool {
        self.by_name.contains_key(&name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.by_name.keys().copied()
    }

    /// Whether nothing can be spent, so that nothing has to be locked.
    pub(super) fn is_peek(&self) -> bool {
        self.by_name.values().flatten().all(|request| request.verb == Verb::Peek)
    }

    pub(super) fn is_durable(&self) -> bool {
        self.by_name.values().flatten().any(|request| request.is_durable)
    }

    pub(super) fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::default();
        let mut descriptions: Vec<&[i64]> = Vec::new();
        for (name, requests) in &self.by_name {
            arguments.names.push(*name);
            arguments.from_op.push(place(arguments.which.len()));
            for request in requests {
                let known = descriptions.iter().rposition(|known| **known == request.description);
                let known = known.unwrap_or_else(|| {
                    descriptions.push(&request.description);
                    arguments.op_at.push(place(arguments.ops.len()));
                    arguments.ops.extend_from_slice(&request.description);
                    descriptions.len() - 1
                });
                arguments.which.push(place(known));
            }
        }
        arguments.from_op.push(place(arguments.which.len()));
        arguments
    }

    /// Each key by itself.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        self.by_name.into_iter().map(|(name, requests)| Self {
            requests: requests.len(),
            by_name: BTreeMap::from([(name, requests)]),
        })
    }

    pub(super) fn fail(self, error: &StoreError) {
        for request in self.by_name.into_values().flatten() {
            request.answer(Err(error.clone()));
        }
    }

    /// What `sql/alike.sql` has to know, if it can decide all of this.
    pub(super) fn alike(&self) -> Option<Alike> {
        let mut requests = self.by_name.values().flatten();
        let first = &requests.next()?.description;
        let [CHECK, cost, 1, SLIDING_WINDOW, limit, window_ms, _, 0] = *first.as_slice() else {
            return None;
        };
        let is_alike = cost > 0 && requests.all(|request| request.description == *first);
        is_alike.then(|| {
            let counts = self.by_name.values().map(|requests| place(requests.len()) - 1).collect();
            Alike { counts, cost, limit, window_ms }
        })
    }

    /// Hands out the answers.
    pub(super) fn settle(self, answers: Result<Answers, Unreadable>) {
        let handed_out = match answers {
            Ok(answers) => self.hand_out(answers),
            Err(Unreadable) => Err(self),
        };
        if let Err(rest) = handed_out {
            let odd = StoreError::permanent("postgres: the answer has an unknown shape").perhaps_counted();
            rest.fail(&odd);
        }
    }

    fn hand_out(mut self, answers: Answers) -> Result<(), Self> {
        let names: Vec<Name> = self.names().collect();
        let (mut allowed, mut sizes) = (answers.allowed.into_iter(), answers.sizes.into_iter());
        let mut before = answers.before.as_slice();
        for key in answers.visited {
            let name = usize::try_from(key - 1).ok().and_then(|key| names.get(key));
            let Some(requests) = name.and_then(|name| self.by_name.remove(name)) else { return Err(self) };
            for request in requests {
                let (Some(is_allowed), Some(size)) = (allowed.next(), sizes.next()) else { return Err(self) };
                let size = usize::try_from(size).unwrap_or(0);
                let (own, rest) = before.split_at_checked(size).unwrap_or((&[], &[]));
                before = rest;
                request.answer(match is_allowed {
                    Some(is_allowed) => {
                        Ok(Answer { now_ms: answers.now_ms, is_allowed, before: own.to_vec() })
                    }
                    None => Err(StoreError::full("postgres: a sliding log holds no more than 32768 entries")),
                });
            }
        }
        if self.by_name.is_empty() { Ok(()) } else { Err(self) }
    }
}
