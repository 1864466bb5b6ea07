//! Requests in the queue: cancelled, rejected, timed out, and left by a task that panicked.

use std::sync::Arc;
use std::time::Duration;

use slidegate::resilience::Budget;
use slidegate::store::StoreLimiter;
use slidegate_testkit::FaultProxy;
use tokio::task::JoinSet;

use super::{policy, used};
use crate::backend::{Backend, Settings, connect, connect_with};

pub(crate) async fn a_cancelled_request_does_not_affect_the_others<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = Arc::new(connect::<B>(&B::url_at(proxy.address())).await);
    let policy = Arc::new(policy("1000/1h"));
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.stall();
    // At most two calls of 64 are in flight and stall; the other requests are queued.
    let callers: Vec<_> = (0..400)
        .map(|_| {
            let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
            tokio::spawn(async move { limiter.check(policy.key("a")).await })
        })
        .collect();
    // Until all requests are queued.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let mut remaining = Vec::new();
    for (number, caller) in callers.into_iter().enumerate() {
        if number % 2 == 0 {
            caller.abort();
        } else {
            remaining.push(caller);
        }
    }
    proxy.pass();
    let mut admitted = 0;
    for caller in remaining {
        admitted += u64::from(caller.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 200);
    // Of the cancelled requests, at most 64 were in flight and may be counted. The queued ones are not.
    let spent = used(&limiter, policy.key("a")).await;
    assert!((201..=265).contains(&spent), "{spent} of 401");
}

pub(crate) async fn a_full_queue_rejects_requests_at_once<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let budget = Duration::from_secs(5);
    let settings = Settings { budget, max_waiting: Some(4), connections: 1, ..Settings::default() };
    let limiter = Arc::new(connect_with::<B>(&B::url_at(proxy.address()), settings).await);
    let policy = Arc::new(policy("1000/1h"));
    proxy.stall();
    let mut callers = JoinSet::new();
    for _ in 0..100 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    for _ in B::MAX_ACCEPTED..100 {
        let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.is_transient() && !error.may_have_counted(), "{error}");
        let expected = format!("{}: the queue of 4 requests is full; retry later", B::NAME);
        assert_eq!(error.to_string(), expected);
    }
    proxy.pass();
    let mut decided = 0;
    while let Some(response) = callers.join_next().await {
        decided += usize::from(response.unwrap().is_ok());
    }
    assert!((4..=B::MAX_ACCEPTED).contains(&decided), "{decided} of 100 were queued");
}

/// The errors state precisely which requests were sent, also under a budget that is shorter than the store's.
pub(crate) async fn a_request_that_times_out_in_the_queue_is_never_sent<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let store = Arc::new(B::connect(&B::url_at(proxy.address()), Settings::default()).await.unwrap());
    let limiter = StoreLimiter::new(Arc::clone(&store));
    let short = Arc::new(StoreLimiter::new(Budget::new(store, Duration::from_millis(200))));
    let policy = Arc::new(policy("1000/1h"));
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.stall();
    let mut callers = JoinSet::new();
    for _ in 0..400 {
        let (limiter, policy) = (Arc::clone(&short), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    let mut sent = 0;
    while let Some(response) = callers.join_next().await {
        let error = response.unwrap().unwrap_err();
        assert!(error.is_transient() && error.is_late(), "{error}");
        sent += u64::from(error.may_have_counted());
    }
    assert!((1..=128).contains(&sent), "{sent} of 400");
    proxy.pass();
    let spent = used(&limiter, policy.key("a")).await;
    assert!((1..=1 + sent).contains(&spent), "{spent}, and {sent} were sent");
}

pub(crate) async fn a_panicked_task_restarts_and_fails_its_requests_at_once<B: Backend>() {
    let server = B::start();
    let settings = Settings::default();
    let clock = settings.clock.clone();
    let (limiter, policy) = (connect_with::<B>(&server.url(), settings).await, policy("10/1h"));
    for spent in 1..=3 {
        assert_eq!(limiter.check(policy.key("a")).await.unwrap().quotas()[0].used, spent);
        clock.panic_once();
        // At once, not after the budget of 20 s.
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.to_string().contains("broke before the response"), "{error}");
    }
}
