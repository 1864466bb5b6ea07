//! Builder of a limiter.

use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(feature = "resilience")]
use std::time::Duration;

use slidegate_core::{Policy, Quota, QuotaError};

use super::Limiter;
use crate::clock::Clock;
use crate::error::{BuildError, SettingsError};
#[cfg(feature = "resilience")]
use crate::resilience::{OnFailure, PolicySwitch};
use crate::stack::{StoreStack, StoreStackBuilder};
use crate::store::{StoreUrl, WhenFull};

/// Builder of a [`Limiter`], created by [`Limiter::builder`].
///
/// ```
/// use slidegate::{Limiter, ManualClock, Request};
///
/// let clock = ManualClock::at(0);
/// let api = Limiter::builder("api")
///     .quotas(["10/1s"])
///     .tier("premium", ["100/1s", "5000/1h"])
///     .clock(clock.clone())
///     .in_memory()?;
/// assert_eq!(api.check_now(Request::key("user:1").tier("premium"))?.remaining(), 99);
/// let error = api.check_now(Request::key("user:1").tier("gold")).unwrap_err();
/// assert_eq!(error.to_string(), "the policy \"api\" has no tier \"gold\"; known: premium");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Options of the store apply where they have a meaning: sizes and the clock to a store in memory, the fallback and the
/// denial cache to a remote one. An option of a layer adds the layer.
#[derive(Clone, Debug)]
pub struct LimiterBuilder {
    name: String,
    quotas: Result<Quotas, QuotaError>,
    tiers: BTreeMap<String, Result<Quotas, QuotaError>>,
    store: StoreStackBuilder,
    has_store_options: bool,
}

impl LimiterBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            quotas: Ok(Quotas::default()),
            tiers: BTreeMap::new(),
            store: StoreStackBuilder::default(),
            has_store_options: false,
        }
    }

    /// Sets the quotas: values of [`Quota`], or texts such as `10/1s` or `5/15m strict-window`.
    pub fn quotas<Q>(mut self, quotas: impl IntoIterator<Item = Q>) -> Self
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        self.quotas = parse(quotas);
        self
    }

    /// Sets the quotas with their names, which identify them in headers and reports. [`quotas`](Self::quotas) names each quota
    /// after its limit and window, such as `10/1s`.
    ///
    /// ```
    /// use slidegate::Limiter;
    ///
    /// let api = Limiter::builder("api")
    ///     .named_quotas([("burst", "10/1s"), ("daily", "5000/1d")])
    ///     .named_tier("premium", [("burst", "100/1s"), ("daily", "50000/1d")])
    ///     .in_memory()?;
    /// assert_eq!(api.policy().quota_name(1), "daily");
    /// assert_eq!(api.tier_policy("premium").map(|policy| policy.quota_name(1)), Some("daily"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn named_quotas<N, Q>(mut self, quotas: impl IntoIterator<Item = (N, Q)>) -> Self
    where
        N: Into<String>,
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        self.quotas = parse_named(quotas);
        self
    }

    /// Adds a [tier](Self::tier) with names of its quotas.
    pub fn named_tier<N, Q>(mut self, name: &str, quotas: impl IntoIterator<Item = (N, Q)>) -> Self
    where
        N: Into<String>,
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        self.tiers.insert(name.to_owned(), parse_named(quotas));
        self
    }

    /// Adds a tier, whose quotas apply to the requests that [name it](crate::Request::tier). A key keeps its count when its
    /// tier changes.
    pub fn tier<Q>(mut self, name: &str, quotas: impl IntoIterator<Item = Q>) -> Self
    where
        Q: TryInto<Quota, Error: Into<QuotaError>>,
    {
        self.tiers.insert(name.to_owned(), parse(quotas));
        self
    }

    /// Sets the clock of a store in memory, such as a [`ManualClock`](crate::ManualClock) in tests. Remote stores decide by
    /// the clock of their server; with one, the builder returns an error.
    pub fn clock(self, clock: impl Clock) -> Self {
        self.with(|store| store.clock(clock))
    }

    /// Sets the largest number of keys of a store in memory: 1 to 2^31, by default one million.
    pub fn max_keys(self, max_keys: usize) -> Self {
        self.with(|store| store.max_keys(max_keys))
    }

    /// Sets the limit of bytes of a store in memory. By default 256 bytes per key, at least 64 MiB, in addition to the table.
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        self.with(|store| store.max_bytes(max_bytes))
    }

    /// Sets the behaviour when a new key comes and a store in memory is full.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.with(|store| store.when_full(when_full))
    }

    /// Starts without the store if it is temporarily unreachable, and connects in the background.
    pub fn connect_in_background(self) -> Self {
        self.with(StoreStackBuilder::connect_in_background)
    }

    /// Builds the limiter over a store of its own, in memory.
    pub fn in_memory(self) -> Result<Limiter, BuildError> {
        let (policy, tiers) = self.policies()?;
        Ok(Limiter::with_tiers(Arc::new(self.store.in_memory()?), policy, tiers))
    }

    /// Connects to the store at `url`: `memory:`, `redis://…` and related schemes, or `postgres://…`.
    pub async fn connect(self, url: &str) -> Result<Limiter, BuildError> {
        let (policy, tiers) = self.policies()?;
        Ok(Limiter::with_tiers(Arc::new(self.store.connect(url).await?), policy, tiers))
    }

    /// Connects to the store at a parsed URL.
    pub async fn connect_to(self, url: &StoreUrl) -> Result<Limiter, BuildError> {
        let (policy, tiers) = self.policies()?;
        Ok(Limiter::with_tiers(Arc::new(self.store.connect_to(url).await?), policy, tiers))
    }

    /// Builds the limiter over a store that other limiters use too. The options of the store belong to the
    /// [builder of the store](StoreStack::builder) then; the error names this.
    pub fn over(self, store: Arc<StoreStack>) -> Result<Limiter, BuildError> {
        if self.has_store_options {
            let message =
                "options of a shared store, such as its clock or its budget, belong to StoreStack::builder()";
            return Err(SettingsError::new("store", message).into());
        }
        let (policy, tiers) = self.policies()?;
        Ok(Limiter::with_tiers(store, policy, tiers))
    }

    fn policies(&self) -> Result<(Policy, TierPolicies), BuildError> {
        let policy = self.quotas.clone()?.policy(&self.name)?;
        let mut tiers = TierPolicies::with_capacity(self.tiers.len());
        for (name, quotas) in &self.tiers {
            let tier = quotas.clone().and_then(|quotas| quotas.policy(&self.name));
            let tier = tier.map_err(|error| BuildError::Tier { name: name.clone(), error })?;
            tiers.push((name.as_str().into(), tier));
        }
        Ok((policy, tiers))
    }

    fn with(mut self, change: impl FnOnce(StoreStackBuilder) -> StoreStackBuilder) -> Self {
        self.store = change(self.store);
        self.has_store_options = true;
        self
    }
}

/// The protective stack. The module [`resilience`](crate::resilience) describes each layer.
#[cfg(feature = "resilience")]
impl LimiterBuilder {
    /// Sets the time that a call of a remote store may take, 20 ms by default; `budget_ms` in the URL takes precedence. Adds
    /// the [fallback](crate::resilience::Fallback).
    pub fn budget(self, budget: Duration) -> Self {
        self.with(|store| store.budget(budget))
    }

    /// Sets the handling of requests that a remote store does not decide. Adds the
    /// [fallback](crate::resilience::Fallback).
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with(|store| store.on_failure(on_failure))
    }

    /// Sets the number of nodes that share a remote store, 1 by default. Adds the [fallback](crate::resilience::Fallback).
    pub fn nodes(self, nodes: u32) -> Self {
        self.with(|store| store.nodes(nodes))
    }

    /// Sets whether denials of a remote store are cached in this process until they end, `false` by default.
    pub fn cache_denials(self, are_cached: bool) -> Self {
        self.with(|store| store.cache_denials(are_cached))
    }

    /// Delays the retry times of denials at random by up to `max`, so that denied clients do not retry together.
    pub fn retry_jitter(self, max: Duration) -> Self {
        self.with(|store| store.retry_jitter(max))
    }

    /// Adds the switch of the policy, with these initial settings. [`StoreStack::switches`] changes it at run time.
    pub fn switch(self, switch: PolicySwitch) -> Self {
        let name = self.name.clone();
        self.with(|store| store.switches([(name, switch)]))
    }
}

/// Names and policies of the tiers.
type TierPolicies = Vec<(Box<str>, Policy)>;

/// Quotas of a policy or of a tier.
#[derive(Clone, Debug)]
enum Quotas {
    /// Named by their limits and windows.
    Unnamed(Vec<Quota>),
    Named(Vec<(String, Quota)>),
}

impl Default for Quotas {
    fn default() -> Self {
        Self::Unnamed(Vec::new())
    }
}

impl Quotas {
    fn policy(self, name: &str) -> Result<Policy, QuotaError> {
        match self {
            Self::Unnamed(quotas) => Policy::new(name, quotas),
            Self::Named(quotas) => Policy::with_names(name, quotas),
        }
    }
}

fn parse<Q>(quotas: impl IntoIterator<Item = Q>) -> Result<Quotas, QuotaError>
where
    Q: TryInto<Quota, Error: Into<QuotaError>>,
{
    let parsed = |quota: Q| quota.try_into().map_err(Into::into);
    quotas.into_iter().map(parsed).collect::<Result<_, _>>().map(Quotas::Unnamed)
}

fn parse_named<N, Q>(quotas: impl IntoIterator<Item = (N, Q)>) -> Result<Quotas, QuotaError>
where
    N: Into<String>,
    Q: TryInto<Quota, Error: Into<QuotaError>>,
{
    let parsed = |(name, quota): (N, Q)| Ok((name.into(), quota.try_into().map_err(Into::into)?));
    quotas.into_iter().map(parsed).collect::<Result<_, _>>().map(Quotas::Named)
}
