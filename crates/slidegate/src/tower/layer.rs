//! The layer and its service.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request, response};
use slidegate_core::Decision;
use tower_layer::Layer;
use tower_service::Service;

use super::address::ClientAddress;
use super::after::Payment;
use super::body::ResponseBody;
use super::key::{Found, Key};
use super::refusal::Refusal;
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

/// What was decided about a request: in the extensions of the request, for whoever serves it, and of the response, for
/// whoever logs it.
#[derive(Clone, Debug)]
pub struct Limited {
    /// The policy that it met.
    pub tier: Tier,
    /// What was decided: with its source, and with its shadow if there is one.
    pub decision: Decision,
}

type Choose = Arc<dyn Fn(&request::Parts) -> Option<Tier> + Send + Sync>;
type Cost = Arc<dyn Fn(&request::Parts) -> u64 + Send + Sync>;
type Refuse = Arc<dyn Fn(&Refusal<'_>, &request::Parts) -> Response<Bytes> + Send + Sync>;

/// Everything that one layer has been told.
struct Rules<S> {
    limiter: Arc<Limiter<S>>,
    choose: Choose,
    key: Key,
    missing_key: MissingKey,
    cost: Option<Cost>,
    payment: Payment,
    style: HeaderStyle,
    refuse: Option<Refuse>,
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
///     .skip(|request| request.uri.path() == "/healthz");
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
        choose: impl Fn(&request::Parts) -> Option<Tier> + Send + Sync + 'static,
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

    /// What a request costs, 1 unless told otherwise. One that costs 0 is only looked at.
    pub fn cost(self, cost: impl Fn(&request::Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.cost = Some(Arc::new(cost)))
    }

    /// Requests that meet no limit and are not counted, such as health checks.
    pub fn skip(self, is_skipped: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| {
            let choose = Arc::clone(&rules.choose);
            rules.choose = Arc::new(move |request| if is_skipped(request) { None } else { choose(request) });
        })
    }

    /// Gives back what a request has cost if its response is like this: a failure of ours should cost nobody anything.
    pub fn refund_if(self, is_refunded: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::RefundIf(Arc::new(is_refunded)))
    }

    /// Counts a request only if its response is like this, such as a login that failed. Those on their way at the same time
    /// do not see each other.
    pub fn count_only_if(
        self,
        is_counted: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.payment = Payment::OnlyIf(Arc::new(is_counted)))
    }

    /// Counts what a request has cost in truth, once its response says so. Until then it has cost what
    /// [`cost`](Self::cost) says; what exceeds that takes all that is left, but no more.
    pub fn cost_after(self, cost: impl Fn(&response::Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.payment = Payment::Settled(Arc::new(cost)))
    }

    /// Which headers a response carries.
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|rules| rules.style = style)
    }

    /// What a client hears that is not let through, instead of a problem document or a gRPC status. Headers are added to
    /// it.
    pub fn refuse_with(
        self,
        refuse: impl Fn(&Refusal<'_>, &request::Parts) -> Response<Bytes> + Send + Sync + 'static,
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
        RateLimit { rules: Arc::clone(&self.rules), inner }
    }
}

/// A service whose requests are limited. Made by [`RateLimitLayer`].
pub struct RateLimit<S, I> {
    rules: Arc<Rules<S>>,
    inner: I,
}

impl<S, I: Clone> Clone for RateLimit<S, I> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), inner: self.inner.clone() }
    }
}

impl<S, I: fmt::Debug> fmt::Debug for RateLimit<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// What a request has been let through with.
struct Admitted {
    limited: Limited,
    key: Vec<u8>,
    cost: u64,
}

impl<S: Store> Rules<S> {
    /// Lets a request through, counted or not, or says what its client hears instead.
    async fn admit(&self, request: &request::Parts) -> Result<Option<Admitted>, Response<Bytes>> {
        let Some(tier) = (self.choose)(request) else { return Ok(None) };
        let found = match self.key.find(request) {
            Found::Now(name) => name,
            Found::Later(name) => name.await,
        };
        let key = match (found, self.missing_key) {
            (Some(key), _) => key,
            // An empty name, which none that was found should be.
            (None, MissingKey::Shared) => Vec::new(),
            (None, MissingKey::Refused) => return Err(self.refuse(&Refusal::NoKey, request)),
            (None, MissingKey::Passed) => return Ok(None),
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let decided = self.payment.before(&self.limiter, tier.policy().key(&key).cost(cost)).await;
        match decided {
            Ok(decision) if decision.is_allowed() => {
                Ok(Some(Admitted { limited: Limited { tier, decision }, key, cost }))
            }
            Ok(decision) => {
                let mut response =
                    self.refuse(&Refusal::Denied { tier: &tier, decision: &decision }, request);
                self.tell(&mut response, Limited { tier, decision });
                Err(response)
            }
            Err(error) => Err(self.refuse(&Refusal::Undecided(&error), request)),
        }
    }

    /// Counts what is to be counted now that the response is known, and says the numbers on it.
    async fn settle<B>(&self, admitted: Admitted, response: Response<B>) -> Response<B> {
        let Admitted { mut limited, key, cost } = admitted;
        let check = limited.tier.policy().key(&key).cost(cost);
        let (parts, body) = response.into_parts();
        if let Some(later) = self.payment.after(&self.limiter, check, &parts).await {
            limited.decision = later;
        }
        let mut response = Response::from_parts(parts, body);
        self.tell(&mut response, limited);
        response
    }

    fn tell<B>(&self, response: &mut Response<B>, limited: Limited) {
        let now_ms = self.limiter.store().clock().now_ms();
        self.style.write(response.headers_mut(), &limited.tier, &limited.decision, now_ms);
        response.extensions_mut().insert(limited);
    }

    fn refuse(&self, refusal: &Refusal<'_>, request: &request::Parts) -> Response<Bytes> {
        match &self.refuse {
            Some(refuse) => refuse(refusal, request),
            None => refusal.response(request),
        }
    }
}

impl<S, I, Q, B> Service<Request<Q>> for RateLimit<S, I>
where
    S: Store + 'static,
    I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send,
    Q: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = I::Error;
    type Future = ResponseFuture<B, I::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        // The one that was polled is ready, its clone may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let rules = Arc::clone(&self.rules);
        let (mut parts, body) = request.into_parts();
        ResponseFuture(Box::pin(async move {
            match rules.admit(&parts).await {
                Err(refused) => Ok(refused.map(ResponseBody::own)),
                Ok(None) => Ok(inner.call(Request::from_parts(parts, body)).await?.map(ResponseBody::inner)),
                Ok(Some(admitted)) => {
                    parts.extensions.insert(admitted.limited.clone());
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    Ok(rules.settle(admitted, response).await.map(ResponseBody::inner))
                }
            }
        }))
    }
}

/// The response to come.
pub struct ResponseFuture<B, E = Infallible>(Boxed<B, E>);

type Boxed<B, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send>>;

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
