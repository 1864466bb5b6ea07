//! Guarantees of the Redis store under faults, each with a real server.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../within_budget/mod.rs"]
mod within_budget;

mod failover;
mod scripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slidegate::store::{RedisStore, StoreLimiter};
use slidegate::{Check, Decision, ManualClock, Policy, StoreError};
use slidegate_testkit::{FaultProxy, Flavour, Replica, Sentinels, Server, until};

/// Budget of the tests that exceed it.
const BUDGET: Duration = Duration::from_millis(200);

/// Connects a limiter with a frozen clock, so that nothing expires, and a budget for busy machines.
async fn frozen(url: &str) -> StoreLimiter<RedisStore> {
    frozen_within(Duration::from_secs(20), url).await
}

async fn frozen_within(budget: Duration, url: &str) -> StoreLimiter<RedisStore> {
    let builder = RedisStore::builder(url).unwrap().budget(budget);
    StoreLimiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Retries until the store decides. All errors before must be transient.
async fn eventually(limiter: &StoreLimiter<RedisStore>, check: Check<'_>) -> Decision {
    for _ in 0..3000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        pause().await;
    }
    panic!("no decision about {check:?}");
}

/// Retries until an error reports that the request was not sent.
async fn wait_for_unsent_error(limiter: &StoreLimiter<RedisStore>, check: Check<'_>) -> StoreError {
    for _ in 0..100 {
        let error = limiter.check(check).await.unwrap_err();
        if !error.may_have_counted() {
            return error;
        }
    }
    panic!("each request was sent");
}

/// Waits for another process; there is no event to wait for.
async fn pause() {
    use slidegate::{Clock, SystemClock};
    SystemClock::default().sleep(10).await;
}

async fn used(limiter: &StoreLimiter<RedisStore>, check: Check<'_>) -> u64 {
    limiter.peek(check).await.unwrap().quotas()[0].used
}

#[tokio::test]
async fn a_cut_reply_is_an_error_and_the_request_is_not_resent() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    for (cuts, bytes) in [0, 1, 7, 20].into_iter().enumerate() {
        proxy.cut_reply_after(bytes);
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.is_transient() && error.may_have_counted(), "{error}");
        // The server counted the request once; the store did not resend it.
        let decision = eventually(&limiter, policy.key("a").cost(0)).await;
        assert_eq!(decision.quotas()[0].used, 2 + cuts as u64, "after {bytes} bytes");
    }
}

#[tokio::test]
async fn an_idle_connection_that_is_cut_is_replaced_before_the_next_request() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000/1h");
    for spent in 1..=3 {
        let decision = limiter.check(policy.key("a")).await.unwrap();
        assert_eq!(decision.quotas()[0].used, spent);
        let connections = proxy.connections();
        proxy.cut();
        while proxy.connections() == connections {
            pause().await;
        }
    }
}

#[tokio::test]
async fn a_stopped_server_costs_each_caller_at_most_the_budget() {
    let server = Server::start(Flavour::Redis);
    let limiter = Arc::new(frozen_within(BUDGET, &server.url()).await);
    let policy = policy("1000/1h");
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    server.stop_signal();
    // Some requests in flight, some queued, some after the connection was closed.
    let mut errors = Vec::new();
    for _ in 0..3 {
        let many = [(); 10].map(|()| policy.key("a"));
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    // The store knows now that the server is unreachable and fails without a round trip, so nothing is counted.
    wait_for_unsent_error(&limiter, policy.key("a")).await;
    server.continue_signal();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
}

#[tokio::test]
async fn each_call_ends_within_its_budget() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Server::start(Flavour::Redis);
    let connected = frozen_within(BUDGET, &server.url()).await;
    server.stop_signal();
    let lazily =
        |url: String| StoreLimiter::new(RedisStore::builder(&url).unwrap().budget(BUDGET).connect_lazily());
    let limiters = [
        connected,
        lazily(server.url()),
        lazily(format!("redis://{silent}")),
        lazily(format!("redis+sentinel://{silent},{silent}/main")),
        lazily(format!("redis+cluster://{silent},{silent}")),
    ];
    within_budget::assert_fails_within(&limiters, BUDGET).await;
}

#[tokio::test]
async fn a_dead_server_fails_requests_at_once_and_is_found_after_its_restart() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("2/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.kill();
    let error = wait_for_unsent_error(&limiter, policy.key("a")).await;
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    server.restart();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
}

#[tokio::test]
async fn connecting_to_a_closed_port_fails_with_the_address() {
    let server = Server::start(Flavour::Redis);
    server.kill();
    let error = RedisStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
}

/// A server or sentinel that accepts connections but never responds.
#[tokio::test]
async fn a_silent_server_does_not_block_callers() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Server::start(Flavour::Redis);
    let replica = Replica::of(&server);
    let sentinels = Sentinels::start(&server, "main");
    let proxy = FaultProxy::start(sentinels.addresses()[0]);
    let rest = sentinels.addresses()[1];
    // The first sentinel stalls during the exchange, and a second one is available.
    proxy.stall();
    let url = format!("redis+sentinel://{},{rest}/main", proxy.address());
    let limiter = frozen_within(BUDGET, &url).await;
    assert!(eventually(&limiter, policy("10/1h").key("a")).await.is_allowed());
    drop(replica);

    let error = RedisStore::connect(&format!("redis://{silent}")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // A request that waits for a connection is not sent.
    let lazy = RedisStore::builder(&format!("redis://{silent}")).unwrap().budget(BUDGET).connect_lazily();
    let error = StoreLimiter::new(lazy).check(policy("10/1h").key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
}

/// No part of a batch waits for the response to another part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_one_round_trip() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let builder = RedisStore::builder(&proxy.url()).unwrap().budget(Duration::from_secs(20));
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    server.command(&["FLUSHDB"]);
    for count in [2, 1000] {
        proxy.mute();
        let batch = {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let policy = policy("1000000/1h");
                let keys: Vec<String> = (0..count).map(|number| format!("{number} of {count}")).collect();
                let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
                limiter.check_many(&checks).await
            })
        };
        // All requests are counted, and no response has arrived.
        tokio::task::block_in_place(|| {
            until("all is counted", || match server.command(&["DBSIZE"]).int() {
                keys if keys == count => Ok(()),
                keys => Err(format!("{keys} of {count}")),
            });
        });
        assert!(!batch.is_finished());
        proxy.pass();
        let decisions = batch.await.unwrap();
        assert_eq!(
            decisions.iter().flatten().filter(|decision| decision.is_allowed()).count(),
            decisions.len()
        );
        server.command(&["FLUSHDB"]);
    }
}

/// Received responses stay valid when the rest of the batch fails.
#[tokio::test]
async fn a_batch_that_is_cut_keeps_its_received_responses() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000000/1h");
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    // Enough bytes for the first calls of 64 keys, but not for all. A reset could overtake these replies while other
    // calls are still being sent.
    proxy.end_reply_after(1000);
    let decided = limiter.check_many(&checks).await;
    let answered = decided.iter().filter(|decision| decision.is_ok()).count();
    assert!((64..1000).contains(&answered), "{answered}");
    for error in decided.iter().filter_map(|decision| decision.as_ref().err()) {
        assert!(error.may_have_counted(), "{error}");
    }
}

/// A large batch leaves space in the queue for other requests.
#[tokio::test]
async fn a_large_batch_causes_no_rejections() {
    let server = Server::start(Flavour::Redis);
    let builder = RedisStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20)).max_waiting(64);
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(policy("1000000/1h"));
    let batch = {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        tokio::spawn(async move {
            let keys: Vec<String> = (0..2000).map(|number| format!("k{number}")).collect();
            let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
            limiter.check_many(&checks).await.into_iter().flatten().count()
        })
    };
    while !batch.is_finished() {
        assert!(limiter.check(policy.key("single")).await.unwrap().is_allowed());
    }
    assert_eq!(batch.await.unwrap(), 2000);
}

#[tokio::test]
async fn a_cancelled_request_does_not_affect_the_others() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = Arc::new(frozen(&proxy.url()).await);
    let policy = Arc::new(policy("1000/1h"));
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.stall();
    // Two calls of 64 are in flight and stall; the other requests are queued.
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
    // Of the cancelled requests, 64 were in flight and may be counted. The queued ones are not.
    let spent = used(&limiter, policy.key("a")).await;
    assert!((201..=265).contains(&spent), "{spent} of 401");
}

/// A clock that panics on demand: a defect within the store's own task.
struct PanickingClock(Arc<AtomicBool>);

impl slidegate::Clock for PanickingClock {
    fn now_ms(&self) -> u64 {
        assert!(!self.0.swap(false, Relaxed), "a defect");
        1_800_000_000_000
    }

    fn sleep(&self, _: u64) -> slidegate::Sleep<'_> {
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_panicked_task_restarts_and_fails_its_requests_at_once() {
    let server = Server::start(Flavour::Redis);
    let is_faulty = Arc::new(AtomicBool::new(false));
    let builder = RedisStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20));
    let store = builder.time_from(PanickingClock(Arc::clone(&is_faulty))).connect().await.unwrap();
    let (limiter, policy) = (StoreLimiter::new(store), policy("10/1h"));
    for spent in 1..=3 {
        assert_eq!(limiter.check(policy.key("a")).await.unwrap().quotas()[0].used, spent);
        is_faulty.store(true, Relaxed);
        // At once, not after the budget of 20 s.
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.to_string().contains("broke before the response"), "{error}");
    }
}

#[tokio::test]
async fn a_full_queue_rejects_requests_at_once() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let builder = RedisStore::builder(&proxy.url()).unwrap().budget(Duration::from_secs(5)).max_waiting(4);
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(policy("1000/1h"));
    proxy.stall();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    // All other requests are queued or in flight.
    for _ in 0..84 {
        let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.is_transient() && !error.may_have_counted(), "{error}");
        assert_eq!(error.to_string(), "redis: the queue of 4 requests is full; retry later");
    }
    proxy.pass();
    let mut answered = 0;
    while let Some(answer) = callers.join_next().await {
        answered += u64::from(answer.unwrap().is_ok());
    }
    assert!((4..=16).contains(&answered), "{answered} of 100 were queued");
}

#[tokio::test]
async fn out_of_memory_is_reported_as_full_and_denials_still_work() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("1/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(!limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let error = limiter.check(policy.key("b")).await.unwrap_err();
    assert!(error.is_full() && error.is_transient() && !error.may_have_counted(), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(limiter.check(policy.key("b")).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_foreign_value_fails_only_its_own_key() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let name = server.command(&["KEYS", "sg:*"]).array()[0].text();
    for overwrite in
        [&["SADD", &name, "x"][..], &["SET", &name, "nonsense"], &["SET", &name, "\u{1}nonsense!!"]]
    {
        server.command(&["DEL", &name]);
        server.command(overwrite);
        let answers = limiter.check_many(&[policy.key("b"), policy.key("a"), policy.key("c")]).await;
        assert!(answers[0].as_ref().unwrap().is_allowed());
        let error = answers[1].as_ref().unwrap_err();
        assert!(!error.is_transient(), "{overwrite:?}: {error}");
        assert!(answers[2].as_ref().unwrap().is_allowed());
    }
    // A reset repairs the key.
    let _ = limiter.reset(policy.key("a")).await.unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
}
