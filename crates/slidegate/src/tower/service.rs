//! Rate-limiting service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use slidegate_core::{Check, Decision, Verb};
use tower_service::Service;

use super::body::ResponseBody;
use super::future::{BoxedRefusal, ResponseFuture};
use super::head::RequestHead;
use super::key::Extracted;
use super::key_bytes::KeyBytes;
use super::layer::{MissingKey, Rules};
use super::limited::{Annotator, Limited};
use super::payment::{Before, Payment};
use super::refusal::{Refusal, Undecided};
use super::tier::Tier;
use crate::error::StoreError;
use crate::store::responses::Responses;
use crate::store::{Operation, Store, output_now};

/// Service with limited requests. Created by [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, I> {
    rules: Arc<Rules<S>>,
    inner: I,
}

impl<S, I> RateLimit<S, I> {
    pub(super) fn new(rules: Arc<Rules<S>>, inner: I) -> Self {
        Self { rules, inner }
    }
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

/// Parameters of a check.
struct CheckRequest {
    tier: Tier,
    key: KeyBytes,
    cost: u64,
}

impl CheckRequest {
    fn check(&self) -> Check<'_> {
        self.tier.policy().key(&*self.key).cost(self.cost)
    }
}

/// Next step of a request.
enum Step<T> {
    /// Passes to the inner service uncounted.
    Pass,
    /// Ends with this response.
    Refuse(BoxedRefusal),
    Check(T),
}

/// Missing input of a request that has to wait.
enum Pending {
    Key(Tier),
    Decision(CheckRequest),
}

impl<S: Store> Rules<S> {
    /// Prepares the check of a request, or decides what happens without a key.
    fn check_request(
        &self,
        tier: Tier,
        name: Option<KeyBytes>,
        request: &RequestHead<'_>,
    ) -> Step<CheckRequest> {
        let key = match (name, self.missing_key) {
            (Some(key), _) => key,
            (None, MissingKey::Shared) => KeyBytes::EMPTY,
            (None, MissingKey::Refused) => return Step::Refuse(self.refusal(&Refusal::NoKey, request)),
            (None, MissingKey::Passed) => return Step::Pass,
        };
        Step::Check(CheckRequest { tier, key, cost: self.cost.as_ref().map_or(1, |cost| cost(request)) })
    }

    /// Decides without waiting, if the store can and nothing has to be settled after the response.
    fn decide_now(&self, check: &CheckRequest) -> Option<Result<Decision, StoreError>> {
        if !matches!(self.payment, Payment::Before) {
            return None;
        }
        if let Some(decided) = check.tier.check_now(&check.key, check.cost) {
            return Some(decided);
        }
        let store = self.limiter.store();
        if !store.is_immediate() {
            return None;
        }
        let operation = Operation { verb: Verb::Check, check: check.check() };
        output_now(store.execute(&[operation])).map(Responses::into_single)
    }

    /// Turns the store's result into a decision to annotate the response with, or a refusal.
    fn conclude(
        &self,
        tier: Tier,
        decided: Result<Decision, StoreError>,
        request: &RequestHead<'_>,
    ) -> Result<Limited, BoxedRefusal> {
        match decided {
            Ok(decision) if decision.is_allowed() => Ok(Limited::new(tier, decision)),
            Ok(decision) => {
                let denied = Refusal::Denied { tier: &tier, decision: &decision };
                let mut response = self.refusal(&denied, request);
                self.annotator().annotate(&mut *response, Limited::new(tier, decision));
                Err(response)
            }
            Err(error) => Err(self.undecided(error, request)),
        }
    }

    /// Creates the refusal of a request for which there is no decision, with the error for logging.
    fn undecided(&self, error: StoreError, request: &RequestHead<'_>) -> BoxedRefusal {
        let mut response = self.refusal(&Refusal::Undecided(&error), request);
        response.extensions_mut().insert(Undecided(error));
        response
    }

    /// Creates an annotator for a decision at the current time.
    fn annotator(&self) -> Annotator {
        Annotator::new(self.style, self.records_all, self.limiter.store().clock())
    }

    fn refusal(&self, refusal: &Refusal<'_>, request: &RequestHead<'_>) -> BoxedRefusal {
        Box::new(match &self.refuse {
            Some(refuse) => refuse(refusal, request),
            None => refusal.response(request),
        })
    }
}

impl<S, I, Q, B> Service<Request<Q>> for RateLimit<S, I>
where
    S: Store + 'static,
    I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    Q: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = I::Error;
    type Future = ResponseFuture<I::Future, B, I::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let head = RequestHead::from(&request);
        let tier = match (self.rules.choose)(&head) {
            Some(Ok(tier)) => tier,
            Some(Err(error)) => {
                let response = self.rules.undecided(error, &head);
                return self.refuse(response);
            }
            None => return ResponseFuture::passed(self.inner.call(request)),
        };
        let Some(Extracted::Now(name)) = self.rules.key.find_now(&head) else {
            return self.wait(Pending::Key(tier), request);
        };
        let check = match self.rules.check_request(tier, name, &head) {
            Step::Check(check) => check,
            Step::Pass => return ResponseFuture::passed(self.inner.call(request)),
            Step::Refuse(response) => return self.refuse(response),
        };
        let Some(decided) = self.rules.decide_now(&check) else {
            return self.wait(Pending::Decision(check), request);
        };
        match self.rules.conclude(check.tier, decided, &head) {
            Ok(limited) => {
                ResponseFuture::annotated(self.inner.call(request), self.rules.annotator(), limited)
            }
            Err(response) => self.refuse(response),
        }
    }
}

impl<S, I: Clone> RateLimit<S, I> {
    fn refuse<F, B, E>(&mut self, response: BoxedRefusal) -> ResponseFuture<F, B, E> {
        // The polled service may hold a permit, which a denied request must not consume.
        self.inner = self.inner.clone();
        ResponseFuture::refused(response)
    }
}

impl<S: Store + 'static, I> RateLimit<S, I> {
    /// Handles requests that wait: for their key, for the store, or for settlement after the response.
    fn wait<Q, B>(&mut self, pending: Pending, request: Request<Q>) -> ResponseFuture<I::Future, B, I::Error>
    where
        I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        Q: Send + 'static,
        B: Send + 'static,
    {
        // The polled service is ready; its clone may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let rules = Arc::clone(&self.rules);
        // Splits the request, because a body may not be `Sync` and references to the head cross await points.
        let (parts, body) = request.into_parts();
        ResponseFuture::waiting(async move {
            let step = match pending {
                Pending::Key(tier) => {
                    let head = (&parts).into();
                    rules.check_request(tier, rules.key.find(&head).resolve().await, &head)
                }
                Pending::Decision(check) => Step::Check(check),
            };
            let check = match step {
                Step::Check(check) => check,
                Step::Pass => {
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    return Ok(response.map(ResponseBody::inner));
                }
                Step::Refuse(response) => return Ok((*response).map(ResponseBody::own)),
            };
            let at_ms = rules.limiter.store().clock().now_ms();
            let decided = rules.payment.before(&rules.limiter, check.check()).await;
            let mut limited = match rules.conclude(check.tier.clone(), decided, &(&parts).into()) {
                Ok(limited) => limited,
                Err(response) => return Ok((*response).map(ResponseBody::own)),
            };
            let mut annotator = rules.annotator();
            let outcome = inner.call(Request::from_parts(parts, body)).await.map(Response::into_parts);
            let before = Before { decision: &limited.decision, at_ms };
            let head = outcome.as_ref().ok().map(|(head, _)| head);
            let settled = rules.payment.after(&rules.limiter, check.check(), before, head).await;
            let (response, body) = outcome?;
            let mut response = Response::from_parts(response, ResponseBody::inner(body));
            match settled {
                Ok(Some(later)) => {
                    limited.decision = later;
                    annotator = rules.annotator();
                }
                Ok(None) => {}
                Err(error) => drop(response.extensions_mut().insert(Undecided(error))),
            }
            annotator.annotate(&mut response, limited);
            Ok(response)
        })
    }
}
