//! Limiter for any policy over one store.

use std::time::Duration;

use slidegate_core::{Check, Decision, Policy, Verb};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::memory::MemoryStore;
use crate::store::{Operation, Store};

/// Decides requests under any policy, over one [`Store`].
///
/// All methods take `&self`. Share a limiter by reference or in an `Arc`.
#[derive(Debug)]
pub struct StoreLimiter<S> {
    store: S,
}

impl<S: Store> StoreLimiter<S> {
    /// Creates a limiter over `store`.
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Spends the cost if all quotas of the policy allow it, else nothing.
    pub async fn check(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.execute(Verb::Check, check).await
    }

    /// Decides several checks separately, in one round trip if the store is remote.
    pub async fn check_many(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, StoreError>> {
        let operations: Vec<_> = checks.iter().map(|check| Operation::new(Verb::Check, *check)).collect();
        self.store.execute(&operations).await.into_iter().collect()
    }

    /// Returns the decision of [`check`](Self::check) without spending anything.
    pub async fn peek(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.execute(Verb::Peek, check).await
    }

    /// Counts the full cost, even beyond the limit, because it has already occurred: tokens of a response, bytes of an
    /// upload. The decision is allowed if no limit is exceeded afterwards. Units beyond the limit expire like all
    /// others.
    pub async fn charge(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.execute(Verb::Charge, check).await
    }

    /// Denies the key under the policy for `span`, at most 366 days, regardless of its counts. Another call replaces
    /// the block, a span of zero ends it, and so does a reset.
    pub async fn block(&self, check: Check<'_>, span: Duration) -> Result<Decision, StoreError> {
        self.execute(Verb::Block, check.cost(block_cost(span))).await
    }

    /// Refunds up to the cost, and never more than is counted. Use it for units spent within the current window: a
    /// store cannot know whether it still counts older ones.
    pub async fn refund(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.execute(Verb::Refund, check).await
    }

    /// Clears the key's counts and its block under the policy. [`Decision::is_found`] reports whether there was
    /// anything to clear.
    pub async fn reset(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.execute(Verb::Reset, check).await
    }

    /// Clears the counts of all keys under the policy's name, on all nodes that share the store. Returns the number of
    /// keys if the store counts them; see [`Store::forget`].
    pub async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.store.forget(policy).await
    }

    async fn execute(&self, verb: Verb, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(&[Operation::new(verb, check)]).await.into_single()
    }

    /// Waits until the check is allowed, at most `max_wait`.
    ///
    /// Returns a denial at once if its retry time exceeds the remaining wait, or if the check can never be allowed.
    /// Waiting spends nothing; if another caller is faster, it waits again. On the system clock this needs a tokio
    /// runtime with time enabled.
    pub async fn wait(&self, check: Check<'_>, max_wait: Duration) -> Result<Decision, StoreError> {
        wait_until_allowed(&self.store, check, max_wait).await
    }
}

/// Synchronous methods: a memory store never waits.
impl<C: Clock> StoreLimiter<MemoryStore<C>> {
    /// Synchronous [`check`](Self::check).
    #[inline(always)]
    pub fn check_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Check, check))
    }

    /// Synchronous [`check_many`](Self::check_many). Prefetches sixteen keys' memory at a time.
    pub fn check_many_now(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, StoreError>> {
        let operations: Vec<_> = checks.iter().map(|check| Operation::new(Verb::Check, *check)).collect();
        self.store.execute_many_now(&operations)
    }

    /// Synchronous [`peek`](Self::peek).
    pub fn peek_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Peek, check))
    }

    /// Synchronous [`charge`](Self::charge).
    pub fn charge_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Charge, check))
    }

    /// Synchronous [`block`](Self::block).
    pub fn block_now(&self, check: Check<'_>, span: Duration) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Block, check.cost(block_cost(span))))
    }

    /// Synchronous [`refund`](Self::refund).
    pub fn refund_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Refund, check))
    }

    /// Synchronous [`forget`](Self::forget).
    pub fn forget_now(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.store.forget_now(policy)
    }

    /// Synchronous [`reset`](Self::reset).
    pub fn reset_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation::new(Verb::Reset, check))
    }
}

/// Waits until the check is allowed, at most `max_wait`.
pub(crate) async fn wait_until_allowed<S: Store>(
    store: &S,
    check: Check<'_>,
    max_wait: Duration,
) -> Result<Decision, StoreError> {
    let clock = store.clock();
    let max_wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
    let end_ms = clock.now_ms().saturating_add(max_wait_ms);
    loop {
        let decision = store.execute(&[Operation::new(Verb::Check, check)]).await.into_single()?;
        let left_ms = end_ms.saturating_sub(clock.now_ms());
        match decision.retry_after_ms() {
            Some(wait_ms) if wait_ms <= left_ms => clock.sleep(wait_ms).await,
            _ => return Ok(decision),
        }
    }
}

/// Returns the cost of a block, which is its length in milliseconds, rounded up.
pub(crate) fn block_cost(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
