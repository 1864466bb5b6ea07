//! Time that a call takes at most.

use std::time::Duration;

use slidegate::StoreError;
use slidegate::store::StoreLimiter;

use super::{eventually, policy, used};
use crate::backend::{Backend, Settings, connect_within};

const BUDGET: Duration = Duration::from_millis(200);

pub(crate) async fn a_stopped_server_costs_each_caller_at_most_the_budget<B: Backend>() {
    let server = B::start();
    let limiter = connect_within::<B>(BUDGET, &server.url()).await;
    let policy = policy("1000/1h");
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    server.stop();
    // Some requests in flight, some queued, some after the connection was closed.
    let mut errors = Vec::new();
    for _ in 0..3 {
        let many = [(); 10].map(|()| policy.key("a"));
        // A call without a timeout would hang the test here.
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    server.resume();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
    // Each sent request is counted at most once.
    let sent = errors.iter().filter(|error| error.may_have_counted()).count() as u64;
    let spent = used(&limiter, policy.key("a")).await;
    assert!((1..=1 + sent).contains(&spent), "{spent}, and {sent} were sent");
}

/// No call exceeds its budget. Uses the runtime's paused clock, which advances only while all tasks are idle, so the
/// result does not depend on the machine's speed.
#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which is paused")]
pub(crate) async fn each_call_ends_within_its_budget<B: Backend>() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = B::start();
    let mut limiters = vec![connect_within::<B>(BUDGET, &server.url()).await];
    server.stop();
    for url in [server.url()].into_iter().chain(B::urls_of_topologies(silent.local_addr().unwrap())) {
        let settings = Settings { budget: BUDGET, ..Settings::default() };
        limiters.push(StoreLimiter::new(B::connect_lazily(&url, settings)));
    }
    let policy = policy("1000/1h");
    let check = policy.key("a");
    tokio::time::pause();
    for (number, limiter) in limiters.iter().enumerate() {
        for round in 0..3 {
            let start = tokio::time::Instant::now();
            let errors = match round {
                0 => vec![limiter.check(check).await.map(drop).unwrap_err()],
                1 => limiter.check_many(&[check; 100]).await.into_iter().map(Result::unwrap_err).collect(),
                _ => vec![limiter.refund(check).await.map(drop).unwrap_err()],
            };
            // Timers have a resolution of 1 ms.
            let took = start.elapsed();
            assert!(took <= BUDGET + Duration::from_millis(1), "{number}, {round}: {took:?}");
            assert!(errors.iter().all(StoreError::is_transient), "{number}, {round}: {errors:?}");
        }
    }
}
