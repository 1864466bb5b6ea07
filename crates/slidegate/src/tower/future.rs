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
    /// Future of a response: the inner service's with rate-limit headers, or the response of the layer to a request that is
    /// not allowed.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, B, E> {
        // A field of its own and not one of an enum, which would be built elsewhere and moved here.
        #[pin]
        inner: Option<F>,
        own: Own<B, E>,
    }
}

/// Part of the layer in a response.
enum Own<B, E> {
    /// Annotation of the inner service's response.
    Annotation(Option<Annotation>),
    Response(Option<OwnResponse>),
    Waiting(Boxed<B, E>),
}

/// Boxed, because such responses are rare and all other futures would carry their size.
pub(super) type OwnResponse = Box<Response<Bytes>>;

type Boxed<B, E> = Pin<Box<dyn Future<Output = Outcome<B, E>> + Send>>;
type Outcome<B, E> = Result<Response<ResponseBody<B>>, E>;

impl<F, B, E> ResponseFuture<F, B, E> {
    #[inline]
    pub(super) fn served(inner: F, annotation: Option<Annotation>) -> Self {
        Self { inner: Some(inner), own: Own::Annotation(annotation) }
    }

    pub(super) fn own(response: OwnResponse) -> Self {
        Self { inner: None, own: Own::Response(Some(response)) }
    }

    pub(super) fn waiting(future: impl Future<Output = Outcome<B, E>> + Send + 'static) -> Self {
        Self { inner: None, own: Own::Waiting(Box::pin(future)) }
    }
}

impl<F: Future<Output = Result<Response<B>, E>>, B, E> Future for ResponseFuture<F, B, E> {
    type Output = Outcome<B, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match (this.inner.as_pin_mut(), this.own) {
            (Some(inner), own) => {
                let mut response = ready!(inner.poll(context))?;
                if let Own::Annotation(annotation) = own
                    && let Some(annotation) = annotation.take()
                {
                    annotation.apply(&mut response);
                }
                Poll::Ready(Ok(response.map(ResponseBody::inner)))
            }
            (None, Own::Waiting(future)) => future.as_mut().poll(context),
            (None, Own::Response(response)) => {
                let Some(response) = response.take() else { panic!("polled after completion") };
                Poll::Ready(Ok((*response).map(ResponseBody::own)))
            }
            (None, Own::Annotation(_)) => unreachable!("only for a response of the inner service"),
        }
    }
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
