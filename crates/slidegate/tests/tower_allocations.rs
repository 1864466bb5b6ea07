//! Number of allocations that the layer adds to a request over the memory store.

#![cfg(feature = "axum")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use slidegate::tower::{HeaderStyle, PeerAddress, RateLimitLayer};
use slidegate::{Limiter, ManualClock};
use tower::{Layer, Service, service_fn};

/// Responds with a header, so that the map of headers is already allocated.
fn serve(_: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    ready(Ok(response))
}

/// Counts the allocations from the call of a service to the end of its response, without those of the request.
fn allocations<B>(
    service: &mut impl Service<Request<()>, Response = Response<B>, Error = Infallible>,
) -> u64 {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddress(SocketAddr::from(([192, 0, 2, 1], 50_000))));
    let mut context = Context::from_waker(Waker::noop());
    let counted = allocation_counter::measure(|| {
        let Poll::Ready(response) = pin!(service.call(request)).poll(&mut context) else {
            panic!("a memory store never waits");
        };
        drop(response);
    });
    counted.count_total
}

#[test]
fn an_allowed_request_allocates_only_header_values() {
    let without_layer = allocations(&mut service_fn(serve));
    for (style, quotas, added) in [
        // The value of `ratelimit`; that of `ratelimit-policy` is shared.
        (HeaderStyle::Draft, &["100/1m"][..], 1),
        // The reports of two quotas: collected, then stored in the decision.
        (HeaderStyle::Draft, &["100/1m", "1000/1h"], 3),
        (HeaderStyle::LegacyEpoch, &["100/1m"], 3),
        (HeaderStyle::LegacyDelta, &["100/1m"], 3),
        (HeaderStyle::None, &["100/1m"], 0),
    ] {
        let clock = ManualClock::at(1_800_000_000_000);
        let api = Limiter::builder("api").quotas(quotas.iter().copied()).clock(clock).in_memory().unwrap();
        let mut service = RateLimitLayer::new(api).headers(style).layer(service_fn(serve));
        // The first request of a key creates its counter.
        allocations(&mut service);
        for request in 2..20 {
            let allocated = allocations(&mut service) - without_layer;
            assert_eq!(allocated, added, "{style:?} {quotas:?}, request {request}");
        }
    }
}
