//! Services that are not ready, and requests that are given up. Each of it when the layer decides at once, and when it has
//! to wait for the store or for the key.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use slidegate::degrade::Switch;
use slidegate::tower::{Key, RateLimitLayer, ResponseBody};
use slidegate::{Limiter, ManualClock, MemoryStore, Policy};
use tower::{Layer, Service, ServiceExt};

use crate::rig::{Manual, get};

/// A switch passes everything on, but never at once.
fn layer(quota: &str) -> RateLimitLayer<Switch<Manual>> {
    let store = MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(Limiter::new(Switch::new(store)));
    RateLimitLayer::new(limiter, Policy::parse("api", [quota]).unwrap()).key(Key::path())
}

fn layer_at_once(quota: &str) -> RateLimitLayer<Manual> {
    RateLimitLayer::new(crate::rig::limiter().0, Policy::parse("api", [quota]).unwrap()).key(Key::path())
}

fn asked_for() -> Key {
    Key::by_async(|_| async { Some("somebody") })
}

/// Takes a permit when it is ready, and only on being asked twice; clones have none. Counts those taken and not yet used or
/// given back.
pub(crate) struct Reluctant {
    asked: usize,
    pub(crate) permits: Arc<AtomicUsize>,
    pub(crate) served: Arc<AtomicUsize>,
}

impl Reluctant {
    pub(crate) fn new() -> Self {
        Self { asked: 0, permits: Arc::default(), served: Arc::default() }
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.asked) >= 2 {
            self.permits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Clone for Reluctant {
    fn clone(&self) -> Self {
        Self { asked: 0, permits: Arc::clone(&self.permits), served: Arc::clone(&self.served) }
    }
}

impl Drop for Reluctant {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Service<Request<()>> for Reluctant {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.asked += 1;
        match self.asked {
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
        assert!(self.asked >= 2, "this instance was never ready");
        self.give_back();
        self.served.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::default()))
    }
}

async fn is_respected<L>(layer: L)
where
    L: Layer<Reluctant>,
    L::Service: Service<Request<()>, Response = Response<ResponseBody<Full<Bytes>>>, Error = Infallible>,
{
    let inner = Reluctant::new();
    let (permits, served) = (Arc::clone(&inner.permits), Arc::clone(&inner.served));
    let mut service = layer.layer(inner);
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS] {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
        assert_eq!(permits.load(Ordering::Relaxed), 0, "nobody holds what others need");
    }
    assert_eq!(served.load(Ordering::Relaxed), 1, "not called when denied");
}

#[tokio::test]
async fn a_service_that_is_not_ready_is_waited_for() {
    is_respected(layer_at_once("1/1m fixed-window")).await;
    is_respected(layer_at_once("1/1m fixed-window").key(asked_for())).await;
    is_respected(layer("1/1m fixed-window")).await;
}

/// Never answers, and holds something meanwhile.
#[derive(Clone)]
struct Endless(Arc<()>);

impl Service<Request<()>> for Endless {
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

async fn leaves_nothing<L>(layer: L)
where
    L: Layer<Endless>,
    L::Service: Service<Request<()>, Error = Infallible> + Clone,
{
    let held = Arc::new(());
    let service = layer.layer(Endless(Arc::clone(&held)));
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
async fn a_request_that_is_dropped_leaves_nothing_behind() {
    leaves_nothing(layer_at_once("10/1m fixed-window")).await;
    leaves_nothing(layer_at_once("10/1m fixed-window").key(asked_for())).await;
    leaves_nothing(layer("10/1m fixed-window").refund_if(|_| true)).await;
}
