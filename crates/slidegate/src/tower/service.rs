//! The service: what becomes of a request.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use slidegate_core::{Check, Decision, Verb};
use tower_service::Service;

use super::after::{Before, Payment};
use super::body::ResponseBody;
use super::future::{Refused, ResponseFuture};
use super::head::RequestHead;
use super::key::Found;
use super::layer::{MissingKey, Rules};
use super::limited::{Limited, Teller};
use super::name::Name;
use super::refusal::{Refusal, Undecided};
use super::tier::Tier;
use crate::error::StoreError;
use crate::store::{Operation, Store};

/// A service whose requests are limited. Made by [`RateLimitLayer`](super::RateLimitLayer).
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

/// What is asked of the store.
struct Question {
    tier: Tier,
    key: Name,
    cost: u64,
}

impl Question {
    fn check(&self) -> Check<'_> {
        self.tier.policy().key(&*self.key).cost(self.cost)
    }
}

/// What a request does next.
enum Next<T> {
    /// It goes on, and nobody counts it.
    Pass,
    /// Its client hears this.
    Refuse(Refused),
    Go(T),
}

/// What a request waits for.
enum Waiting {
    ForName(Tier),
    ForStore(Question),
}

impl<S: Store> Rules<S> {
    /// What to ask about a request of this name.
    fn question(&self, tier: Tier, name: Option<Name>, request: &RequestHead<'_>) -> Next<Question> {
        let key = match (name, self.missing_key) {
            (Some(key), _) => key,
            (None, MissingKey::Shared) => Name::NOBODY,
            (None, MissingKey::Refused) => return Next::Refuse(self.refusal(&Refusal::NoKey, request)),
            (None, MissingKey::Passed) => return Next::Pass,
        };
        Next::Go(Question { tier, key, cost: self.cost.as_ref().map_or(1, |cost| cost(request)) })
    }

    /// The store's answer, if it has it at once and nothing is left to do afterwards.
    fn decide_now(&self, question: &Question) -> Option<Result<Decision, StoreError>> {
        let operation = Operation { verb: Verb::Check, check: question.check() };
        matches!(self.payment, Payment::Before).then(|| self.limiter.store().execute_at_once(operation))?
    }

    /// What an answer of the store means.
    fn conclude(
        &self,
        tier: Tier,
        decided: Result<Decision, StoreError>,
        request: &RequestHead<'_>,
    ) -> Result<Limited, Refused> {
        match decided {
            Ok(decision) if decision.is_allowed() => Ok(Limited::new(tier, decision)),
            Ok(decision) => {
                let denied = Refusal::Denied { tier: &tier, decision: &decision };
                let mut response = self.refusal(&denied, request);
                self.teller().tell(&mut *response, Limited::new(tier, decision));
                Err(response)
            }
            Err(error) => {
                let mut response = self.refusal(&Refusal::Undecided(&error), request);
                response.extensions_mut().insert(Undecided(error));
                Err(response)
            }
        }
    }

    /// For what was decided at this moment.
    fn teller(&self) -> Teller {
        Teller::new(self.style, self.records_all, self.limiter.store().clock())
    }

    fn refusal(&self, refusal: &Refusal<'_>, request: &RequestHead<'_>) -> Refused {
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
        let Some(tier) = (self.rules.choose)(&head) else {
            return ResponseFuture::passed(self.inner.call(request));
        };
        let Some(Found::Now(name)) = self.rules.key.find_now(&head) else {
            return self.wait(Waiting::ForName(tier), request);
        };
        let question = match self.rules.question(tier, name, &head) {
            Next::Go(question) => question,
            Next::Pass => return ResponseFuture::passed(self.inner.call(request)),
            Next::Refuse(response) => return self.refuse(response),
        };
        let Some(decided) = self.rules.decide_now(&question) else {
            return self.wait(Waiting::ForStore(question), request);
        };
        match self.rules.conclude(question.tier, decided, &head) {
            Ok(limited) => ResponseFuture::told(self.inner.call(request), self.rules.teller(), limited),
            Err(response) => self.refuse(response),
        }
    }
}

impl<S, I: Clone> RateLimit<S, I> {
    fn refuse<F, B, E>(&mut self, response: Refused) -> ResponseFuture<F, B, E> {
        // What the inner service has set aside when it was ready, such as a permit, is not for those that are denied.
        self.inner = self.inner.clone();
        ResponseFuture::refused(response)
    }
}

impl<S: Store + 'static, I> RateLimit<S, I> {
    /// The same for those that have to wait: for their name, for the store, or to pay afterwards.
    fn wait<Q, B>(&mut self, waiting: Waiting, request: Request<Q>) -> ResponseFuture<I::Future, B, I::Error>
    where
        I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
        I::Future: Send,
        I::Error: Send,
        Q: Send + 'static,
        B: Send + 'static,
    {
        // The one that was polled is ready, its clone may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let rules = Arc::clone(&self.rules);
        // Parted, because only the head may be looked at from several threads.
        let (parts, body) = request.into_parts();
        ResponseFuture::waiting(async move {
            let next = match waiting {
                Waiting::ForName(tier) => {
                    let head = (&parts).into();
                    rules.question(tier, rules.key.find(&head).name().await, &head)
                }
                Waiting::ForStore(question) => Next::Go(question),
            };
            let question = match next {
                Next::Go(question) => question,
                Next::Pass => {
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    return Ok(response.map(ResponseBody::inner));
                }
                Next::Refuse(response) => return Ok((*response).map(ResponseBody::own)),
            };
            let at_ms = rules.limiter.store().clock().now_ms();
            let decided = rules.payment.before(&rules.limiter, question.check()).await;
            let mut limited = match rules.conclude(question.tier.clone(), decided, &(&parts).into()) {
                Ok(limited) => limited,
                Err(response) => return Ok((*response).map(ResponseBody::own)),
            };
            let mut teller = rules.teller();
            let outcome = inner.call(Request::from_parts(parts, body)).await.map(Response::into_parts);
            let before = Before { decision: &limited.decision, at_ms };
            let head = outcome.as_ref().ok().map(|(head, _)| head);
            let settled = rules.payment.after(&rules.limiter, question.check(), before, head).await;
            let (response, body) = outcome?;
            let mut response = Response::from_parts(response, ResponseBody::inner(body));
            match settled {
                Ok(Some(later)) => {
                    limited.decision = later;
                    teller = rules.teller();
                }
                Ok(None) => {}
                Err(error) => drop(response.extensions_mut().insert(Undecided(error))),
            }
            teller.tell(&mut response, limited);
            Ok(response)
        })
    }
}
