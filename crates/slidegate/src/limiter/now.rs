//! Verbs that never wait, over a store in memory.

use std::time::Duration;

use slidegate_core::{Decision, Verb};

use super::{Limiter, merge};
use crate::error::StoreError;
use crate::request::Request;
use crate::store::limiter::block_cost;
use crate::store::memory::SlowPathResult;
use crate::store::{Operation, Responses, Store, output_now};

/// Synchronous verbs. Over a remote store they return an error with [`StoreError::is_usage`], because they would
/// have to wait.
impl Limiter {
    /// Synchronous [`check`](Self::check).
    #[inline(always)]
    pub fn check_now<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, StoreError> {
        let Request { key, cost, tier } = request.into();
        let default = &self.shared.default;
        match (tier, &default.fast) {
            (None, Some(fast)) => fast.check(&default.policy, key, cost),
            // Separate arguments, so that the fast path keeps them in registers.
            _ => self.check_slow_path(key, cost, tier).0,
        }
    }

    /// Checks a request of a tier, or over layers.
    #[inline(never)]
    fn check_slow_path(&self, key: &[u8], cost: u64, tier: Option<&str>) -> SlowPathResult {
        SlowPathResult(self.execute_now(Verb::Check, &Request { key, cost, tier }, "check"))
    }

    /// Synchronous [`check_many`](Self::check_many). Prefetches sixteen keys' memory at a time.
    pub fn check_many_now<'a>(
        &self,
        requests: impl IntoIterator<Item: Into<Request<'a>>>,
    ) -> Vec<Result<Decision, StoreError>> {
        let operations: Vec<_> =
            requests.into_iter().map(|request| self.operation(Verb::Check, &request.into())).collect();
        let sent: Vec<Operation<'_>> = operations.iter().flatten().copied().collect();
        let mut responses = match &self.shared.default.fast {
            Some(fast) => fast.memory.execute_many_now(&sent).into_iter(),
            None => {
                let all = |error: &StoreError| sent.iter().map(|_| Err(error.clone())).collect();
                let responses = self.responses_now(&sent, "check_many");
                responses
                    .map_or_else(|error| all(&error), |responses| responses.into_iter().collect::<Vec<_>>())
                    .into_iter()
            }
        };
        merge(operations, |_| responses.next())
    }

    /// Checks each key separately, in order, and passes each decision to `each`. This is the fastest call for many
    /// keys: it prefetches sixteen keys' memory at a time and allocates nothing. It reads the clock once for these
    /// sixteen keys, so `each` must be quick: a slow callback makes the time of the following decisions stale.
    ///
    /// ```
    /// # use slidegate::Limiter;
    /// let login = Limiter::in_memory("login", ["5/15m"])?;
    /// let mut denied = Vec::new();
    /// login.check_each_now(&["10.0.0.1"; 7], |key, decision| {
    ///     if decision.is_ok_and(|decision| !decision.is_allowed()) {
    ///         denied.push(*key);
    ///     }
    /// });
    /// assert_eq!(denied, ["10.0.0.1"; 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn check_each_now<'k, K: AsRef<[u8]>>(
        &self,
        keys: &'k [K],
        mut each: impl FnMut(&'k K, Result<Decision, StoreError>),
    ) {
        let tier = &self.shared.default;
        match &tier.fast {
            Some(fast) => fast.memory.check_each_bound(&tier.policy, &fast.binding, keys, 1, each),
            None => keys.iter().for_each(|key| each(key, self.check_now(key))),
        }
    }

    /// Synchronous [`peek`](Self::peek).
    pub fn peek_now<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, StoreError> {
        self.execute_now(Verb::Peek, &request.into(), "peek")
    }

    /// Synchronous [`charge`](Self::charge).
    pub fn charge_now<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, StoreError> {
        self.execute_now(Verb::Charge, &request.into(), "charge")
    }

    /// Synchronous [`refund`](Self::refund).
    pub fn refund_now<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, StoreError> {
        self.execute_now(Verb::Refund, &request.into(), "refund")
    }

    /// Synchronous [`reset`](Self::reset).
    pub fn reset_now<'a>(&self, request: impl Into<Request<'a>>) -> Result<Decision, StoreError> {
        self.execute_now(Verb::Reset, &request.into(), "reset")
    }

    /// Synchronous [`block`](Self::block).
    pub fn block_now<'a>(
        &self,
        request: impl Into<Request<'a>>,
        span: Duration,
    ) -> Result<Decision, StoreError> {
        self.execute_now(Verb::Block, &request.into().cost(block_cost(span)), "block")
    }

    /// Synchronous [`forget`](Self::forget). Later checks of this limiter are a little slower; a new limiter over the same
    /// [store](Self::store) is not.
    pub fn forget_now(&self) -> Result<Option<u64>, StoreError> {
        let store = &self.shared.store;
        let forgotten = if store.is_immediate() { output_now(store.forget(self.policy())) } else { None };
        forgotten.unwrap_or_else(|| Err(would_wait("forget")))
    }

    fn execute_now(&self, verb: Verb, request: &Request<'_>, name: &str) -> Result<Decision, StoreError> {
        let tier = self.tier(request.tier)?;
        let operation = tier.operation(verb, request);
        match &tier.fast {
            Some(fast) => fast.memory.execute_now(operation),
            None => self.responses_now(&[operation], name)?.into_single(),
        }
    }

    /// Executes operations on a store that is not directly accessible.
    fn responses_now(&self, operations: &[Operation<'_>], name: &str) -> Result<Responses, StoreError> {
        let store = &self.shared.store;
        let responses = if store.is_immediate() { output_now(store.execute(operations)) } else { None };
        responses.ok_or_else(|| would_wait(name))
    }
}

/// Returns the error of a synchronous verb over a remote store.
#[cold]
fn would_wait(verb: &str) -> StoreError {
    StoreError::usage(format!(
        "`{verb}_now` never waits and needs a store in memory; over a remote store use `{verb}(…).await`"
    ))
}
