//! Rate-limit layer and its configuration.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, response};
use tower_layer::Layer;

use super::choice::TierChoice;
use super::head::RequestHead;
use super::key::Key;
use super::limiter_store::LimiterStore;
use super::not_allowed::NotAllowed;
use super::payment::Payment;
use super::rules::{MissingKey, Rules};
use super::service::RateLimit;
use super::tier::Tier;
use crate::address::ClientAddress;
use crate::headers::HeaderStyle;
use crate::limiter::Limiter;
use crate::store::{Store, StoreLimiter};

/// Limits the requests of any [`tower`](tower_service::Service) service: axum, tonic, hyper.
///
/// ```
/// use slidegate::Limiter;
/// use slidegate::tower::{ClientAddress, Key, RateLimitLayer};
///
/// let api = Limiter::builder("api").quotas(["100/1m"]).tier("premium", ["1000/1m"]).in_memory()?;
/// let layer = RateLimitLayer::new(api)
///     .key(Key::address(ClientAddress::peer()))
///     .tier(|request| request.headers.contains_key("x-premium").then_some("premium"))
///     .skip(|request| request.path() == "/healthz");
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<S = LimiterStore> {
    rules: Arc<Rules<S>>,
}

impl RateLimitLayer {
    /// Applies the limiter's policy to every request, by default per client address.
    pub fn new(limiter: Limiter) -> Self {
        let tier = Tier::over(limiter.store(), limiter.policy());
        Self::over(Arc::new(StoreLimiter::new(LimiterStore(limiter))), tier)
    }

    /// Chooses the limiter's tier of each request; `None` applies the quotas without a tier.
    ///
    /// A request with an unknown tier is rejected with 503, and [`Undecided`](super::Undecided) in the extensions of its
    /// response names the known tiers.
    ///
    /// Only a layer built by [`new`](Self::new) has this method; one [over](Self::over) a store has no tiers:
    ///
    /// ```compile_fail,E0599
    /// # use std::sync::Arc;
    /// # use slidegate::Policy;
    /// # use slidegate::store::{MemoryStore, StoreLimiter};
    /// # use slidegate::tower::RateLimitLayer;
    /// let limiter = Arc::new(StoreLimiter::new(MemoryStore::new()));
    /// let layer = RateLimitLayer::over(limiter, Policy::parse("api", ["100/1m"])?).tier(|_| None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(
        self,
        tier: impl for<'a> Fn(&'a RequestHead<'_>) -> Option<&'a str> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| {
            let limiter = rules.limiter.store().0.clone();
            rules.choice = rules.choice.clone().named(limiter, Arc::new(tier));
        })
    }
}

impl<S: Store> RateLimitLayer<S> {
    /// Applies one policy to every request, over a store of any type.
    pub fn over(limiter: Arc<StoreLimiter<S>>, policy: impl Into<Tier>) -> Self {
        Self::with_choice(limiter, TierChoice::Fixed(policy.into()))
    }

    /// Applies the policy that `choose` returns to each request, or none, over a store of any type. Create the tiers once
    /// and clone them.
    pub fn choosing(
        limiter: Arc<StoreLimiter<S>>,
        choose: impl Fn(&RequestHead<'_>) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        Self::with_choice(limiter, TierChoice::Chosen(Arc::new(choose)))
    }

    fn with_choice(limiter: Arc<StoreLimiter<S>>, choice: TierChoice) -> Self {
        Self {
            rules: Arc::new(Rules {
                limiter,
                choice,
                key: Key::address(ClientAddress::peer()),
                missing_key: MissingKey::default(),
                cost: None,
                payment: Payment::default(),
                style: HeaderStyle::default(),
                records_all: false,
                not_allowed: None,
            }),
        }
    }
}

impl<S> RateLimitLayer<S> {
    fn with(mut self, change: impl FnOnce(&mut Rules<S>)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// Sets the key of requests. The default is the client's address.
    pub fn key(self, key: Key) -> Self {
        self.with(|rules| rules.key = key)
    }

    /// Sets the handling of requests without a key. The default is [`MissingKey::Rejected`].
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|rules| rules.missing_key = missing_key)
    }

    /// Sets the cost of requests. The default is 1. A request that costs 0 is not counted and always passes. With a
    /// cost [afterwards](Self::cost_after), it passes only while units remain.
    pub fn cost(self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.cost = Some(Arc::new(cost)))
    }

    /// Exempts requests from all limits, such as health checks.
    pub fn skip(self, is_skipped: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| {
            let otherwise = Arc::new(rules.choice.clone());
            rules.choice = TierChoice::Except(Arc::new(is_skipped), otherwise);
        })
    }

    /// Refunds a request whose response matches, so that failures of the service cost clients nothing.
    ///
    /// Of this, [`count_only_if`](Self::count_only_if) and [`cost_after`](Self::cost_after), the last call applies.
    pub fn refund_if(self, is_refunded: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::RefundIf(Arc::new(is_refunded)))
    }

    /// Counts a request only if its response matches, such as a failed login. The request is charged when it starts, so
    /// that concurrent attempts cannot exceed the limit, and refunded if its response does not match. A request that is
    /// cancelled before its response stays counted.
    ///
    /// Of this, [`refund_if`](Self::refund_if) and [`cost_after`](Self::cost_after), the last call applies.
    pub fn count_only_if(
        self,
        is_counted: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.payment = Payment::OnlyIf(Arc::new(is_counted)))
    }

    /// Corrects the cost of a request from its response. Until then, the request costs [`cost`](Self::cost). An
    /// additional charge takes at most the remaining units. All quotas are charged the same amount, at most what
    /// remains in the tightest one, so a quota per second can keep a quota per day from counting the full cost.
    ///
    /// Of this, [`refund_if`](Self::refund_if) and [`count_only_if`](Self::count_only_if), the last call applies.
    pub fn cost_after(self, cost: impl Fn(&response::Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::Settled(Arc::new(cost)))
    }

    /// Sets the style of the rate-limit headers.
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|rules| rules.style = style)
    }

    /// Puts the decision into the extensions of every response, as [`Limited`](super::Limited), not only of notable
    /// ones.
    pub fn record_all(self) -> Self {
        self.with(|rules| rules.records_all = true)
    }

    /// Sets the response to requests that are not allowed, in place of a problem document or a gRPC status. Rate-limit
    /// headers are added to it.
    pub fn when_not_allowed(
        self,
        response: impl Fn(&NotAllowed<'_>, &RequestHead<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.not_allowed = Some(Arc::new(response)))
    }
}

impl<S> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S> fmt::Debug for RateLimitLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { missing_key, payment, style, .. } = &*self.rules;
        let mut debug = f.debug_struct("RateLimitLayer");
        debug.field("missing_key", missing_key).field("payment", payment).field("style", style);
        debug.finish_non_exhaustive()
    }
}

impl<S, I> Layer<I> for RateLimitLayer<S> {
    type Service = RateLimit<S, I>;

    fn layer(&self, inner: I) -> RateLimit<S, I> {
        RateLimit::new(Arc::clone(&self.rules), inner)
    }
}
