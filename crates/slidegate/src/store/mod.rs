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

/// Verb and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Verb of the operation.
    pub verb: Verb,
    /// Policy, key and cost.
    pub check: Check<'a>,
}

/// Storage of the counts, which makes the decisions.
///
/// A store executes a whole operation in one round trip, by its own time. Nothing is read first and written later, so
/// concurrent operations cannot interfere.
pub trait Store: Send + Sync {
    /// Executes one operation.
    fn execute(&self, operation: Operation<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Executes one operation, if this store never waits. Stores that may wait return `None` and do nothing; use
    /// [`execute`](Self::execute) then.
    fn execute_at_once(&self, _operation: Operation<'_>) -> Option<Result<Decision, StoreError>> {
        None
    }

    /// Executes many operations, remote stores in one round trip. Each succeeds or fails by itself. The results have the
    /// order of the operations, and operations on one key are decided in that order.
    fn execute_many(
        &self,
        operations: &[Operation<'_>],
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send;

    /// Forgets the counts and blocks of all keys under the policy's name. Returns the number of keys, if the store counts
    /// them.
    ///
    /// When the call returns, everything that was counted before it is forgotten on all nodes that share the store. Units
    /// that are counted during the call may be forgotten or not. After an error some keys may have been forgotten; the call
    /// may be repeated. It is for operators: its time may be proportional to the size of the store, in small steps with
    /// decisions in between.
    fn forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        let _ = policy;
        async { Err(StoreError::permanent("this store cannot forget the keys of a policy")) }
    }

    /// Announces that this check will be executed soon, so that a store can prefetch its data. Changes no count.
    #[inline]
    fn announce(&self, check: &Check<'_>) {
        let _ = check;
    }

    /// Returns the clock by which a caller of this store waits.
    fn clock(&self) -> &dyn Clock;

    /// Returns the present version of the invalidation feed for this key; `None` if the store has no feed. A cache takes it
    /// before a request, and drops the decision when the version is outdated.
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
