//! Timeouts of gRPC requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use futures_util::StreamExt;
use metrics::counter;
use slidegate_engine::RejectionKind;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::net::timer;

/// Counts a message that tonic rejected before it called the service. No service returns these two codes.
fn count_decoding_error(response: &Response<Body>) {
    match Status::from_header_map(response.headers()).map(|status| status.code()) {
        Some(Code::Internal) => count_rejection(RejectionKind::Malformed),
        Some(Code::OutOfRange) => count_rejection(RejectionKind::TooLarge),
        _ => {}
    }
}

fn count_rejection(kind: RejectionKind) {
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}

/// Service with a timeout for the stream of requests. The stream ends at the timeout, and with it the stream of responses.
#[derive(Clone, Debug)]
pub(super) struct StreamTimeout<S> {
    service: S,
    timeout: Duration,
}

impl<S> StreamTimeout<S> {
    pub(super) fn new(service: S, timeout: Duration) -> Self {
        Self { service, timeout }
    }
}

impl<S: NamedService> NamedService for StreamTimeout<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for StreamTimeout<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let end = timer(self.timeout);
        let limited = |body| axum::body::Body::new(body).into_data_stream().take_until(end);
        self.service.call(request.map(|body| Body::new(axum::body::Body::from_stream(limited(body)))))
    }
}

/// Service with a timeout for each response, such as for one whose request body is incomplete.
#[derive(Clone, Debug)]
pub(super) struct ResponseTimeout<S> {
    service: S,
    timeout: Duration,
}

impl<S> ResponseTimeout<S> {
    pub(super) fn new(service: S, timeout: Duration) -> Self {
        Self { service, timeout }
    }
}

impl<S: NamedService> NamedService for ResponseTimeout<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for ResponseTimeout<S>
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
        let (response, timeout) = (self.service.call(request), self.timeout);
        Box::pin(async move {
            match tokio::time::timeout(timeout, response).await {
                Ok(response) => response.inspect(count_decoding_error),
                Err(_) => {
                    count_rejection(RejectionKind::TooSlow);
                    let message = format!("the request was not complete within {timeout:?}");
                    Ok(Status::deadline_exceeded(message).into_http())
                }
            }
        })
    }
}
