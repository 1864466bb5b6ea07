//! Response future of the layer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;

use super::body::ResponseBody;
use super::limited::Annotation;

pin_project! {
    /// Future of a response: the inner service's with rate-limit headers, or a refusal.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        kind: Kind<F, B, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, B, E> {
        Inner { #[pin] future: F, annotation: Option<Annotation> },
        Refused { response: Option<BoxedRefusal> },
        Waiting { future: Boxed<B, E> },
    }
}

/// Boxed, because refusals are rare and all other futures would carry their size.
pub(super) type BoxedRefusal = Box<Response<Bytes>>;

type Boxed<B, E> = Pin<Box<dyn Future<Output = Outcome<B, E>> + Send>>;
type Outcome<B, E> = Result<Response<ResponseBody<B>>, E>;

impl<F, B, E> ResponseFuture<F, B, E> {
    /// Future of the inner service's response. Takes a function, so that its future is created in place and not moved.
    #[inline(always)]
    pub(super) fn served(annotation: Option<Annotation>, serve: impl FnOnce() -> F) -> Self {
        Self { kind: Kind::Inner { annotation, future: serve() } }
    }

    pub(super) fn refused(response: BoxedRefusal) -> Self {
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
            KindProjection::Inner { future, annotation } => {
                let mut response = ready!(future.poll(context))?;
                if let Some(annotation) = annotation.take() {
                    annotation.apply(&mut response);
                }
                Poll::Ready(Ok(response.map(ResponseBody::inner)))
            }
            KindProjection::Refused { response } => {
                let Some(response) = response.take() else { panic!("polled after completion") };
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
