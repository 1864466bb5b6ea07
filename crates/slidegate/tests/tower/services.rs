//! Limited services and their responses.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use slidegate::ManualClock;
use slidegate::store::{MemoryStore, Store, StoreLimiter};
use slidegate::tower::{RateLimit, RateLimitLayer};
use tower::{Layer, Service, ServiceExt};

pub(crate) type Manual = MemoryStore<ManualClock>;

/// Returns a memory limiter at the start of a minute, and its clock.
pub(crate) fn limiter() -> (Arc<StoreLimiter<Manual>>, ManualClock) {
    let clock = ManualClock::at(1_800_000_000_000);
    let store = MemoryStore::builder().max_keys(1000).clock(clock.clone()).build().unwrap();
    (Arc::new(StoreLimiter::new(store)), clock)
}

/// Responds with the status named by the path, else 200.
pub(crate) async fn serve<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = request.uri().path().trim_start_matches('/').parse().ok();
    let mut response = Response::new(Full::from("served"));
    *response.status_mut() =
        status.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::OK);
    Ok(response)
}

/// Sends a request and returns the response with its body as text.
pub(crate) async fn send<S, I, B>(service: &RateLimit<S, I>, request: Request<()>) -> Response<String>
where
    S: Store + 'static,
    I: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = service.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

/// Wraps [`serve`] in the layer.
#[allow(clippy::needless_pass_by_value, reason = "each call site builds its own layer")]
pub(crate) fn over<S: Store + 'static>(
    layer: RateLimitLayer<S>,
) -> RateLimit<
    S,
    impl Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static,
> {
    layer.layer(tower::service_fn(serve::<()>))
}
