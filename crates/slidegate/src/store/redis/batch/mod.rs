//! Script calls that decide requests, and the batches that script calls are sent in.

mod response;

use redis::{Cmd, Value};
use slidegate_core::Moment;

pub(crate) use self::response::Response;
pub(super) use self::response::{CallSummary, PriorRecord, UNEXPECTED_FORMAT};

use self::response::PriorRecords;
use super::encoded_operation::EncodedOperation;
use super::failure::server_error;
use super::{RedisStore, script};
use crate::error::StoreError;
use crate::store::remote::{self, FULL_BATCH};

/// Largest number of requests in a batch: the script refers to a request by one byte.
pub(super) const MAX_BATCH_REQUESTS: usize = 255;
/// Number of leading requests of a group in which keys may repeat. Those of one key always fit into one batch.
pub(super) const GROUP_REPEAT_RANGE: usize = MAX_BATCH_REQUESTS - FULL_BATCH;

type Request = remote::Request<RedisStore>;

/// Operation of a request, its key and its way to the server.
pub(crate) struct KeyedOperation {
    /// Name of the key in Redis.
    pub(super) name: Vec<u8>,
    /// Cluster slot of the key; 0 without a cluster.
    pub(super) slot: u16,
    pub(super) encoded: EncodedOperation,
    /// Server time that the request may take, in units of an ordinary request.
    pub(super) weight: usize,
    /// Whether the script writes if the request is allowed.
    pub(super) is_spending: bool,
    /// Number of times that a server redirected the request.
    pub(super) redirects: u8,
    /// Whether the server is importing the slot, so that it serves the key only after `ASKING`.
    pub(super) is_importing: bool,
    /// Whether the request needs a script call of its own, because the keys of its slot are on two servers.
    pub(super) is_unbatched: bool,
}

/// Requests that one run of the script decides. They belong to one slot, and there is at least one.
pub(super) struct ScriptCall {
    pub(super) requests: Vec<Request>,
}

impl ScriptCall {
    pub(super) fn is_importing(&self) -> bool {
        self.requests[0].operation.is_importing
    }

    fn accepts(&self, request: &Request) -> bool {
        let (first, request) = (&self.requests[0].operation, &request.operation);
        first.is_importing == request.is_importing && !first.is_unbatched && !request.is_unbatched
    }

    /// Returns the command. The script decides at `given`, or at the server's time if that is `None`.
    pub(super) fn command(&self, given: Option<Moment>) -> Cmd {
        let mut operations: Vec<&EncodedOperation> = Vec::new();
        let places: Vec<u8> = self
            .requests
            .iter()
            .map(|request| {
                let known = operations.iter().rposition(|known| **known == request.operation.encoded);
                let place = known.unwrap_or_else(|| {
                    operations.push(&request.operation.encoded);
                    operations.len() - 1
                });
                place as u8 + 1
            })
            .collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::SHA.as_str()).arg(self.requests.len());
        for request in &self.requests {
            command.arg(request.operation.name.as_slice());
        }
        // The header stays empty if all requests share one operation, the server's time applies and no key is repeated.
        let mut header = Vec::new();
        let is_repeated = self.has_repeated_key();
        if is_repeated || given.is_some() || operations.len() > 1 {
            // The time takes the lower seven bytes. The highest byte holds the flags: 1 for a repeated key, 2 for a given
            // time, which its grain follows.
            header.extend(given.map_or(0, Moment::now_ms).to_be_bytes());
            header[0] = u8::from(is_repeated) + 2 * u8::from(given.is_some());
            header.extend(given.iter().flat_map(|given| (given.grain_ms() as u32).to_be_bytes()));
        }
        if operations.len() > 1 {
            header.extend(places);
        }
        command.arg(header);
        for operation in operations {
            command.arg(operation.bytes());
        }
        command
    }

    fn has_repeated_key(&self) -> bool {
        let mut names: Vec<&[u8]> =
            self.requests.iter().map(|request| request.operation.name.as_slice()).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }

    pub(super) fn fail(self, error: &StoreError) {
        Request::fail_all(self.requests, error);
    }

    /// Responds to the requests with the script's reply.
    pub(super) fn complete(self, reply: Vec<Value>) -> CallSummary {
        let Ok([Value::Int(now_ms), Value::BulkString(denied), prior]) = <[Value; 3]>::try_from(reply) else {
            self.fail(&StoreError::lost(UNEXPECTED_FORMAT));
            return CallSummary::default();
        };
        let now_ms = now_ms.cast_unsigned();
        let mut prior = PriorRecords::new(prior, self.requests.len());
        let mut denied = denied.into_iter().map(usize::from).peekable();
        let mut summary = CallSummary { server_ms: Some(now_ms), ..CallSummary::default() };
        for (place, request) in (1..).zip(self.requests) {
            let is_allowed = denied.next_if_eq(&place).is_none();
            let is_spent = is_allowed && request.operation.is_spending;
            request.respond(match prior.next() {
                Some(Ok(prior)) => {
                    summary.has_written |= is_spent;
                    Ok(Response { now_ms, is_allowed, prior })
                }
                Some(Err(error)) => {
                    let response = Err(server_error(&error));
                    summary.key_error = Some(error);
                    response
                }
                None => Err(StoreError::lost(UNEXPECTED_FORMAT)),
            });
        }
        summary
    }
}

/// Script calls that are sent together. Requests of one slot keep their order.
pub(super) struct Batch {
    pub(super) calls: Vec<ScriptCall>,
    pub(super) requests: usize,
    pub(super) weight: usize,
}

impl Batch {
    /// Returns whether the batch has at least `requests` requests or is full.
    pub(super) fn is_filled(&self, requests: usize) -> bool {
        self.requests >= requests || remote::Batch::is_full(self)
    }
}

impl remote::Batch for Batch {
    type Request = Request;

    fn of(request: Request) -> Self {
        let weight = request.operation.weight;
        Self { calls: vec![ScriptCall { requests: vec![request] }], requests: 1, weight }
    }

    fn add(&mut self, request: Request) {
        self.requests += 1;
        self.weight += request.operation.weight;
        // Only the last call of the slot is considered: joining an earlier one would overtake the requests in between.
        let slot = request.operation.slot;
        match self.calls.iter_mut().rfind(|call| call.requests[0].operation.slot == slot) {
            Some(call) if call.accepts(&request) => call.requests.push(request),
            _ => self.calls.push(ScriptCall { requests: vec![request] }),
        }
    }

    fn is_full(&self) -> bool {
        self.weight >= FULL_BATCH
    }

    fn has_key_of(&self, request: &Request) -> bool {
        let is_key = |other: &Request| other.operation.name == request.operation.name;
        self.calls.iter().any(|call| call.requests.iter().any(is_key))
    }

    fn has_place(&self) -> bool {
        self.requests < MAX_BATCH_REQUESTS
    }
}
