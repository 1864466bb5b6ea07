//! A request whose body does not come is not waited for without end.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// A service that answers in time, or is given up.
#[derive(Clone, Debug)]
pub(super) struct Patient<S> {
    service: S,
    patience: Duration,
}

impl<S> Patient<S> {
    pub(super) fn new(service: S, patience: Duration) -> Self {
        Self { service, patience }
    }
}

impl<S: NamedService> NamedService for Patient<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Patient<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (answered, patience) = (self.service.call(request), self.patience);
        Box::pin(async move {
            match tokio::time::timeout(patience, answered).await {
                Ok(response) => response,
                Err(_) => {
                    let message = format!("the request was not complete within {patience:?}");
                    Ok(Status::deadline_exceeded(message).into_http())
                }
            }
        })
    }
}
