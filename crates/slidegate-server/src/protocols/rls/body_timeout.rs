//! A request whose body does not come, or does not end, is not waited for without end.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use futures_util::StreamExt;
use metrics::counter;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::request::RejectionKind;
use crate::timer::timer;

/// Messages that cannot be read are refused before anybody sees them, with codes that nobody else here answers with.
fn count_unread(response: &Response<Body>) {
    match Status::from_header_map(response.headers()).map(|status| status.code()) {
        Some(Code::Internal) => count(RejectionKind::Malformed),
        Some(Code::OutOfRange) => count(RejectionKind::TooLarge),
        _ => {}
    }
}

fn count(kind: RejectionKind) {
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}

/// A service whose callers may go on asking while it answers, but no longer than `patience` lasts: then their stream
/// ends for it, and so do its answers.
#[derive(Clone, Debug)]
pub(super) struct Brief<S> {
    service: S,
    patience: Duration,
}

impl<S> Brief<S> {
    pub(super) fn new(service: S, patience: Duration) -> Self {
        Self { service, patience }
    }
}

impl<S: NamedService> NamedService for Brief<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Brief<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let end = timer(self.patience);
        let brief = |body| axum::body::Body::new(body).into_data_stream().take_until(end);
        self.service.call(request.map(|body| Body::new(axum::body::Body::from_stream(brief(body)))))
    }
}

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
                Ok(response) => response.inspect(count_unread),
                Err(_) => {
                    count(RejectionKind::TooSlow);
                    let message = format!("the request was not complete within {patience:?}");
                    Ok(Status::deadline_exceeded(message).into_http())
                }
            }
        })
    }
}
