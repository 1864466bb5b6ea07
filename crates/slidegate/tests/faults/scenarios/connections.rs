//! Connections that break, that are opened again, or that never get a reply.

use std::time::Duration;

use slidegate::store::StoreLimiter;
use slidegate_testkit::FaultProxy;

use super::{eventually, pause, policy, wait_for_unsent_error, wait_until};
use crate::backend::{Backend, Settings, connect, connect_within};

const BUDGET: Duration = Duration::from_millis(500);

pub(crate) async fn a_dead_server_fails_requests_at_once_and_is_found_after_its_restart<B: Backend>() {
    let server = B::start();
    let limiter = connect::<B>(&server.url()).await;
    let policy = policy("2/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.kill();
    for _ in 0..2 {
        let error = wait_for_unsent_error(&limiter, policy.key("a")).await;
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    }
    server.restart();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
}

pub(crate) async fn connecting_to_a_closed_port_fails_with_the_address<B: Backend>() {
    let server = B::start();
    server.kill();
    let error = B::connect(&server.url(), Settings::default()).await.err().unwrap();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
}

pub(crate) async fn connecting_to_a_stopped_server_times_out<B: Backend>() {
    let server = B::start();
    server.stop();
    let settings = Settings { budget: BUDGET, ..Settings::default() };
    let error = B::connect(&server.url(), settings).await.err().unwrap();
    assert!(error.is_transient() && error.to_string().contains("no connection within"), "{error}");
    server.resume();
}

/// A server that accepts connections but never responds.
pub(crate) async fn a_silent_server_does_not_block_callers<B: Backend>() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = B::url_at(silent.local_addr().unwrap());
    let settings = || Settings { budget: BUDGET, ..Settings::default() };
    let error = B::connect(&url, settings()).await.err().unwrap();
    assert!(error.is_transient(), "{error}");
    // A request that waits for a connection is not sent.
    let limiter = StoreLimiter::new(B::connect_lazily(&url, settings()));
    let error = limiter.check(policy("10/1h").key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
}

/// Connecting takes several round trips, a decision takes one. A store that restarted the attempt after each caller's
/// timeout would never connect.
pub(crate) async fn a_connection_attempt_outlasts_the_budget<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = connect_within::<B>(BUDGET, &B::url_at(proxy.address())).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    // A quarter of the budget each way: a decision takes half of the budget, a connection more than all of it.
    proxy.slow(BUDGET / 4);
    proxy.cut();
    let mut late = 0;
    while late < 20 {
        match limiter.check(policy.key("a")).await {
            Ok(decision) => return assert!(decision.is_allowed()),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                late += u32::from(error.is_late());
            }
        }
        // On a busy machine an attempt may fail. The store then rejects requests at once until the next one.
        pause().await;
    }
    panic!("no connection within 20 budgets");
}

/// A request after an outage has a short budget and decides whether the breaker stays open longer, so the connection
/// must exist before it.
pub(crate) async fn the_store_reconnects_before_the_next_request<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = connect_within::<B>(BUDGET, &B::url_at(proxy.address())).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.refuse_connections();
    proxy.cut();
    wait_for_unsent_error(&limiter, policy.key("a")).await;
    let bytes = proxy.bytes_to_client();
    proxy.pass();
    wait_until("the server sends something, so the store has reconnected", || {
        proxy.bytes_to_client() > bytes
    })
    .await;
}
