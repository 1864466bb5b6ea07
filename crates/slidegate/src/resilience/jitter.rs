//! Random delays added to the retry times of denials.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slidegate_core::{Decision, Policy};

use crate::error::StoreError;
use crate::store::StoreLayer;
use crate::store::responses::Responses;
use crate::store::{Operation, Store};

/// A store that delays the retry times of denials at random, so that clients which were denied together do not retry
/// together.
///
/// The delay is never negative, so no retry comes too early, and applies to decisions of any source. A denial without a
/// possible retry stays one. Place this layer outside of a [`DeniedCache`](super::DeniedCache), which needs the exact
/// times.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::Jitter;
/// use slidegate::{ManualClock, Policy};
/// use slidegate::store::{MemoryStore, StoreLimiter};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::builder().clock(ManualClock::at(0)).build()?;
/// let limiter = StoreLimiter::new(Jitter::new(store, Duration::from_millis(250)));
/// let policy = Policy::parse("api", ["1/1s fixed-window"])?;
///
/// assert!(limiter.check(policy.key("user:1")).await?.is_allowed());
/// let denied = limiter.check(policy.key("user:1")).await?;
/// assert!((1000..=1250).contains(&denied.retry_after_ms().unwrap()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Jitter<S> {
    store: S,
    max_ms: u64,
    by_policy: HashMap<String, u64>,
    random: Mutex<fastrand::Rng>,
}

impl<S> Jitter<S> {
    /// Wraps `store` and delays retries by up to `max`, in whole milliseconds.
    pub fn new(store: S, max: Duration) -> Self {
        let random = Mutex::new(fastrand::Rng::new());
        Self { store, max_ms: whole_ms(max), by_policy: HashMap::new(), random }
    }

    /// Sets the maximum delay of the policy called `name`. Zero disables it.
    pub fn policy(mut self, name: &str, max: Duration) -> Self {
        self.by_policy.insert(name.to_owned(), whole_ms(max));
        self
    }

    /// Seeds the random delays, so that they are reproducible.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.random = Mutex::new(fastrand::Rng::with_seed(seed));
        self
    }

    /// Returns the store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn delay_retry(&self, policy: &Policy, decision: Decision) -> Decision {
        if decision.is_allowed() {
            return decision;
        }
        // An anonymous policy, made of quotas in a request, has no name to look up.
        let own_ms = if policy.is_anonymous() { None } else { self.by_policy.get(policy.name()).copied() };
        let max_ms = own_ms.unwrap_or(self.max_ms);
        let delay_ms = self.random.lock().unwrap_or_else(PoisonError::into_inner).u64(0..=max_ms);
        decision.with_retry_delay_ms(delay_ms)
    }
}

fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl<S: Store> StoreLayer for Jitter<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let responses = self.store.execute(operations).await;
        let delayed = |(operation, response): (&Operation<'_>, Result<Decision, StoreError>)| {
            response.map(|decision| self.delay_retry(operation.check.policy, decision))
        };
        operations.iter().zip(responses).map(delayed).collect()
    }
}

impl<S: fmt::Debug> fmt::Debug for Jitter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jitter")
            .field("store", &self.store)
            .field("max_ms", &self.max_ms)
            .finish_non_exhaustive()
    }
}
