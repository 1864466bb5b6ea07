//! Stores: they execute whole decisions.

mod any;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod backoff;
pub(crate) mod invalidation;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod key_hash;
mod layer;
pub(crate) mod limiter;
pub(crate) mod memory;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod remote;
pub(crate) mod responses;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod shared_document;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod supervise;
mod timeout;
mod url;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slidegate_core::{Check, Policy, Verb};

pub use self::any::AnyStore;
pub use self::invalidation::{FeedVersion, InvalidationFeed};
#[doc(hidden)]
pub use self::layer::Optional;
pub use self::layer::StoreLayer;
pub use self::limiter::StoreLimiter;
pub use self::memory::{MemoryStore, MemoryStoreBuilder, WhenFull};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, PostgresStoreBuilder, Synchronous};
#[cfg(feature = "redis")]
pub use self::redis::{KeyStyle, RedisStore, RedisStoreBuilder};
pub use self::responses::{Responses, ResponsesIter};
#[cfg(any(feature = "redis", feature = "postgres"))]
pub use self::shared_document::{SharedDocument, SharedDocuments};
#[cfg(any(feature = "redis", feature = "postgres"))]
pub use self::url::RemoteUrl;
pub use self::url::StoreUrl;

pub use crate::clock::AnyClock;
use crate::clock::{Clock, system_clock};
use crate::error::StoreError;

/// A verb and the check that it applies to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// Verb.
    pub verb: Verb,
    /// Policy, key and cost.
    pub check: Check<'a>,
}

impl<'a> Operation<'a> {
    /// Creates an operation.
    #[inline(always)]
    pub const fn new(verb: Verb, check: Check<'a>) -> Self {
        Self { verb, check }
    }
}

/// Keeps counts and decides by them.
///
/// A store receives whole operations and returns decisions, in one round trip and by its own clock. It never reads first
/// and writes later, so there are no races. A store over another store implements [`StoreLayer`] instead.
///
/// Only [`execute`](Self::execute) is required:
///
/// ```
/// use slidegate::store::{Operation, Responses, Store, StoreLimiter};
/// use slidegate::{Decision, Policy, Source};
///
/// /// Denies the keys on a list and counts nothing.
/// struct DenyList(Vec<Vec<u8>>);
///
/// impl Store for DenyList {
///     async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
///         let decide = |operation: &Operation<'_>| {
///             let is_denied = self.0.iter().any(|key| key == operation.check.key);
///             let decide = if is_denied { Decision::denied_by } else { Decision::allowed_by };
///             Ok(decide(operation.check.policy, Source::Rule))
///         };
///         operations.iter().map(decide).collect()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = StoreLimiter::new(DenyList(vec![b"mallory".to_vec()]));
/// let policy = Policy::parse("api", ["100/1m"])?;
/// assert!(limiter.check(policy.key("user:1")).await?.is_allowed());
/// assert!(!limiter.check(policy.key("mallory")).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
pub trait Store: Send + Sync {
    /// Executes one or many operations, each separately, in one round trip where there is one. The responses have the
    /// order of the operations, and operations on one key are decided in that order.
    ///
    /// The future of an [immediate](Self::is_immediate) store is ready when it is first polled.
    fn execute(&self, operations: &[Operation<'_>]) -> impl Future<Output = Responses> + Send;

    /// Executes operations as [`execute`](Self::execute) does, and returns a late error
    /// ([`StoreError::is_late`]) for each one without a response within `budget`.
    ///
    /// The default sets a timer for the whole call. A store that limits the time of its calls by itself sets only one timer,
    /// for the shorter time.
    fn execute_within(
        &self,
        operations: &[Operation<'_>],
        budget: Duration,
    ) -> impl Future<Output = Responses> + Send {
        timeout::within(budget, operations.len(), self.execute(operations))
    }

    /// Clears the counts and blocks of all keys under the policy's name. Returns the number of keys if the store counts
    /// them.
    ///
    /// Everything that was counted before the call is cleared when it returns, on all nodes that share the store.
    /// Concurrent counts may or may not be cleared. After an error some keys may have been cleared, and the call may be
    /// repeated. The call is meant for operators: it may take time in proportion to the size of the store, in small steps
    /// that leave the store free for decisions in between.
    ///
    /// The default returns a [usage error](StoreError::is_usage): the store cannot clear a whole policy. A store over another
    /// store implements [`StoreLayer`], which forwards this.
    fn forget(&self, policy: &Policy) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send {
        let _ = policy;
        std::future::ready(Err(StoreError::usage(
            "this store cannot clear all keys of a policy; reset the keys one by one",
        )))
    }

    /// Returns the clock by which callers of this store wait. The default is the [system's](crate::SystemClock). A
    /// store over another store implements [`StoreLayer`], which forwards this.
    fn clock(&self) -> &dyn Clock {
        system_clock()
    }

    /// Returns whether [`execute`](Self::execute) never waits.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Returns the version of the invalidation feed for the key, or `None` if the store has no feed. The version changes with
    /// each refund, reset or changed limit received from any node. A version that was taken before a request shows how long
    /// its response remains valid.
    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        let _ = check;
        None
    }
}

impl<S: Store> StoreLayer for Arc<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        self
    }

    fn apply(&self, operations: &[Operation<'_>]) -> impl Future<Output = Responses> + Send {
        S::execute(self, operations)
    }

    fn apply_within(
        &self,
        operations: &[Operation<'_>],
        budget: Duration,
    ) -> impl Future<Output = Responses> + Send {
        S::execute_within(self, operations, budget)
    }
}

/// Returns the output of the future of an immediate store.
pub(crate) fn output_now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
