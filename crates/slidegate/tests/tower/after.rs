//! Counting after the response.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode, response};
use http_body_util::Full;
use slidegate::resilience::{Mode, Switch};
use slidegate::store::{MemoryStore, Operation, Responses, Store, StoreLayer, StoreLimiter};
use slidegate::tower::{Key, Limited, RateLimitLayer, Undecided};
use slidegate::{ManualClock, Policy, StoreError, Verb};
use tower::{Layer, ServiceExt};

use crate::services::{Manual, get, header, limiter, over, send};

fn policy(quotas: &[&str]) -> Policy {
    Policy::parse("api", quotas.iter().copied()).unwrap()
}

fn layer<S: Store>(limiter: &Arc<StoreLimiter<S>>, quotas: &[&str]) -> RateLimitLayer<S> {
    RateLimitLayer::over(Arc::clone(limiter), policy(quotas)).key(Key::method())
}

async fn used(limiter: &StoreLimiter<Manual>, quotas: &[&str]) -> u64 {
    limiter.peek(policy(quotas).key("GET")).await.unwrap().quotas().last().unwrap().used
}

fn is_server_error(response: &response::Parts) -> bool {
    response.status.is_server_error()
}

/// Fails after the milliseconds named by the path, after another caller spent one unit of the same key.
async fn fail_late(
    request: Request<()>,
    limiter: Arc<StoreLimiter<Manual>>,
    clock: ManualClock,
    policy: Policy,
) -> Result<Response<Full<Bytes>>, Infallible> {
    clock.advance(request.uri().path().trim_start_matches('/').parse().unwrap());
    assert!(limiter.check(policy.key("GET")).await.unwrap().is_allowed());
    Ok(Response::builder().status(StatusCode::GATEWAY_TIMEOUT).body(Full::default()).unwrap())
}

#[tokio::test]
async fn an_expired_unit_is_not_refunded() {
    let windows = [999, 1000, 30_000];
    let table: [(&[&str], [u64; 3]); 6] = [
        (&["10/1s"], windows),
        (&["10/1s strict-window"], windows),
        (&["10/1s sliding-log"], windows),
        (&["10/1s fixed-window"], windows),
        // The shortest window decides.
        (&["100/1m", "10/1s sliding-log"], windows),
        // A spent token returns after a tenth of the window.
        (&["10/1s token-bucket"], [99, 100, 30_000]),
    ];
    for (quotas, [in_time_ms, late_ms, later_ms]) in table {
        for (after_ms, is_late) in [(0, false), (in_time_ms, false), (late_ms, true), (later_ms, true)] {
            for is_settled in [false, true] {
                let (limiter, clock) = limiter();
                let layer = layer(&limiter, quotas);
                let layer =
                    if is_settled { layer.cost_after(|_| 0) } else { layer.refund_if(is_server_error) };
                let inner = (Arc::clone(&limiter), clock, policy(quotas));
                let service = layer.layer(tower::service_fn(move |request| {
                    let (limiter, clock, policy) = inner.clone();
                    fail_late(request, limiter, clock, policy)
                }));
                let response = send(&service, get(&format!("/{after_ms}"))).await;
                assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
                let used = used(&limiter, quotas).await;
                let is_correct = if is_late { used >= 1 } else { used == 1 };
                assert!(is_correct, "{quotas:?} after {after_ms} ms: {used}");
            }
        }
    }
}

fn has_failed(response: &response::Parts) -> bool {
    response.status == StatusCode::UNAUTHORIZED
}

#[tokio::test]
async fn concurrent_attempts_are_bounded_by_the_failure_limit() {
    let (limiter, _) = limiter();
    let quotas = ["5/1m sliding-log"];
    let (responses, _) = tokio::sync::broadcast::channel::<u16>(1);
    let inner = responses.clone();
    let service = layer(&limiter, &quotas).count_only_if(has_failed).layer(tower::service_fn(move |_| {
        let mut response = inner.subscribe();
        async move {
            let status = response.recv().await.unwrap();
            Ok::<_, Infallible>(Response::builder().status(status).body(Full::<Bytes>::default()).unwrap())
        }
    }));
    for (status, counted) in [(200, 0), (401, 5)] {
        let tasks: Vec<_> = (0..500)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move { send(&service, get("/")).await.status().as_u16() })
            })
            .collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks.iter().filter(|task| !task.is_finished()).count(), 5, "in flight");
        responses.send(status).unwrap();
        let mut tried = 0;
        for task in tasks {
            tried += usize::from(task.await.unwrap() == status);
        }
        assert_eq!((tried, used(&limiter, &quotas).await), (5, counted), "{status}");
    }
}

#[tokio::test]
async fn a_cancelled_attempt_stays_counted() {
    let (limiter, _) = limiter();
    let quotas = ["5/1m sliding-log"];
    let service =
        layer(&limiter, &quotas).count_only_if(has_failed).layer(tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
    let mut cancelled = Box::pin(service.oneshot(get("/")));
    let is_pending = |context: &mut Context<'_>| Poll::Ready(cancelled.as_mut().poll(context).is_pending());
    assert!(std::future::poll_fn(is_pending).await);
    drop(cancelled);
    assert_eq!(used(&limiter, &quotas).await, 1);
}

#[tokio::test]
async fn a_free_request_is_denied_at_the_limit() {
    let (limiter, clock) = limiter();
    let quotas = ["10/1m fixed-window"];
    let free = || layer(&limiter, &quotas).cost(|_| 0);
    let tokens = over(free().cost_after(|_| 7));
    for left in [3, 0] {
        let response = send(&tokens, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(header(&response, "ratelimit").unwrap().contains(&format!("r={left};")));
    }
    let counting = over(free().count_only_if(|_| true));
    for service in [&tokens, &over(free().cost_after(|_| 0))] {
        let denied = send(service, get("/")).await;
        assert_eq!(
            (denied.status(), header(&denied, "retry-after")),
            (StatusCode::TOO_MANY_REQUESTS, Some("60"))
        );
    }
    assert_eq!(send(&counting, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    clock.advance(60_000);
    assert_eq!(send(&counting, get("/")).await.status(), StatusCode::OK);
    assert_eq!(used(&limiter, &quotas).await, 0, "the request is free");
}

#[tokio::test]
async fn shadow_mode_refunds_only_what_was_spent() {
    let quotas = ["3/1m fixed-window"];
    let used = async |limiter: &StoreLimiter<Switch<Manual>>| {
        limiter.peek(policy(&quotas).key("GET")).await.unwrap().quotas()[0].used
    };
    for is_settled in [false, true] {
        let store = MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
        let limiter = Arc::new(StoreLimiter::new(Switch::new(store)));
        let layer = layer(&limiter, &quotas);
        let service = over(if is_settled {
            layer.cost_after(|response| u64::from(!is_server_error(response)))
        } else {
            layer.refund_if(is_server_error)
        });
        let serve = async |path| assert!(send(&service, get(path)).await.status() != 429, "{path}");
        limiter.store().update("api", |switch| switch.mode = Mode::Shadow);
        for (path, counted) in [("/", 1), ("/500", 1), ("/", 2), ("/", 3), ("/500", 3), ("/500", 3)] {
            serve(path).await;
            assert_eq!(used(&limiter).await, counted, "{path}");
        }
        // A denial by the candidate does not prevent a refund.
        limiter.store().update("api", |switch| {
            switch.mode = Mode::default();
            switch.set_candidate("api", ["1/1m fixed-window"].map(|quota| quota.parse().unwrap())).unwrap();
        });
        let _ = limiter.reset(policy(&quotas).key("GET")).await.unwrap();
        for (path, counted) in [("/", 1), ("/", 2), ("/500", 2)] {
            serve(path).await;
            assert_eq!(used(&limiter).await, counted, "{path}");
        }
    }
}

/// A store on which another caller spends one unit after each denial.
struct ContendedStore(Manual);

impl StoreLayer for ContendedStore {
    type Inner = Manual;

    fn inner(&self) -> &Manual {
        &self.0
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let decide = |operation: &Operation<'_>| {
            let decision = self.0.execute_now(*operation)?;
            if !decision.is_allowed() {
                let check = operation.check.cost(1);
                let _ = self.0.execute_now(Operation::new(Verb::Check, check))?;
            }
            Ok(decision)
        };
        operations.iter().map(decide).collect()
    }

    fn is_immediate(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_served_request_is_not_denied_afterwards() {
    for limit in [3, 4, 10, 100] {
        let store = MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
        let limiter = Arc::new(StoreLimiter::new(ContendedStore(store)));
        let layer = layer(&limiter, &[&format!("{limit}/1m fixed-window")]).cost_after(|_| 99);
        let response = send(&over(layer.record_all()), get("/")).await;
        assert_eq!((response.status(), header(&response, "retry-after")), (StatusCode::OK, None), "{limit}");
        assert!(response.extensions().get::<Limited>().unwrap().decision.is_allowed(), "{limit}");
    }
}

#[tokio::test]
async fn the_tightest_of_several_quotas_bounds_the_charge() {
    let (limiter, _) = limiter();
    let quotas = ["10/1s fixed-window", "1000/1d fixed-window"];
    let response = send(&over(layer(&limiter, &quotas).cost_after(|_| 500)), get("/")).await;
    assert_eq!(header(&response, "ratelimit").unwrap().split(";t").next(), Some(r#""10/1s";r=0"#));
    assert_eq!(used(&limiter, &quotas).await, 10);
}

#[tokio::test]
async fn a_failure_without_a_response_costs_nothing() {
    let quotas = ["5/1m sliding-log"];
    for (late_ms, [refunded, settled, tried]) in [(0, [0, 0, 2]), (60_000, [1, 1, 1])] {
        let counted = async |change: fn(RateLimitLayer<Manual>) -> RateLimitLayer<Manual>| {
            let (limiter, clock) = limiter();
            let service = change(layer(&limiter, &quotas).cost(|_| 2)).layer({
                let limiter = Arc::clone(&limiter);
                tower::service_fn(move |_: Request<()>| {
                    let (limiter, clock) = (Arc::clone(&limiter), clock.clone());
                    async move {
                        clock.advance(late_ms);
                        if late_ms > 0 {
                            let _ = limiter.check(policy(&quotas).key("GET")).await.unwrap();
                        }
                        Err::<Response<Full<Bytes>>, _>("broken")
                    }
                })
            });
            assert_eq!(service.oneshot(get("/")).await.unwrap_err(), "broken");
            used(&limiter, &quotas).await
        };
        assert_eq!(counted(|layer| layer.refund_if(is_server_error)).await, refunded);
        assert_eq!(counted(|layer| layer.cost_after(|_| 9)).await, settled);
        assert_eq!(counted(|layer| layer.count_only_if(has_failed)).await, tried);
    }
}

/// The example of the guide `docs/tower.md`.
#[tokio::test]
async fn a_grpc_failure_can_be_refunded() {
    let (limiter, _) = limiter();
    let quotas = ["5/1m sliding-log"];
    let is_internal_error = |response: &response::Parts| {
        let status = response.headers.get("grpc-status").map(http::HeaderValue::as_bytes);
        matches!(status, Some(b"2" | b"13" | b"14"))
    };
    let service = layer(&limiter, &quotas).refund_if(is_internal_error).layer(tower::service_fn(
        async |request: Request<()>| {
            let status = request.uri().path().trim_start_matches('/').to_owned();
            let response = Response::builder().header("grpc-status", status);
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
        },
    ));
    for (status, counted) in [("/14", 0), ("/5", 1), ("/13", 1)] {
        send(&service, get(status)).await;
        assert_eq!(used(&limiter, &quotas).await, counted, "{status}");
    }
}

/// A store that counts but fails refunds.
struct RefundlessStore(Manual);

impl StoreLayer for RefundlessStore {
    type Inner = Manual;

    fn inner(&self) -> &Manual {
        &self.0
    }

    async fn apply(&self, operations: &[Operation<'_>]) -> Responses {
        let decide = |operation: &Operation<'_>| match operation.verb {
            Verb::Refund => Err(StoreError::transient("away")),
            _ => self.0.execute_now(*operation),
        };
        operations.iter().map(decide).collect()
    }

    fn is_immediate(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_failed_refund_is_recorded_in_the_extensions() {
    let store = MemoryStore::builder().clock(ManualClock::at(0)).build().unwrap();
    let limiter = Arc::new(StoreLimiter::new(RefundlessStore(store)));
    let service = over(layer(&limiter, &["5/1m fixed-window"]).refund_if(is_server_error));
    let response = send(&service, get("/500")).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(header(&response, "ratelimit").unwrap().contains("r=4;"), "without the refund");
    assert!(response.extensions().get::<Undecided>().is_some());
    assert!(send(&service, get("/")).await.extensions().get::<Undecided>().is_none());
}
