//! Stores: they execute whole decisions.

#[cfg(any(feature = "redis", feature = "postgres"))]
mod backoff;
pub(crate) mod invalidation;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod key_hash;
pub(crate) mod memory;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod remote;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod shared_document;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod supervise;

use std::future::Future;
use std::sync::Arc;

use slidegate_core::{Check, Decision, Policy, Verb};

use self::invalidation::FeedVersion;
use crate::clock::Clock;
use crate::error::StoreError;

/// What to do, and to whom.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What to do.
    pub verb: Verb,
    /// Under which policy, to which key, how much.
    pub check: Check<'a>,
}

/// Where counts are kept.
///
/// A store decides: it is handed a whole operation and answers with the decision, in one round trip, by its own
/// time. Nothing is read first and written later, so there is nothing to race with.
pub trait Store: Send + Sync {
    /// Executes one operation.
    fn execute(&self, operation: Operation<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Executes one operation, if this store never has to wait for anything. `None`, with nothing done, if it may have to:
    /// then there is [`execute`](Self::execute).
    fn execute_at_once(&self, _operation: Operation<'_>) -> Option<Result<Decision, StoreError>> {
        None
    }

    /// Executes many, in one round trip where there is one. Each stands for itself; the answers come in the
    /// same order, and operations on one key are decided in that order.
    fn execute_many(
        &self,
        operations: &[Operation<'_>],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send;

    /// Forgets what all keys have spent under the policy's name, and blocks of them. Returns how many keys that were, where the
    /// store counts them.
    ///
    /// Whatever was counted when the call began is forgotten when it returns, on all nodes that share the store. What is
    /// counted meanwhile may be forgotten or not. After an error some keys may have been forgotten; the call may be repeated. It is
    /// for operators: it may take a time in proportion to what the store holds, in steps that are small and leave the
    /// store free for decisions in between.
    fn forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        let _ = policy;
        async { Err(StoreError::permanent("this store cannot forget the keys of a policy")) }
    }

    /// Says that this check will be executed soon, for stores that can fetch what they need for it meanwhile. It changes
    /// nothing.
    #[inline]
    fn announce(&self, check: &Check<'_>) {
        let _ = check;
    }

    /// The clock by which a caller of this store waits.
    fn clock(&self) -> &dyn Clock;

    /// What is known now of refunds, resets and changed limits that concern this key, by whomever; `None` if the store does
    /// not hear of them. Whoever takes a mark and then asks learns from it how long the answer is worth remembering.
    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        let _ = check;
        None
    }
}

impl<S: Store> Store for Arc<S> {
    fn execute(&self, operation: Operation<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        S::execute(self, operation)
    }

    fn execute_at_once(&self, operation: Operation<'_>) -> Option<Result<Decision, StoreError>> {
        S::execute_at_once(self, operation)
    }

    fn execute_many(
        &self,
        operations: &[Operation<'_>],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send {
        S::execute_many(self, operations)
    }

    fn forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        S::forget(self, policy)
    }

    fn announce(&self, check: &Check<'_>) {
        S::announce(self, check);
    }

    fn clock(&self) -> &dyn Clock {
        S::clock(self)
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        S::feed_version(self, check)
    }
}
