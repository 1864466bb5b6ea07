//! The response to come.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use super::body::ResponseBody;
use super::limited::{Limited, Teller};

pin_project! {
    /// The response to come: that of the inner service, with what is told about limits, or a refusal.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        kind: Kind<F, B, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, B, E> {
        Inner { #[pin] future: F, told: Option<(Teller, Limited)> },
        Refused { response: Option<Refused> },
        Waiting { future: Boxed<B, E> },
    }
}

/// Behind a pointer: refusals are few, and all others need not carry the room for one around.
pub(super) type Refused = Box<Response<Bytes>>;

type Boxed<B, E> = Pin<Box<dyn Future<Output = Outcome<B, E>> + Send>>;
type Outcome<B, E> = Result<Response<ResponseBody<B>>, E>;

impl<F, B, E> ResponseFuture<F, B, E> {
    pub(super) fn passed(future: F) -> Self {
        Self { kind: Kind::Inner { future, told: None } }
    }

    pub(super) fn told(future: F, teller: Teller, limited: Limited) -> Self {
        Self { kind: Kind::Inner { future, told: Some((teller, limited)) } }
    }

    pub(super) fn refused(response: Refused) -> Self {
        Self { kind: Kind::Refused { response: Some(response) } }
    }

    pub(super) fn waiting(future: impl Future<Output = Outcome<B, E>> + Send + 'static) -> Self {
        Self { kind: Kind::Waiting { future: Box::pin(future) } }
    }
}

impl<F: Future<Output = Result<Response<B>, E>>, B, E> Future for ResponseFuture<F, B, E> {
    type Output = Outcome<B, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Inner { future, told } => {
                let mut response = ready!(future.poll(context))?;
                if let Some((teller, limited)) = told.take() {
                    teller.tell(&mut response, limited);
                }
                Poll::Ready(Ok(response.map(ResponseBody::inner)))
            }
            KindProjection::Refused { response } => {
                let Some(response) = response.take() else { panic!("polled again after it was over") };
                Poll::Ready(Ok((*response).map(ResponseBody::own)))
            }
            KindProjection::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
