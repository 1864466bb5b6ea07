//! The limiter: one policy with optional tiers, over any store.

mod builder;
mod fast_path;
mod now;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use slidegate_core::{Decision, Policy, Quota, Verb};

pub use self::builder::LimiterBuilder;
pub(crate) use self::fast_path::FastPath;
use crate::error::{BuildError, StoreError};
use crate::request::Request;
use crate::stack::StoreStack;
use crate::store::limiter::{block_cost, wait_until_allowed};
use crate::store::{Operation, Store};

/// Decides requests under one policy, in memory or over a store that many processes share. Cheap to clone.
///
/// ```
/// use slidegate::Limiter;
///
/// let api = Limiter::in_memory("api", ["10/1s", "1000/1h"])?;
/// let decision = api.check_now("user:1")?;
/// if let Some(wait) = decision.retry_after() {
///     println!("denied, retry in {wait:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The same type over Redis, Valkey or PostgreSQL:
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slidegate::Limiter;
///
/// let api = Limiter::connect("redis://127.0.0.1", "api", ["10/1s", "1000/1h"]).await?;
/// let decision = api.check("user:1").await?;
/// # Ok(())
/// # }
/// ```
///
/// Each verb takes a [`Request`]: a key alone, or a key with a cost and a tier. The verbs with the suffix `_now` never wait;
/// they need a store in memory. An unknown tier is an error that names the known ones. Both mistakes are errors with
/// [`StoreError::is_usage`].
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<StoreStack>,
    default: LimiterTier,
    tiers: foldhash::HashMap<Box<str>, LimiterTier>,
}

/// The quotas of a tier, or those of the policy.
struct LimiterTier {
    policy: Policy,
    fast: Option<FastPath>,
}

impl LimiterTier {
    fn new(policy: Policy, store: &StoreStack) -> Self {
        let fast = FastPath::new(&policy, store);
        Self { policy, fast }
    }
}

impl Limiter {
    /// Creates a limiter that counts in the memory of this process.
    pub fn in_memory<Q>(name: &str, quotas: impl IntoIterator<Item = Q>) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota, Error: Into<slidegate_core::QuotaError>>,
    {
        Self::builder(name).quotas(quotas).in_memory()
    }

    /// Creates a limiter over the store at `url`: `memory:`, `redis://…` and related schemes (feature `redis`), or
    /// `postgres://…` (feature `postgres`).
    ///
    /// Errors of the store reach the caller. [`builder`](Self::builder) adds layers that handle them.
    pub async fn connect<Q>(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Q>,
    ) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota, Error: Into<slidegate_core::QuotaError>>,
    {
        Self::builder(name).quotas(quotas).connect(url).await
    }

    /// Creates a limiter of `policy` over a store that other limiters use too.
    pub fn over(store: Arc<StoreStack>, policy: Policy) -> Self {
        Self::with_tiers(store, policy, [])
    }

    /// Returns a builder of a limiter of the policy called `name`.
    pub fn builder(name: &str) -> LimiterBuilder {
        LimiterBuilder::new(name)
    }

    fn with_tiers(
        store: Arc<StoreStack>,
        policy: Policy,
        tiers: impl IntoIterator<Item = (Box<str>, Policy)>,
    ) -> Self {
        let tier = |(name, policy)| (name, LimiterTier::new(policy, &store));
        let tiers = tiers.into_iter().map(tier).collect();
        let default = LimiterTier::new(policy, &store);
        Self { shared: Arc::new(Shared { store, default, tiers }) }
    }

    /// Returns the policy of requests without a tier.
    pub fn policy(&self) -> &Policy {
        &self.shared.default.policy
    }

    /// Returns the policy of a tier. It has the same name, and its counts are those of the policy.
    pub fn tier_policy(&self, tier: &str) -> Option<&Policy> {
        self.shared.tiers.get(tier).map(|tier| &tier.policy)
    }

    /// Returns the names of the quotas that denied a request of this tier, in the order of the quotas.
    ///
    /// ```
    /// use slidegate::{Limiter, Request};
    ///
    /// let api = Limiter::builder("api").quotas(["1/1s"]).tier("premium", ["9/1s", "2/1h"]).in_memory()?;
    /// let denied = api.check_now(Request::key("user:1").cost(3).tier("premium"))?;
    /// assert_eq!(api.violated_quotas(&denied, Some("premium")), ["2/1h"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn violated_quotas(&self, decision: &Decision, tier: Option<&str>) -> Vec<&str> {
        let policy = tier.map_or(Some(self.policy()), |tier| self.tier_policy(tier));
        let Some(policy) = policy else { return Vec::new() };
        let is_position = |position: &usize| *position < policy.quotas().len();
        decision.violated().filter(is_position).map(|position| policy.quota_name(position)).collect()
    }

    /// Returns the names and the policies of the tiers.
    #[cfg(feature = "tower")]
    pub(crate) fn tier_policies(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.shared.tiers.iter().map(|(name, tier)| (&**name, &tier.policy))
    }

    /// Returns the names of the tiers in alphabetical order.
    pub fn tiers(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.shared.tiers.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// Returns the store, for [other limiters](Self::over) and for its layers.
    pub fn store(&self) -> &Arc<StoreStack> {
        &self.shared.store
    }

    /// Spends the cost if all quotas allow it, else nothing.
    pub fn check<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        let request = request.into();
        async move {
            if self.shared.default.fast.is_some() {
                return self.check_now(request);
            }
            self.execute(Verb::Check, request).await
        }
    }

    /// Decides several requests separately, in their order, in one round trip if the store is remote.
    pub fn check_many<'a>(
        &'a self,
        requests: impl IntoIterator<Item: Into<Request<'a>>>,
    ) -> impl Future<Output = Vec<Result<Decision, StoreError>>> + Send {
        let operations: Vec<_> =
            requests.into_iter().map(|request| self.operation(Verb::Check, &request.into())).collect();
        async move {
            let sent: Vec<Operation<'_>> = operations.iter().flatten().copied().collect();
            let mut responses = self.shared.store.execute(&sent).await.into_iter();
            merge(operations, |_| responses.next())
        }
    }

    /// Returns the decision of [`check`](Self::check) without spending anything.
    pub fn peek<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.execute(Verb::Peek, request.into())
    }

    /// Counts the full cost, even beyond the limit, because it has already occurred: tokens of a response, bytes of an
    /// upload. The decision is allowed if no limit is exceeded afterwards.
    pub fn charge<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.execute(Verb::Charge, request.into())
    }

    /// Refunds up to the cost, and never more than is counted. Use it for units spent within the current window: a
    /// store cannot know whether it still counts older ones.
    pub fn refund<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.execute(Verb::Refund, request.into())
    }

    /// Clears the key's counts and its block. [`Decision::is_found`] reports whether there was anything to clear.
    pub fn reset<'a>(
        &self,
        request: impl Into<Request<'a>>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.execute(Verb::Reset, request.into())
    }

    /// Denies the key for `span`, at most 366 days, regardless of its counts. Another call replaces the block, a span of
    /// zero ends it, and so does a reset.
    pub fn block<'a>(
        &self,
        request: impl Into<Request<'a>>,
        span: Duration,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        self.execute(Verb::Block, request.into().cost(block_cost(span)))
    }

    /// Clears the counts and blocks of all keys under the policy's name, on all nodes that share the store. Returns the
    /// number of keys if the store counts them; see [`Store::forget`].
    pub async fn forget(&self) -> Result<Option<u64>, StoreError> {
        self.shared.store.forget(self.policy()).await
    }

    /// Waits until the request is allowed, at most `max_wait`.
    ///
    /// Returns a denial at once if its retry time exceeds the remaining wait, or if the request can never be allowed.
    /// Waiting spends nothing; if another caller is faster, it waits again. On the system clock this needs a tokio
    /// runtime with time enabled.
    pub fn wait<'a>(
        &self,
        request: impl Into<Request<'a>>,
        max_wait: Duration,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        let request = request.into();
        async move {
            let check = self.operation(Verb::Check, &request)?.check;
            wait_until_allowed(&*self.shared.store, check, max_wait).await
        }
    }

    async fn execute(&self, verb: Verb, request: Request<'_>) -> Result<Decision, StoreError> {
        let tier = self.tier(request.tier)?;
        let operation = tier.operation(verb, &request);
        match &tier.fast {
            Some(fast) => fast.memory.execute_now(operation),
            None => self.shared.store.execute(&[operation]).await.into_single(),
        }
    }

    #[inline(always)]
    fn tier(&self, name: Option<&str>) -> Result<&LimiterTier, StoreError> {
        match name {
            None => Ok(&self.shared.default),
            Some(name) => self.named_tier(name),
        }
    }

    fn named_tier(&self, name: &str) -> Result<&LimiterTier, StoreError> {
        self.shared.tiers.get(name).ok_or_else(|| self.unknown_tier(name))
    }

    /// Returns the error of a request with an unknown tier.
    #[cold]
    pub(crate) fn unknown_tier(&self, name: &str) -> StoreError {
        let known = self.tiers();
        let known = if known.is_empty() {
            "it has no tiers".to_owned()
        } else {
            format!("known: {}", known.join(", "))
        };
        let policy = self.policy().name();
        StoreError::usage(format!("the policy {policy:?} has no tier {name:?}; {known}"))
    }

    fn operation<'a>(&'a self, verb: Verb, request: &Request<'a>) -> Result<Operation<'a>, StoreError> {
        Ok(self.tier(request.tier)?.operation(verb, request))
    }
}

impl LimiterTier {
    #[inline(always)]
    fn operation<'a>(&'a self, verb: Verb, request: &Request<'a>) -> Operation<'a> {
        Operation::new(verb, self.policy.key(request.key).cost(request.cost))
    }
}

/// Replaces each operation by its response, and keeps the errors.
fn merge(
    operations: Vec<Result<Operation<'_>, StoreError>>,
    mut response: impl FnMut(Operation<'_>) -> Option<Result<Decision, StoreError>>,
) -> Vec<Result<Decision, StoreError>> {
    let missing = || Err(crate::store::responses::missing_response());
    operations.into_iter().map(|operation| response(operation?).unwrap_or_else(missing)).collect()
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Limiter");
        debug.field("policy", self.policy()).field("tiers", &self.tiers()).finish_non_exhaustive()
    }
}
