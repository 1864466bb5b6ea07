//! Requests, and the batches that one call of a function decides.

use std::collections::BTreeMap;
use std::fmt;

use slidegate_core::{Algorithm, Anchor, Verb};

use super::response::{BatchResult, Response, next_index};
use super::statement::UnexpectedFormat;
use crate::error::StoreError;
use crate::store::Operation;
use crate::store::remote::{MAX_COST, Reject, Responder};

// Codes of `sql/step.sql`.
const CHECK: i64 = 1;
pub(super) const SLIDING_WINDOW: i64 = 1;

/// Name of a key in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(super) [u8; 16]);

/// Formats the name as a `uuid`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Request for one decision.
#[derive(Debug)]
pub(crate) struct Request {
    pub(super) name: Name,
    pub(super) is_durable: bool,
    pub(super) verb: Verb,
    /// Operation without its key, see [`encode_operation`].
    pub(super) operation: Vec<i64>,
    pub(super) responder: Responder<Response>,
}

impl Request {
    pub(super) fn respond(self, response: Result<Response, StoreError>) {
        self.responder.send(response);
    }
}

impl Reject for Request {
    fn reject(self, error: StoreError) {
        self.respond(Err(error));
    }
}

/// Encodes an operation, without its key, for `sql/step.sql`.
pub(super) fn encode_operation(operation: &Operation<'_>) -> Vec<i64> {
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
    let mut numbers = vec![verb, cost.cast_signed(), i64::from(next_index(quotas.len())) - 1];
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

/// Requests that one transaction decides, by key. Requests of one key keep their order.
#[derive(Debug)]
pub(super) struct Batch {
    by_name: BTreeMap<Name, Vec<Request>>,
    pub(super) requests: usize,
}

/// Arguments of `sql/decide_uniform.sql`, which decides a batch of equal checks by one sliding window.
#[derive(Debug)]
pub(super) struct UniformBatch {
    /// Number of checks of each key.
    pub(super) counts: Vec<i32>,
    pub(super) cost: i64,
    pub(super) limit: i64,
    pub(super) window_ms: i64,
}

/// Arguments of `sql/decide.sql`.
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

    pub(super) fn has_key(&self, name: Name) -> bool {
        self.by_name.contains_key(&name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.by_name.keys().copied()
    }

    /// Returns whether the batch consists of peeks, which lock nothing.
    pub(super) fn is_peek(&self) -> bool {
        self.by_name.values().flatten().all(|request| request.verb == Verb::Peek)
    }

    pub(super) fn is_durable(&self) -> bool {
        self.by_name.values().flatten().any(|request| request.is_durable)
    }

    pub(super) fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::default();
        let mut operations: Vec<&[i64]> = Vec::new();
        for (name, requests) in &self.by_name {
            arguments.names.push(*name);
            arguments.from_op.push(next_index(arguments.which.len()));
            for request in requests {
                let known = operations.iter().rposition(|known| **known == request.operation);
                let known = known.unwrap_or_else(|| {
                    operations.push(&request.operation);
                    arguments.op_at.push(next_index(arguments.ops.len()));
                    arguments.ops.extend_from_slice(&request.operation);
                    operations.len() - 1
                });
                arguments.which.push(next_index(known));
            }
        }
        arguments.from_op.push(next_index(arguments.which.len()));
        arguments
    }

    /// Splits the batch into one batch per key.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        self.by_name.into_iter().map(|(name, requests)| Self {
            requests: requests.len(),
            by_name: BTreeMap::from([(name, requests)]),
        })
    }

    pub(super) fn fail(self, error: &StoreError) {
        for request in self.by_name.into_values().flatten() {
            request.respond(Err(error.clone()));
        }
    }

    /// Returns the arguments of `sql/decide_uniform.sql`; `None` if it cannot decide this batch.
    pub(super) fn uniform(&self) -> Option<UniformBatch> {
        let mut requests = self.by_name.values().flatten();
        let first = &requests.next()?.operation;
        let [CHECK, cost, 1, SLIDING_WINDOW, limit, window_ms, _, 0] = *first.as_slice() else {
            return None;
        };
        let is_uniform = cost > 0 && requests.all(|request| request.operation == *first);
        is_uniform.then(|| {
            let counts = self.by_name.values().map(|requests| next_index(requests.len()) - 1).collect();
            UniformBatch { counts, cost, limit, window_ms }
        })
    }

    /// Responds to the requests with the function's result.
    pub(super) fn complete(self, result: Result<BatchResult, UnexpectedFormat>) {
        let responded = match result {
            Ok(result) => self.respond(result),
            Err(UnexpectedFormat) => Err(self),
        };
        if let Err(rest) = responded {
            rest.fail(&StoreError::from(UnexpectedFormat).perhaps_counted());
        }
    }

    /// Responds to the requests; returns the requests without a result as an error.
    fn respond(mut self, result: BatchResult) -> Result<(), Self> {
        let names: Vec<Name> = self.names().collect();
        let (mut allowed, mut sizes) = (result.allowed.into_iter(), result.sizes.into_iter());
        let mut prior = result.prior.as_slice();
        for key in result.visited {
            let name = usize::try_from(key - 1).ok().and_then(|key| names.get(key));
            let Some(requests) = name.and_then(|name| self.by_name.remove(name)) else { return Err(self) };
            for request in requests {
                let (Some(is_allowed), Some(size)) = (allowed.next(), sizes.next()) else { return Err(self) };
                let size = usize::try_from(size).unwrap_or(0);
                let (own, rest) = prior.split_at_checked(size).unwrap_or((&[], &[]));
                prior = rest;
                request.respond(match is_allowed {
                    Some(is_allowed) => {
                        Ok(Response { now_ms: result.now_ms, is_allowed, prior: own.to_vec() })
                    }
                    None => Err(StoreError::full("postgres: a sliding log holds no more than 32768 entries")),
                });
            }
        }
        if self.by_name.is_empty() { Ok(()) } else { Err(self) }
    }
}
