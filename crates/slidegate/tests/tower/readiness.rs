//! Services that are not ready, and cancelled requests: with an immediate decision, and with a wait for the store or
//! for the key.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use slidegate::resilience::Switch;
use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::tower::{Key, RateLimitLayer, ResponseBody};
use slidegate::{ManualClock, Policy};
use tower::{Layer, Service, ServiceExt};

use crate::services::{Manual, get};

/// Returns a layer over a switch, which never decides at once.
fn layer(quota: &str) -> RateLimitLayer<Switch<Manual>> {
    let store = MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(StoreLimiter::new(Switch::new(store)));
    RateLimitLayer::over(limiter, Policy::parse("api", [quota]).unwrap()).key(Key::path())
}

fn layer_at_once(quota: &str) -> RateLimitLayer<Manual> {
    RateLimitLayer::over(crate::services::limiter().0, Policy::parse("api", [quota]).unwrap())
        .key(Key::path())
}

fn async_key() -> Key {
    Key::by_async(|_| async { Some("key") })
}

/// A service that takes a permit on the second poll of readiness, as tower's concurrency limit does. Clones hold no
/// permit. `permits` counts those taken but not yet used or returned.
pub(crate) struct ReadyOnSecondPoll {
    polls: usize,
    pub(crate) permits: Arc<AtomicUsize>,
    pub(crate) served: Arc<AtomicUsize>,
}

impl ReadyOnSecondPoll {
    pub(crate) fn new() -> Self {
        Self { polls: 0, permits: Arc::default(), served: Arc::default() }
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.polls) >= 2 {
            self.permits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Clone for ReadyOnSecondPoll {
    fn clone(&self) -> Self {
        Self { polls: 0, permits: Arc::clone(&self.permits), served: Arc::clone(&self.served) }
    }
}

impl Drop for ReadyOnSecondPoll {
    fn drop(&mut self) {
        self.release();
    }
}

impl Service<Request<()>> for ReadyOnSecondPoll {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.polls += 1;
        match self.polls {
            1 => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            2 => self.permits.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(self.polls >= 2, "this instance was never ready");
        self.release();
        self.served.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::default()))
    }
}

async fn check_readiness<L>(layer: L)
where
    L: Layer<ReadyOnSecondPoll>,
    L::Service: Service<Request<()>, Response = Response<ResponseBody<Full<Bytes>>>, Error = Infallible>,
{
    let inner = ReadyOnSecondPoll::new();
    let (permits, served) = (Arc::clone(&inner.permits), Arc::clone(&inner.served));
    let mut service = layer.layer(inner);
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS] {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
        assert_eq!(permits.load(Ordering::Relaxed), 0, "the permit is released");
    }
    assert_eq!(served.load(Ordering::Relaxed), 1, "not called when denied");
}

#[tokio::test]
async fn the_layer_waits_until_the_service_is_ready() {
    check_readiness(layer_at_once("1/1m fixed-window")).await;
    check_readiness(layer_at_once("1/1m fixed-window").key(async_key())).await;
    check_readiness(layer("1/1m fixed-window")).await;
}

/// A service that never responds and holds a reference meanwhile.
#[derive(Clone)]
struct PendingService(Arc<()>);

impl Service<Request<()>> for PendingService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let held = Arc::clone(&self.0);
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(Response::default())
        })
    }
}

async fn check_no_leak<L>(layer: L)
where
    L: Layer<PendingService>,
    L::Service: Service<Request<()>, Error = Infallible> + Clone,
{
    let held = Arc::new(());
    let service = layer.layer(PendingService(Arc::clone(&held)));
    let before = Arc::strong_count(&held);
    for _ in 0..5 {
        let mut future = Box::pin(service.clone().oneshot(get("/")));
        let is_pending =
            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await;
        assert!(is_pending && Arc::strong_count(&held) > before);
        drop(future);
        assert_eq!(Arc::strong_count(&held), before);
    }
}

#[tokio::test]
async fn a_dropped_request_releases_its_resources() {
    check_no_leak(layer_at_once("10/1m fixed-window")).await;
    check_no_leak(layer_at_once("10/1m fixed-window").key(async_key())).await;
    check_no_leak(layer("10/1m fixed-window").refund_if(|_| true)).await;
}
