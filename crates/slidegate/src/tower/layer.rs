//! The layer: what it is told.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, response};
use tower_layer::Layer;

use super::address::ClientAddress;
use super::after::Payment;
use super::head::RequestHead;
use super::key::Key;
use super::refusal::Refusal;
use super::service::RateLimit;
use super::style::HeaderStyle;
use super::tier::Tier;
use crate::limiter::Limiter;
use crate::store::Store;

/// What becomes of a request that does not say whom it counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// All of them count together, as one that has no name.
    Shared,
    /// It is refused with 400.
    #[default]
    Refused,
    /// It passes and is not counted.
    Passed,
}

pub(super) type Choose = Arc<dyn Fn(&RequestHead<'_>) -> Option<Tier> + Send + Sync>;
pub(super) type Cost = Arc<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>;
pub(super) type Refuse = Arc<dyn Fn(&Refusal<'_>, &RequestHead<'_>) -> Response<Bytes> + Send + Sync>;

/// Everything that one layer has been told.
pub(super) struct Rules<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) choose: Choose,
    pub(super) key: Key,
    pub(super) missing_key: MissingKey,
    pub(super) cost: Option<Cost>,
    pub(super) payment: Payment,
    pub(super) style: HeaderStyle,
    pub(super) records_all: bool,
    pub(super) refuse: Option<Refuse>,
}

impl<S> Clone for Rules<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            choose: Arc::clone(&self.choose),
            key: self.key.clone(),
            missing_key: self.missing_key,
            cost: self.cost.clone(),
            payment: self.payment.clone(),
            style: self.style,
            records_all: self.records_all,
            refuse: self.refuse.clone(),
        }
    }
}

/// Limits the requests of any [`tower`](tower_service::Service) service: axum, tonic, hyper.
///
/// ```
/// use std::sync::Arc;
///
/// use slidegate::tower::{ClientAddress, Key, RateLimitLayer};
/// use slidegate::{Limiter, MemoryStore, Policy};
///
/// let limiter = Arc::new(Limiter::new(MemoryStore::new()));
/// let layer = RateLimitLayer::new(limiter, Policy::parse("api", ["100/1m"])?)
///     .key(Key::address(ClientAddress::peer()))
///     .skip(|request| request.path() == "/healthz");
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<S> {
    rules: Arc<Rules<S>>,
}

impl<S: Store> RateLimitLayer<S> {
    /// Every request meets this policy, each client address for itself.
    pub fn new(limiter: Arc<Limiter<S>>, policy: impl Into<Tier>) -> Self {
        let tier = policy.into();
        Self::choosing(limiter, move |_| Some(tier.clone()))
    }

    /// Each request meets the policy that `choose` says, or none. Make the tiers once and clone them.
    pub fn choosing(
        limiter: Arc<Limiter<S>>,
        choose: impl Fn(&RequestHead<'_>) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        Self {
            rules: Arc::new(Rules {
                limiter,
                choose: Arc::new(choose),
                key: Key::address(ClientAddress::peer()),
                missing_key: MissingKey::default(),
                cost: None,
                payment: Payment::default(),
                style: HeaderStyle::default(),
                records_all: false,
                refuse: None,
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Rules<S>)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// Whom a request counts for; its client's address unless told otherwise.
    pub fn key(self, key: Key) -> Self {
        self.with(|rules| rules.key = key)
    }

    /// What becomes of requests without a key.
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|rules| rules.missing_key = missing_key)
    }

    /// What a request costs, 1 unless told otherwise. One that costs 0 is only looked at: it always passes, unless there is
    /// something to be counted [afterwards](Self::cost_after), and then only while anything is left.
    pub fn cost(self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.cost = Some(Arc::new(cost)))
    }

    /// Requests that meet no limit and are not counted, such as health checks.
    pub fn skip(self, is_skipped: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| {
            let choose = Arc::clone(&rules.choose);
            rules.choose = Arc::new(move |request| if is_skipped(request) { None } else { choose(request) });
        })
    }

    /// Gives back what a request has cost if its response is like this: a failure of ours should cost nobody anything.
    ///
    /// Of this, [`count_only_if`](Self::count_only_if) and [`cost_after`](Self::cost_after) the last one set holds.
    pub fn refund_if(self, is_refunded: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::RefundIf(Arc::new(is_refunded)))
    }

    /// Counts a request only if its response is like this, such as a log-in that failed. It is counted while it is on its
    /// way, so that no more are under way at once than may fail, and given back if its response is another. One that is
    /// given up before it has a response stays counted.
    ///
    /// Of this, [`refund_if`](Self::refund_if) and [`cost_after`](Self::cost_after) the last one set holds.
    pub fn count_only_if(
        self,
        is_counted: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.payment = Payment::OnlyIf(Arc::new(is_counted)))
    }

    /// Counts what a request has cost in truth, once its response says so. Until then it has cost what
    /// [`cost`](Self::cost) says; what exceeds that takes all that is left, but no more. Quotas are charged alike: each with
    /// no more than the tightest of them has left, so that one per second keeps one per day from counting it all.
    ///
    /// Of this, [`refund_if`](Self::refund_if) and [`count_only_if`](Self::count_only_if) the last one set holds.
    pub fn cost_after(self, cost: impl Fn(&response::Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::Settled(Arc::new(cost)))
    }

    /// Which headers a response carries.
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|rules| rules.style = style)
    }

    /// Puts what was decided into the extensions of every response, as [`Limited`](super::Limited), and not only where
    /// there is something to tell.
    pub fn record_all(self) -> Self {
        self.with(|rules| rules.records_all = true)
    }

    /// What a client hears that is not let through, instead of a problem document or a gRPC status. Headers are added to
    /// it.
    pub fn refuse_with(
        self,
        refuse: impl Fn(&Refusal<'_>, &RequestHead<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.refuse = Some(Arc::new(refuse)))
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
