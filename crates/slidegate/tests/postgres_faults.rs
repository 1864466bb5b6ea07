//! Guarantees of the PostgreSQL store when the network fails or the server does not respond.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod within_budget;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{PostgresStore, StoreLimiter};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, StoreError, SystemClock};
use slidegate_testkit::{FaultProxy, PgBouncer, Postgres, until};

const BUDGET: Duration = Duration::from_millis(500);

/// Connects a limiter with a frozen clock, so that nothing expires.
async fn frozen(address: SocketAddr) -> StoreLimiter<PostgresStore> {
    frozen_over(2, address).await
}

async fn frozen_over(connections: usize, address: SocketAddr) -> StoreLimiter<PostgresStore> {
    let url = format!("postgres://postgres@{address}/postgres");
    let builder = PostgresStore::builder(&url).unwrap().budget(BUDGET).connections(connections);
    StoreLimiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Retries until the store decides. All errors before must be transient.
async fn eventually(limiter: &StoreLimiter<PostgresStore>, check: Check<'_>) -> Decision {
    for _ in 0..3000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        // Waits for another process; there is no event to wait for.
        SystemClock::default().sleep(10).await;
    }
    panic!("no decision about {check:?}");
}

async fn used(limiter: &StoreLimiter<PostgresStore>, check: Check<'_>) -> u64 {
    eventually(limiter, check.cost(0)).await.quotas()[0].used
}

#[tokio::test]
async fn a_cut_reply_is_an_error_and_the_request_is_not_resent() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    // With a second connection, which reconnects in the background, the cut could hit its reply.
    let limiter = frozen_over(1, proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    for (cuts, bytes) in [0, 1, 7, 100].into_iter().enumerate() {
        proxy.cut_reply_after(bytes);
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.is_transient() && error.may_have_counted(), "{error}");
        // The server counted the request once; the store did not resend it.
        assert_eq!(used(&limiter, policy.key("a")).await, 2 + cuts as u64, "after {bytes} bytes");
    }
}

#[tokio::test]
async fn a_stopped_server_costs_each_caller_at_most_the_budget() {
    let server = Postgres::start();
    let limiter = frozen(server.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.stop_signal();
    let mut errors = Vec::new();
    for _ in 0..2 {
        let many = [(); 10].map(|()| policy.key("a"));
        // A call without a timeout would hang the test here.
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    server.continue_signal();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
    // Each sent request is counted at most once.
    assert!((1..=23).contains(&used(&limiter, policy.key("a")).await));
}

#[tokio::test]
async fn each_call_ends_within_its_budget() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Postgres::start();
    let connected = frozen(server.address()).await;
    server.stop_signal();
    let lazily = |address: SocketAddr| {
        let url = format!("postgres://postgres@{address}/postgres");
        StoreLimiter::new(PostgresStore::builder(&url).unwrap().budget(BUDGET).connect_lazily().unwrap())
    };
    let limiters = [connected, lazily(server.address()), lazily(silent)];
    within_budget::assert_fails_within(&limiters, BUDGET).await;
}

#[tokio::test]
async fn a_dead_server_fails_requests_at_once_and_is_found_after_its_restart() {
    let server = Postgres::start();
    let limiter = frozen(server.address()).await;
    let policy = policy("2/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.kill();
    while limiter.check(policy.key("a")).await.unwrap_err().may_have_counted() {}
    let error = limiter.check(policy.key("a")).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
    server.restart();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
}

/// Connecting takes several round trips, a decision takes one. A store that restarted the attempt after each caller's
/// timeout would never connect.
#[tokio::test]
async fn a_connection_attempt_outlasts_the_budget() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    // A quarter of the budget each way: a decision takes half of the budget, a connection more than all of it.
    proxy.slow(BUDGET / 4);
    proxy.cut();
    for _ in 0..20 {
        match limiter.check(policy.key("a")).await {
            Ok(decision) => return assert!(decision.is_allowed()),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    panic!("no connection within 20 budgets");
}

/// A request after an outage has a short budget and decides whether the breaker stays open longer, so the connection
/// must exist before it.
#[tokio::test]
async fn the_store_reconnects_before_the_next_request() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.refuse();
    proxy.cut();
    while limiter.check(policy.key("a")).await.unwrap_err().may_have_counted() {}
    let bytes = proxy.bytes_to_client();
    proxy.pass();
    for _ in 0..1000 {
        if proxy.bytes_to_client() > bytes {
            return;
        }
        SystemClock::default().sleep(10).await;
    }
    panic!("the server sent nothing, so the store did not reconnect");
}

#[tokio::test]
async fn connecting_to_a_closed_port_fails_with_the_address() {
    let server = Postgres::start();
    server.kill();
    let error = PostgresStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
}

#[tokio::test]
async fn connecting_to_a_stopped_server_times_out() {
    let server = Postgres::start();
    server.stop_signal();
    let error = PostgresStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("no connection within"), "{error}");
    server.continue_signal();
}

#[tokio::test]
async fn a_cancelled_request_does_not_affect_the_others() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = Arc::new(frozen(proxy.address()).await);
    let policy = Arc::new(policy("1000/1h"));
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.stall();
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
            tokio::spawn(async move { limiter.check(policy.key("a")).await })
        })
        .collect();
    tokio::task::yield_now().await;
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
    assert_eq!(admitted, 25);
    let spent = used(&limiter, policy.key("a")).await;
    assert!((26..=51).contains(&spent), "the remaining requests and possibly some cancelled ones: {spent}");
}

/// No part of a batch waits for the response to another part, in either table, and few keys form one transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_one_round_trip() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20));
    let builder = builder.policy_durable("durable", true);
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let number = |sql: String| server.sql(&sql)[0][0].as_ref().unwrap().parse::<usize>().unwrap();
    for (ephemeral, durable) in [(2, 0), (64, 0), (3, 3), (1000, 0), (500, 500)] {
        proxy.mute();
        let batch = {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let policies = ["api", "durable"].map(|name| Policy::parse(name, ["1000000/1h"]).unwrap());
                let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
                let [ephemeral_policy, durable_policy] = &policies;
                let checks: Vec<_> = keys[..ephemeral].iter().map(|key| ephemeral_policy.key(key)).collect();
                let durable_checks = keys[..durable].iter().map(|key| durable_policy.key(key));
                limiter.check_many(&checks.into_iter().chain(durable_checks).collect::<Vec<_>>()).await
            })
        };
        // All requests are counted, and no response has arrived.
        tokio::task::block_in_place(|| {
            for (table, count) in [("ephemeral", ephemeral), ("durable", durable)] {
                until("all is counted", || match number(format!("SELECT count(*) FROM slidegate.{table}")) {
                    rows if rows == count => Ok(()),
                    rows => Err(format!("{rows} of {count}")),
                });
                let transactions = format!("SELECT count(DISTINCT xmin::text) FROM slidegate.{table}");
                assert_eq!(number(transactions), count.div_ceil(64), "{count} in {table}");
            }
        });
        assert!(!batch.is_finished());
        proxy.pass();
        let decisions = batch.await.unwrap();
        let allowed = decisions.iter().flatten().filter(|decision| decision.is_allowed()).count();
        assert_eq!(allowed, ephemeral + durable);
        let _ = server.sql("TRUNCATE slidegate.ephemeral, slidegate.durable");
    }
}

/// Received responses stay valid when the rest of the batch fails.
#[tokio::test]
async fn a_batch_that_is_cut_keeps_its_received_responses() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen_over(1, proxy.address()).await;
    let policy = policy("1000000/1h");
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    // Responses about existing keys are longer.
    assert!(limiter.check_many(&checks).await.iter().all(Result::is_ok));
    // Enough bytes for the first responses of 64 keys, but not for all.
    proxy.cut_reply_after(10_000);
    let decided = limiter.check_many(&checks).await;
    let answered = decided.iter().filter(|decision| decision.is_ok()).count();
    assert!((64..1000).contains(&answered) && answered % 64 == 0, "{answered}");
    for error in decided.iter().filter_map(|decision| decision.as_ref().err()) {
        assert!(error.may_have_counted(), "{error}");
    }
}

/// A large batch leaves space in the queue for other requests.
#[tokio::test]
async fn a_large_batch_causes_no_rejections() {
    let server = Postgres::start();
    let builder =
        PostgresStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20)).max_waiting(64);
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(Policy::parse("api", ["1000000/1h"]).unwrap());
    let batch = {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        tokio::spawn(async move {
            let keys: Vec<String> = (0..3000).map(|number| format!("k{number}")).collect();
            let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
            limiter.check_many(&checks).await.into_iter().flatten().count()
        })
    };
    while !batch.is_finished() {
        assert!(limiter.check(policy.key("single")).await.unwrap().is_allowed());
    }
    assert_eq!(batch.await.unwrap(), 3000);
}

#[tokio::test]
async fn a_full_queue_rejects_requests_at_once() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(5)).max_waiting(4);
    let limiter = Arc::new(StoreLimiter::new(builder.connections(1).connect().await.unwrap()));
    let policy = Arc::new(policy("1000/1h"));
    proxy.stall();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    // All other requests are queued or in flight.
    for _ in 0..90 {
        let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.is_transient() && !error.may_have_counted(), "{error}");
        assert_eq!(error.to_string(), "postgres: the queue of 4 requests is full; retry later");
    }
    proxy.pass();
    let mut answered = 0;
    while let Some(answer) = callers.join_next().await {
        answered += u64::from(answer.unwrap().is_ok());
    }
    assert!((4..=10).contains(&answered), "{answered} of 100 were queued");
}

/// A pool in transaction mode: no two statements may depend on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_works_behind_a_transaction_pool() {
    let server = Postgres::start();
    let bouncer = PgBouncer::builder().setting("default_pool_size", "2").in_front_of(&server);
    let url = format!("{}?durable=true&sync=on", bouncer.url());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20)).connections(6);
    let clock = ManualClock::at(1_800_000_000_000);
    let limiter = Arc::new(StoreLimiter::new(builder.time_from(clock).connect().await.unwrap()));
    let policy = Arc::new(policy("40/1h"));
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..300 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move {
            let key = number % 3;
            let decision = limiter.check(policy.key(&format!("key {key}"))).await.unwrap();
            (key, decision.is_allowed())
        });
    }
    let mut admitted = [0; 3];
    for (key, is_allowed) in callers.join_all().await {
        admitted[key] += u64::from(is_allowed);
    }
    assert_eq!(admitted, [40; 3]);
    for number in 0..100 {
        let decision = limiter.check(policy.key("one")).await.unwrap();
        assert_eq!(decision.is_allowed(), number < 40);
    }
    let keys: Vec<String> = (0..500).map(|number| format!("of many {number}")).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    for round in 1..=3 {
        for decision in limiter.check_many(&checks).await {
            assert_eq!(decision.unwrap().quotas()[0].used, round);
        }
    }
    // Settings of a call do not leak to the next one.
    for setting in ["statement_timeout", "lock_timeout", "synchronous_commit"] {
        let set = bouncer.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        let default = server.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        assert_eq!(set, default, "{setting}");
    }
}
