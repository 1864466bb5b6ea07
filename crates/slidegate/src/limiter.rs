//! The limiter: what applications call.

use std::sync::Arc;
use std::time::Duration;

use slidegate_core::{Check, Decision, Policy, Verb};

use crate::bound::Bound;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::memory::MemoryStore;
use crate::store::{Operation, Store};

/// Decides whether requests may proceed, over any [`Store`].
///
/// Share one by reference or in an `Arc`; all methods take `&self`.
#[derive(Debug)]
pub struct Limiter<S> {
    store: S,
}

impl<S: Store> Limiter<S> {
    /// A limiter over `store`.
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Spends the cost if every quota of the policy allows it, else nothing.
    pub async fn check(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Check, check }).await
    }

    /// Checks many at once, each for itself, in one round trip where there is one.
    pub async fn check_many(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, StoreError>> {
        let operations: Vec<_> =
            checks.iter().map(|check| Operation { verb: Verb::Check, check: *check }).collect();
        self.store.execute_many(&operations).await
    }

    /// Says what [`check`](Self::check) would say, and spends nothing.
    pub async fn peek(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Peek, check }).await
    }

    /// Counts the cost in full, beyond the limit too, because it has happened: tokens of an answer, bytes of an upload. The
    /// decision is allowed if no limit is exceeded afterwards. What exceeds a limit ages like anything else that is counted.
    pub async fn charge(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Charge, check }).await
    }

    /// Denies the key under the policy for `span`, at most 366 days, whatever it has spent. Another call takes the
    /// place of this one, a span of zero ends the block, and so does a reset.
    pub async fn block(&self, check: Check<'_>, span: Duration) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Block, check: blocking(check, span) }).await
    }

    /// Gives back up to the cost: never more than is counted. For what was spent within the current window; a store
    /// cannot know whether older units are still among those it counts.
    pub async fn refund(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Refund, check }).await
    }

    /// Forgets what the key has spent under the policy, and whether it is blocked.
    /// [`Decision::is_found`] says whether there was something to forget.
    pub async fn reset(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute(Operation { verb: Verb::Reset, check }).await
    }

    /// Forgets what all keys have spent under the policy's name, for all nodes that share the store. Returns the number of
    /// keys, where the store counts them; see [`Store::forget`].
    pub async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.store.forget(policy).await
    }

    /// Waits until the check is allowed, but no longer than `patience`.
    ///
    /// Returns the denial at once, without waiting in vain, if the wait that it names is longer than what is left
    /// of the patience, or if it can never be allowed. Waiting spends nothing; others may be faster, and then
    /// it waits again. On the system clock this needs a tokio runtime with time enabled.
    pub async fn wait(&self, check: Check<'_>, patience: Duration) -> Result<Decision, StoreError> {
        let clock = self.store.clock();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(patience_ms);
        loop {
            let decision = self.check(check).await?;
            let left_ms = end_ms.saturating_sub(clock.now_ms());
            match decision.retry_after_ms() {
                Some(wait_ms) if wait_ms <= left_ms => clock.sleep(wait_ms).await,
                _ => return Ok(decision),
            }
        }
    }
}

/// Without a store that may wait, nothing has to be awaited.
impl<C: Clock> Limiter<MemoryStore<C>> {
    /// [`check`](Self::check), at once.
    #[inline(always)]
    pub fn check_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Check, check })
    }

    /// This limiter for checks under one policy, which are a little faster then and need not name it.
    pub fn bind(self: &Arc<Self>, policy: Policy) -> Bound<C> {
        Bound::new(Arc::clone(self), policy)
    }

    /// [`check_many`](Self::check_many), at once. The keys' places in memory are fetched sixteen at a time.
    pub fn check_many_now(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, StoreError>> {
        let operations: Vec<_> =
            checks.iter().map(|check| Operation { verb: Verb::Check, check: *check }).collect();
        self.store.execute_many_now(&operations)
    }

    /// [`peek`](Self::peek), at once.
    pub fn peek_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Peek, check })
    }

    /// [`charge`](Self::charge), at once.
    pub fn charge_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Charge, check })
    }

    /// [`block`](Self::block), at once.
    pub fn block_now(&self, check: Check<'_>, span: Duration) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Block, check: blocking(check, span) })
    }

    /// [`refund`](Self::refund), at once.
    pub fn refund_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Refund, check })
    }

    /// [`forget`](Self::forget), at once. [`Bound`]s from before are only as fast as other checks from then on; bind them again.
    pub fn forget_now(&self, policy: &Policy) -> Result<(), StoreError> {
        self.store.forget_now(policy)
    }

    /// [`reset`](Self::reset), at once.
    pub fn reset_now(&self, check: Check<'_>) -> Result<Decision, StoreError> {
        self.store.execute_now(Operation { verb: Verb::Reset, check })
    }
}

/// A block, whose cost is its length in whole milliseconds. The shortest that is not zero is one.
fn blocking(check: Check<'_>, span: Duration) -> Check<'_> {
    let ms = span.as_nanos().div_ceil(1_000_000);
    check.cost(u64::try_from(ms).unwrap_or(u64::MAX))
}
