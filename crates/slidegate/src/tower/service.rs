//! Rate-limiting service.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use slidegate_core::{Check, Decision, Verb};
use tower_service::Service;

use super::body::ResponseBody;
use super::future::{OwnResponse, ResponseFuture};
use super::head::RequestHead;
use super::key::Extracted;
use super::key_bytes::KeyBytes;
use super::limited::{Annotation, Annotator, Limited};
use super::not_allowed::{NotAllowed, Undecided};
use super::payment::{Before, Payment};
use super::rules::{MissingKey, Rules};
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
struct CheckRequest<'t> {
    tier: Cow<'t, Tier>,
    key: KeyBytes,
    cost: u64,
}

impl CheckRequest<'_> {
    fn check(&self) -> Check<'_> {
        self.tier.policy().key(&*self.key).cost(self.cost)
    }

    fn into_owned(self) -> CheckRequest<'static> {
        let Self { tier, key, cost } = self;
        CheckRequest { tier: Cow::Owned(tier.into_owned()), key, cost }
    }
}

/// Next step of a request.
enum Step<T> {
    /// Passes to the inner service uncounted.
    Pass,
    /// Ends with this response.
    Respond(OwnResponse),
    Check(T),
}

/// First step of a request.
enum Start {
    /// Passes to the inner service, with an annotation of its response if it is counted.
    Serve(Option<Annotation>),
    Respond(OwnResponse),
    Wait(Pending),
}

/// Missing input of a request that has to wait.
enum Pending {
    Key(Tier),
    Decision(CheckRequest<'static>),
}

impl<S: Store> Rules<S> {
    /// Starts a request: decides it if nothing has to wait.
    #[inline(always)]
    fn start(&self, request: &RequestHead<'_>) -> Start {
        let tier = match self.choice.tier(request) {
            Some(Ok(tier)) => tier,
            Some(Err(error)) => return Start::Respond(self.undecided(error, request)),
            None => return Start::Serve(None),
        };
        let Some(Extracted::Now(name)) = self.key.find_now(request) else {
            return Start::Wait(Pending::Key(tier.into_owned()));
        };
        let check = match self.check_request(tier, name, request) {
            Step::Check(check) => check,
            Step::Pass => return Start::Serve(None),
            Step::Respond(response) => return Start::Respond(response),
        };
        match self.decide_now(&check) {
            Some(Ok(decision)) if decision.is_allowed() => {
                Start::Serve(Some(self.annotator().annotation(&check.tier, &decision)))
            }
            Some(decided) => Start::Respond(self.not_allowed(check.tier.into_owned(), decided, request)),
            None => Start::Wait(Pending::Decision(check.into_owned())),
        }
    }

    /// Prepares the check of a request, or decides what happens without a key.
    #[inline(always)]
    fn check_request<'t>(
        &self,
        tier: Cow<'t, Tier>,
        name: Option<KeyBytes>,
        request: &RequestHead<'_>,
    ) -> Step<CheckRequest<'t>> {
        let key = match (name, self.missing_key) {
            (Some(key), _) => key,
            (None, MissingKey::Shared) => KeyBytes::EMPTY,
            (None, MissingKey::Rejected) => {
                return Step::Respond(self.own_response(&NotAllowed::NoKey, request));
            }
            (None, MissingKey::Passed) => return Step::Pass,
        };
        Step::Check(CheckRequest { tier, key, cost: self.cost.as_ref().map_or(1, |cost| cost(request)) })
    }

    /// Decides without waiting, if the store can and nothing has to be settled after the response.
    #[inline(always)]
    fn decide_now(&self, check: &CheckRequest<'_>) -> Option<Result<Decision, StoreError>> {
        if !matches!(self.payment, Payment::Before) {
            return None;
        }
        check.tier.check_now(&check.key, check.cost).or_else(|| self.decide_by_store(check.check()))
    }

    /// Decides by the store, if it never waits.
    #[inline(never)]
    fn decide_by_store(&self, check: Check<'_>) -> Option<Result<Decision, StoreError>> {
        let store = self.limiter.store();
        if !store.is_immediate() {
            return None;
        }
        let responses = output_now(store.execute(&[Operation::new(Verb::Check, check)]));
        responses.map(Responses::into_single)
    }

    /// Builds the response to a request that was denied, or not decided because the store failed.
    #[cold]
    fn not_allowed(
        &self,
        tier: Tier,
        decided: Result<Decision, StoreError>,
        request: &RequestHead<'_>,
    ) -> OwnResponse {
        match decided {
            Ok(decision) => {
                let denied = NotAllowed::Denied { tier: &tier, decision: &decision };
                let mut response = self.own_response(&denied, request);
                self.annotator().annotate(&mut *response, Limited::new(tier, decision));
                response
            }
            Err(error) => self.undecided(error, request),
        }
    }

    /// Creates the response to a request for which there is no decision, with the error for logging.
    fn undecided(&self, error: StoreError, request: &RequestHead<'_>) -> OwnResponse {
        let mut response = self.own_response(&NotAllowed::Undecided(&error), request);
        response.extensions_mut().insert(Undecided(error));
        response
    }

    /// Creates an annotator for a decision at the current time.
    fn annotator(&self) -> Annotator {
        Annotator::new(self.style, self.records_all, self.limiter.store())
    }

    fn own_response(&self, reason: &NotAllowed<'_>, request: &RequestHead<'_>) -> OwnResponse {
        Box::new(match &self.not_allowed {
            Some(response) => response(reason, request),
            None => reason.response(request),
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

    #[inline(never)]
    fn call(&mut self, request: Request<Q>) -> Self::Future {
        match self.rules.start(&RequestHead::from(&request)) {
            Start::Serve(annotation) => ResponseFuture::served(self.inner.call(request), annotation),
            Start::Respond(response) => self.respond(response),
            Start::Wait(pending) => self.wait(pending, request),
        }
    }
}

impl<S, I: Clone> RateLimit<S, I> {
    #[cold]
    #[inline(never)]
    fn respond<F, B, E>(&mut self, response: OwnResponse) -> ResponseFuture<F, B, E> {
        // The polled service may hold a permit, which a denied request must not consume.
        self.inner = self.inner.clone();
        ResponseFuture::own(response)
    }
}

impl<S: Store + 'static, I> RateLimit<S, I> {
    /// Handles requests that wait: for their key, for the store, or for settlement after the response.
    #[inline(never)]
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
                    rules.check_request(Cow::Owned(tier), rules.key.find(&head).resolve().await, &head)
                }
                Pending::Decision(check) => Step::Check(check),
            };
            let check = match step {
                Step::Check(check) => check,
                Step::Pass => {
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    return Ok(response.map(ResponseBody::inner));
                }
                Step::Respond(response) => return Ok((*response).map(ResponseBody::own)),
            };
            let at_ms = rules.limiter.store().clock().now_ms();
            let decided = rules.payment.before(&rules.limiter, check.check()).await;
            let tier = Tier::clone(&check.tier);
            let mut limited = match decided {
                Ok(decision) if decision.is_allowed() => Limited::new(tier, decision),
                decided => {
                    let response = rules.not_allowed(tier, decided, &(&parts).into());
                    return Ok((*response).map(ResponseBody::own));
                }
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
