//! Batches that one call of a function decides.

mod arguments;
mod response;

use std::collections::BTreeMap;

use slidegate_core::Verb;

pub(super) use self::arguments::UniformBatch;
pub(super) use self::response::BatchResult;
pub(crate) use self::response::Response;

use self::arguments::{Arguments, next_index};
use super::PostgresStore;
use super::encoded_operation::{CHECK, EncodedOperation, SLIDING_WINDOW};
use super::name::Name;
use super::statement::UnexpectedFormat;
use crate::error::StoreError;
use crate::store::remote::{self, FULL_BATCH};

pub(super) type Request = remote::Request<PostgresStore>;

/// Operation of a request, and its key.
pub(crate) struct KeyedOperation {
    pub(super) name: Name,
    pub(super) is_durable: bool,
    pub(super) verb: Verb,
    pub(super) encoded: EncodedOperation,
}

/// Requests that one transaction decides, by key. Requests of one key keep their order.
pub(super) struct Batch {
    by_name: BTreeMap<Name, Vec<Request>>,
    pub(super) requests: usize,
}

impl Batch {
    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.by_name.keys().copied()
    }

    /// Returns whether the batch consists of peeks, which lock nothing.
    pub(super) fn is_peek(&self) -> bool {
        self.by_name.values().flatten().all(|request| request.operation.verb.is_read_only())
    }

    pub(super) fn is_durable(&self) -> bool {
        self.by_name.values().flatten().any(|request| request.operation.is_durable)
    }

    pub(super) fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::default();
        let mut operations: Vec<&EncodedOperation> = Vec::new();
        for (name, requests) in &self.by_name {
            arguments.names.push(*name);
            arguments.from_op.push(next_index(arguments.which.len()));
            for request in requests {
                let known = operations.iter().rposition(|known| **known == request.operation.encoded);
                let known = known.unwrap_or_else(|| {
                    operations.push(&request.operation.encoded);
                    arguments.op_at.push(next_index(arguments.ops.len()));
                    arguments.ops.extend_from_slice(&request.operation.encoded.0);
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
        Request::fail_all(self.by_name.into_values().flatten(), error);
    }

    /// Returns the arguments of `sql/decide_uniform.sql`; `None` if it cannot decide this batch.
    pub(super) fn uniform(&self) -> Option<UniformBatch> {
        let mut requests = self.by_name.values().flatten();
        let first = &requests.next()?.operation.encoded;
        let [CHECK, cost, 1, SLIDING_WINDOW, limit, window_ms, _, 0] = *first.0.as_slice() else {
            return None;
        };
        let is_uniform = cost > 0 && requests.all(|request| request.operation.encoded == *first);
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

impl remote::Batch for Batch {
    type Request = Request;

    fn of(request: Request) -> Self {
        Self { requests: 1, by_name: BTreeMap::from([(request.operation.name, vec![request])]) }
    }

    fn add(&mut self, request: Request) {
        self.requests += 1;
        self.by_name.entry(request.operation.name).or_default().push(request);
    }

    fn is_full(&self) -> bool {
        self.requests >= FULL_BATCH
    }

    fn has_key_of(&self, request: &Request) -> bool {
        self.by_name.contains_key(&request.operation.name)
    }

    fn has_place(&self) -> bool {
        true
    }
}
