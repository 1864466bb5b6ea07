//! A key that is denied need not be asked about again until that ends.

mod count;
mod denial;
mod settings;
mod table;
mod undoing;

use std::collections::HashSet;
use std::fmt;

use slidegate_core::{Decision, Policy, Verb};

pub use settings::{CacheSettingsError, DeniedCacheBuilder};

use self::count::Why;
use self::denial::{Ages, Denial, Trip};
use self::settings::Remembered;
use self::table::{Epoch, Found, Identity, Table};
use self::undoing::{Forgetting, Undoing, undone_by};
use crate::clock::{Clock, PreciseClock};
use crate::error::StoreError;
use crate::store::invalidation::FeedVersion;
use crate::store::{Operation, Store};

/// A store that remembers denials, so that whoever hammers a limit does not hammer the store behind it.
///
/// **Lossless.** Nobody is denied by it whom the store would not have denied, given that the store's clock is true to
/// the millisecond, as those of Redis and PostgreSQL are; over a coarse one (a [`MemoryStore`](crate::MemoryStore) on the
/// [`SystemClock`](crate::SystemClock)) a denial may end a tick late. An answer from memory has
/// [`Source::Cache`](crate::Source::Cache); what it says is counted and left is as of the denial, and its waits go on.
/// A request that costs more than the one that was denied is told the same wait, which may be too short for it.
///
/// **Never old.** A refund, a reset or a forget by way of this cache counts at once, other quotas of the policy as well. What other
/// nodes give back counts within a second: Redis tells it to all who listen, and PostgreSQL is asked for it five times a
/// second. Over such a store a denial is remembered for up to ten seconds; over others, on a Redis cluster, and whenever
/// nothing was heard for a while, no longer than `max_age`.
/// If the answer to a refund is lost, or not waited for, it may happen later, and is noticed like another node's.
///
/// **Bounded.** It remembers at most `capacity` denials, and neither keys nor their length.
///
/// Counters of the `metrics` facade: `slidegate_denied_cache_hits_total`, `slidegate_denied_cache_stored_total` and
/// `slidegate_denied_cache_dropped_total`, with the `reason` (`refund`, `reset`, `forget`, `limits`, or `spent`: something
/// smaller was allowed).
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::resilience::DeniedCache;
/// use slidegate::{Limiter, ManualClock, MemoryStore, Policy, Source};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::at(0);
/// let store = MemoryStore::builder().clock(clock.clone()).build()?;
/// let cache = DeniedCache::builder(store).capacity(10_000).max_age(Duration::from_millis(500)).clock(clock.clone());
/// let limiter = Limiter::new(cache.build()?);
/// let policy = Policy::parse("login", ["1/1s fixed-window"])?;
///
/// assert!(limiter.check(policy.key("10.0.0.1")).await?.is_allowed());
/// assert_eq!(limiter.check(policy.key("10.0.0.1")).await?.source(), Source::Store);
/// clock.advance(400);
/// let denied = limiter.check(policy.key("10.0.0.1")).await?;
/// assert_eq!((denied.source(), denied.retry_after_ms()), (Source::Cache, Some(600)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeniedCache<S, C = PreciseClock> {
    store: S,
    clock: C,
    table: Table,
    ages: Ages,
    remembered: Remembered,
}

impl<S> DeniedCache<S> {
    /// `store`, with a cache of the default size before it.
    pub fn new(store: S) -> Self {
        Self::builder(store).build_valid()
    }

    /// A cache before `store`, to be sized.
    pub fn builder(store: S) -> DeniedCacheBuilder<S, PreciseClock> {
        DeniedCacheBuilder::new(store, PreciseClock::default())
    }
}

impl<S, C> DeniedCache<S, C> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// How many denials it holds, those included that have ended and have not been replaced yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it holds no denial.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most denials that it will hold.
    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }
}

/// A check or a peek on its way to the store.
#[derive(Debug)]
struct Asked {
    identity: Identity,
    epoch: Epoch,
    version: Option<FeedVersion>,
    sent_ms: u64,
}

/// Who answers an operation.
#[derive(Debug)]
enum Step {
    /// The cache.
    Known(Decision),
    /// The store.
    Ask(Asked),
}

impl<S: Store, C: Clock> DeniedCache<S, C> {
    /// Who answers an operation. The store, whatever is known, if it `must_ask`.
    fn step(&self, operation: &Operation<'_>, identity: Identity, must_ask: bool) -> Step {
        let check = &operation.check;
        // A charge is counted even if it is denied.
        let must_ask = must_ask || operation.verb == Verb::Charge;
        let sent_ms = self.clock.now_ms();
        let Found { denied, epoch } = self.table.find(identity, check, sent_ms);
        match denied {
            Some(decision) if !must_ask => {
                count::hit();
                Step::Known(decision)
            }
            _ if self.remembered.includes(check.policy) => {
                Step::Ask(Asked { identity, epoch, version: self.store.feed_version(check), sent_ms })
            }
            _ => Step::Ask(Asked { identity, epoch, version: None, sent_ms }),
        }
    }

    /// Makes use of the store's answer for those who ask later.
    fn learn(&self, asked: &Asked, operation: &Operation<'_>, answer: &Result<Decision, StoreError>) {
        let Ok(decision) = answer else { return };
        let check = &operation.check;
        if !self.remembered.includes(check.policy) {
            return;
        }
        let is_check = operation.verb == Verb::Check;
        // Of a peek nothing is remembered: if the window has changed, a store counts by the new one from the next check on,
        // and until then a peek's wait begins anew each time.
        if is_check && !decision.is_allowed() {
            let trip = Trip { sent_ms: asked.sent_ms, received_ms: self.clock.now_ms() };
            if let Some(denial) = Denial::new(check, decision, trip, self.ages, asked.version.clone())
                && self.table.remember(asked.identity, asked.epoch, denial, trip.received_ms)
            {
                count::stored();
                return;
            }
        }
        let is_counted = operation.verb == Verb::Charge || (is_check && decision.is_allowed());
        let has_spent = is_counted && check.cost > 0;
        self.table.drop_for(asked.identity, |denial| {
            if denial.is_under(check.policy) { has_spent.then_some(Why::Spent) } else { Some(Why::Limits) }
        });
    }
}

impl<S: Store, C: Clock> Store for DeniedCache<S, C> {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let identity = self.table.identity(&operation.check);
        if let Some(why) = undone_by(operation.verb) {
            let _undoing = Undoing::begin(&self.table, identity, why);
            return self.store.execute(operation).await;
        }
        match self.step(&operation, identity, false) {
            Step::Known(decision) => Ok(decision),
            Step::Ask(asked) => {
                let answer = self.store.execute(operation).await;
                self.learn(&asked, &operation, &answer);
                answer
            }
        }
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        let identities: Vec<_> =
            operations.iter().map(|operation| self.table.identity(&operation.check)).collect();
        let begin = |(operation, identity): (&Operation<'_>, &Identity)| {
            Some(Undoing::begin(&self.table, *identity, undone_by(operation.verb)?))
        };
        let undoings: Vec<_> = operations.iter().zip(&identities).filter_map(begin).collect();
        // What the store is asked to do to a key first may change what it says next, and only the store knows.
        let mut asked: HashSet<_> = undoings.iter().map(Undoing::identity).collect();
        let mut rest = Vec::with_capacity(operations.len());
        let mut steps = Vec::with_capacity(operations.len());
        for (operation, identity) in operations.iter().zip(identities) {
            let step = self.step(operation, identity, asked.contains(&identity));
            if matches!(step, Step::Ask(_)) {
                asked.insert(identity);
                rest.push(*operation);
            }
            steps.push(step);
        }
        let answers = if rest.is_empty() { Vec::new() } else { self.store.execute_many(&rest).await };
        let mut answers = answers.into_iter();
        let answer = |(step, operation): (Step, &Operation<'_>)| match step {
            Step::Known(decision) => Ok(decision),
            Step::Ask(asked) => {
                let missing = || Err(StoreError::lost("the store has answered less than it was asked"));
                let answer = answers.next().unwrap_or_else(missing);
                self.learn(&asked, operation, &answer);
                answer
            }
        };
        steps.into_iter().zip(operations).map(answer).collect()
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        let _forgetting = Forgetting::begin(&self.table, policy);
        self.store.forget(policy).await
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }
}

impl<S: fmt::Debug, C> fmt::Debug for DeniedCache<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedCache")
            .field("store", &self.store)
            .field("capacity", &self.capacity())
            .field("ages", &self.ages)
            .finish_non_exhaustive()
    }
}
