//! The store that a URL names, with the layers that protect it.

#[cfg(feature = "resilience")]
mod layers;
#[cfg(not(feature = "resilience"))]
mod unprotected;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use slidegate_core::{Check, Policy};

#[cfg(feature = "resilience")]
use self::layers::{Layers, Protection};
#[cfg(not(feature = "resilience"))]
use self::unprotected::{Layers, Protection};
use crate::clock::{AnyClock, Clock};
use crate::error::{BuildError, SettingsError, StoreError};
#[cfg(feature = "resilience")]
use crate::resilience::{DeniedCache, FailureRule, Fallback, OnFailure, PolicySwitch, Switch};
use crate::store::responses::missing_response;
use crate::store::{
    AnyStore, FeedVersion, MemoryStore, MemoryStoreBuilder, Operation, Responses, Store, StoreUrl, WhenFull,
    output_now,
};

/// A store with the layers that its builder was given. Several limiters can share it in an `Arc`.
///
/// ```
/// use std::sync::Arc;
///
/// use slidegate::{Limiter, Policy, StoreStack};
///
/// let store = Arc::new(StoreStack::builder().max_keys(10_000).in_memory()?);
/// let api = Limiter::over(store.clone(), Policy::parse("api", ["10/1s"])?);
/// let login = Limiter::over(store.clone(), Policy::parse("login", ["5/15m strict-window"])?);
/// assert!(api.check_now("user:1")?.is_allowed() && login.check_now("user:1")?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoreStack {
    layers: Layers,
}

impl StoreStack {
    /// Returns a builder of a store without layers.
    pub fn builder() -> StoreStackBuilder {
        StoreStackBuilder::default()
    }

    /// Returns the store below all layers if no layer is present and the store is in memory.
    pub(crate) fn bare_memory(&self) -> Option<&std::sync::Arc<MemoryStore<AnyClock>>> {
        if self.layers.is_bare() { self.base().memory() } else { None }
    }

    /// Returns the store below all layers.
    pub fn base(&self) -> &AnyStore {
        self.layers.base()
    }
}

#[cfg(feature = "resilience")]
impl StoreStack {
    /// Returns the fallback layer if it is present.
    pub fn fallback(&self) -> Option<&Fallback<impl Store + use<>>> {
        self.layers.fallback()
    }

    /// Returns the denial cache if it is present.
    pub fn denied_cache(&self) -> Option<&DeniedCache<impl Store + use<>>> {
        self.layers.cache()
    }

    /// Returns the run-time settings of the policy called `name`; without the layer of the switches, the default settings.
    pub fn switch_of(&self, name: &str) -> PolicySwitch {
        self.switches().map(|switches| switches.of(name)).unwrap_or_default()
    }

    /// Returns the switches of the policies if the layer is present.
    pub fn switches(&self) -> Option<&Switch<impl Store + use<>>> {
        self.layers.switch()
    }
}

/// Hides the futures of the layers. Otherwise every caller's future would contain them all, and its type would soon exceed
/// the compiler's recursion limit.
impl Store for StoreStack {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        if self.layers.is_immediate() {
            return at_once(operations, self.layers.execute(operations));
        }
        // Compared to a round trip an allocation is cheap.
        let response: Boxed<'_, Responses> = Box::pin(self.layers.execute(operations));
        response.await
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        if self.layers.is_immediate() {
            return at_once(operations, self.layers.execute(operations));
        }
        let response: Boxed<'_, Responses> = Box::pin(self.layers.execute_within(operations, budget));
        response.await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        let forgotten: Boxed<'_, Result<Option<u64>, StoreError>> = Box::pin(self.layers.forget(policy));
        forgotten.await
    }

    fn clock(&self) -> &dyn Clock {
        self.layers.clock()
    }

    fn is_immediate(&self) -> bool {
        self.layers.is_immediate()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        self.layers.feed_version(check)
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Returns the responses of an immediate store, whose future is ready when it is first polled.
fn at_once(operations: &[Operation<'_>], responses: impl Future<Output = Responses>) -> Responses {
    let missing = || operations.iter().map(|_| Err(missing_response())).collect();
    output_now(responses).unwrap_or_else(missing)
}

impl fmt::Debug for StoreStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreStack").field("layers", &self.layers).finish()
    }
}

/// Builder of a [`StoreStack`]. Each option of a layer adds the layer.
#[derive(Clone, Debug)]
pub struct StoreStackBuilder {
    memory: MemoryStoreBuilder,
    clock: Option<AnyClock>,
    retries_connection: bool,
    protection: Protection,
}

impl Default for StoreStackBuilder {
    fn default() -> Self {
        Self {
            memory: MemoryStore::builder(),
            clock: None,
            retries_connection: false,
            protection: Protection::default(),
        }
    }
}

impl StoreStackBuilder {
    /// Sets the sizes of a memory store. The fallback's local store has the same sizes. The clock is a separate
    /// [setting](Self::clock).
    pub fn memory(mut self, memory: MemoryStoreBuilder) -> Self {
        self.memory = memory;
        self
    }

    /// Sets the largest number of keys of a memory store: 1 to 2^31, by default one million.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.memory = self.memory.max_keys(max_keys);
        self
    }

    /// Sets the limit of bytes of a memory store. By default 256 bytes per key, at least 64 MiB, in addition to the table.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.memory = self.memory.max_bytes(max_bytes);
        self
    }

    /// Sets the behaviour when a new key comes and a memory store is full.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.memory = self.memory.when_full(when_full);
        self
    }

    /// Sets the clock of a memory store, such as a [`ManualClock`](crate::ManualClock) in tests. Remote stores decide by the
    /// clock of their server; with one, the builder returns an error.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(AnyClock::other(clock));
        self
    }

    /// Starts without the store if it is temporarily unreachable, and connects in the background. The builder logs that. A
    /// permanent error, such as a wrong password, is still returned.
    pub fn connect_in_background(mut self) -> Self {
        self.retries_connection = true;
        self
    }

    /// Builds a store in memory.
    pub fn in_memory(self) -> Result<StoreStack, BuildError> {
        let clock = self.clock.clone().unwrap_or_default();
        let store = AnyStore::in_memory(self.memory.clone().clock(clock))?;
        self.stack(store, &StoreUrl::Memory)
    }

    /// Connects to the store at `url`: `memory:`, `redis://…` and related schemes, or `postgres://…`. Without the store's
    /// feature, the error names it.
    pub async fn connect(self, url: &str) -> Result<StoreStack, BuildError> {
        let url = url.parse()?;
        self.connect_to(&url).await
    }

    /// Connects to the store at a parsed URL.
    #[cfg_attr(
        not(any(feature = "redis", feature = "postgres")),
        expect(clippy::unused_async, reason = "only remote stores are connected to")
    )]
    pub async fn connect_to(self, url: &StoreUrl) -> Result<StoreStack, BuildError> {
        if *url == StoreUrl::Memory {
            return self.in_memory();
        }
        if self.clock.is_some() {
            let message = format!("{url} decides by the clock of its server; only memory: has a clock");
            return Err(SettingsError::new("clock", message).into());
        }
        #[cfg(any(feature = "redis", feature = "postgres"))]
        {
            let store = AnyStore::connect(
                url,
                self.memory.clone().clock(AnyClock::default()),
                self.protection.longest_budget(url.budget()),
                self.retries_connection,
            );
            self.stack(store.await?, url)
        }
        #[cfg(not(any(feature = "redis", feature = "postgres")))]
        self.in_memory()
    }

    fn stack(self, store: AnyStore, url: &StoreUrl) -> Result<StoreStack, BuildError> {
        Ok(StoreStack { layers: self.protection.push_onto(store, url.budget(), self.memory)? })
    }
}

#[cfg(feature = "resilience")]
impl StoreStackBuilder {
    /// Sets the number of nodes that share the store, 1 by default. Adds the [fallback](Fallback) to a remote store.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.protection.nodes = Some(nodes);
        self
    }

    /// Sets the handling of requests that the store does not decide. Adds the [fallback](Fallback) to a remote store.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.protection.on_failure = Some(on_failure);
        self
    }

    /// Sets the time that a call of the store may take, 20 ms by default; `budget_ms` in the URL takes precedence. Adds the
    /// [fallback](Fallback) to a remote store.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.protection.budget = Some(budget);
        self
    }

    /// Sets the failure rule of the policy called `name`, which gets a circuit breaker of its own. Adds the
    /// [fallback](Fallback) to a remote store.
    pub fn failure_rule(mut self, name: &str, rule: FailureRule) -> Self {
        self.protection.rules.insert(name.to_owned(), rule);
        self
    }

    /// Sets whether denials of a remote store are cached in this process until they end, `false` by default.
    pub fn cache_denials(mut self, are_cached: bool) -> Self {
        self.protection.caches_denials = Some(are_cached);
        self
    }

    /// Sets whether denials of the policy called `name` are cached.
    pub fn cache_denials_of(mut self, name: &str, are_cached: bool) -> Self {
        self.protection.caches_denials_of.insert(name.to_owned(), are_cached);
        self
    }

    /// Delays the retry times of denials at random by up to `max`, so that denied clients do not retry together.
    pub fn retry_jitter(mut self, max: Duration) -> Self {
        self.protection.retry_jitter = Some(max);
        self
    }

    /// Sets the maximum delay of the retry times of the policy called `name`.
    pub fn retry_jitter_of(mut self, name: &str, max: Duration) -> Self {
        self.protection.retry_jitter_of.insert(name.to_owned(), max);
        self
    }

    /// Adds [switches](Switch) of policies, which [`StoreStack::switches`] changes at run time, with these initial settings.
    pub fn switches(mut self, switches: impl IntoIterator<Item = (String, PolicySwitch)>) -> Self {
        self.protection.switches.get_or_insert_default().extend(switches);
        self
    }
}
