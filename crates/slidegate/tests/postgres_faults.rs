//! What the PostgreSQL store promises when the way to the server fails, or the server does not answer.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod within_budget;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Check, Clock, Decision, Limiter, ManualClock, Policy, PostgresStore, StoreError, SystemClock,
};
use slidegate_testkit::{FaultProxy, PgBouncer, Postgres, until};

const BUDGET: Duration = Duration::from_millis(500);

/// A limiter whose clock stands still, so that what is spent stays spent.
async fn frozen(address: SocketAddr) -> Limiter<PostgresStore> {
    frozen_over(2, address).await
}

async fn frozen_over(connections: usize, address: SocketAddr) -> Limiter<PostgresStore> {
    let url = format!("postgres://postgres@{address}/postgres");
    let builder = PostgresStore::builder(&url).unwrap().budget(BUDGET).connections(connections);
    Limiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Asks until there is an answer, as a patient caller would. Every error on the way must be transient.
async fn eventually(limiter: &Limiter<PostgresStore>, check: Check<'_>) -> Decision {
    for _ in 0..3000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        // Another process has to get something done, and there is nothing to wait upon.
        SystemClock::default().sleep(10).await;
    }
    panic!("waited in vain for {check:?}");
}

async fn used(limiter: &Limiter<PostgresStore>, check: Check<'_>) -> u64 {
    eventually(limiter, check.cost(0)).await.quotas()[0].used
}

#[tokio::test]
async fn a_reply_that_is_cut_off_is_an_error_and_is_never_asked_for_again() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    // With a second one, made anew in the background, the reply that is cut might be one to that.
    let limiter = frozen_over(1, proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    for (cuts, bytes) in [0, 1, 7, 100].into_iter().enumerate() {
        proxy.cut_reply_after(bytes);
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.is_transient() && error.may_have_counted(), "{error}");
        // The server has counted it, once, and nobody has sent it again.
        assert_eq!(used(&limiter, policy.key("a")).await, 2 + cuts as u64, "after {bytes} bytes");
    }
}

#[tokio::test]
async fn a_server_that_has_stopped_costs_each_caller_no_more_than_the_budget() {
    let server = Postgres::start();
    let limiter = frozen(server.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.stop_signal();
    let mut errors = Vec::new();
    for _ in 0..2 {
        let many = [(); 10].map(|()| policy.key("a"));
        // The test would hang here if a call had no end.
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    server.continue_signal();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
    // What was sent once was counted once at the most.
    assert!((1..=23).contains(&used(&limiter, policy.key("a")).await));
}

#[tokio::test]
async fn every_call_ends_within_its_budget() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Postgres::start();
    let connected = frozen(server.address()).await;
    server.stop_signal();
    let lazily = |address: SocketAddr| {
        let url = format!("postgres://postgres@{address}/postgres");
        Limiter::new(PostgresStore::builder(&url).unwrap().budget(BUDGET).connect_lazily().unwrap())
    };
    let limiters = [connected, lazily(server.address()), lazily(silent)];
    within_budget::assert_fails_within(&limiters, BUDGET).await;
}

#[tokio::test]
async fn a_server_that_is_gone_is_told_at_once_and_found_again() {
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

/// To connect takes several round trips where a decision takes one. Who starts over whenever a caller's time is up never
/// gets there.
#[tokio::test]
async fn a_connection_that_takes_longer_than_the_budget_comes_about_all_the_same() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    // A quarter of the budget each way: a decision takes half of it, a connection more than all.
    proxy.slow(BUDGET / 4);
    proxy.cut();
    for _ in 0..20 {
        match limiter.check(policy.key("a")).await {
            Ok(decision) => return assert!(decision.is_allowed()),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    panic!("no connection in twenty times the budget");
}

/// Whoever asks a server that was away has little patience, and is what decides whether it is left alone for longer.
#[tokio::test]
async fn a_server_that_returns_is_connected_to_before_anybody_asks() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(proxy.address()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.refuse();
    proxy.cut();
    while limiter.check(policy.key("a")).await.unwrap_err().may_have_counted() {}
    let said = proxy.bytes_to_client();
    proxy.pass();
    for _ in 0..1000 {
        if proxy.bytes_to_client() > said {
            return;
        }
        SystemClock::default().sleep(10).await;
    }
    panic!("the server has said nothing, so nobody has asked");
}

#[tokio::test]
async fn connecting_to_nobody_fails_with_the_address() {
    let server = Postgres::start();
    server.kill();
    let error = PostgresStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
}

#[tokio::test]
async fn connecting_to_a_server_that_hangs_has_an_end() {
    let server = Postgres::start();
    server.stop_signal();
    let error = PostgresStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("no answer within"), "{error}");
    server.continue_signal();
}

#[tokio::test]
async fn a_caller_who_gives_up_does_not_spoil_the_others() {
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
    let mut staying = Vec::new();
    for (number, caller) in callers.into_iter().enumerate() {
        if number % 2 == 0 {
            caller.abort();
        } else {
            staying.push(caller);
        }
    }
    proxy.pass();
    let mut admitted = 0;
    for caller in staying {
        admitted += u64::from(caller.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 25);
    let spent = used(&limiter, policy.key("a")).await;
    assert!((26..=51).contains(&spent), "those who stayed and perhaps some who left: {spent}");
}

/// None of it waits for an answer to any other, whichever tables it is kept in, and few keys are one transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_one_round_trip() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20));
    let builder = builder.policy_durable("kept", true);
    let limiter = Arc::new(Limiter::new(builder.connect().await.unwrap()));
    let number = |sql: String| server.sql(&sql)[0][0].as_ref().unwrap().parse::<usize>().unwrap();
    for (ephemeral, durable) in [(2, 0), (64, 0), (3, 3), (1000, 0), (500, 500)] {
        proxy.mute();
        let batch = {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let policies = ["api", "kept"].map(|name| Policy::parse(name, ["1000000/1h"]).unwrap());
                let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
                let [theirs, kept] = &policies;
                let checks: Vec<_> = keys[..ephemeral].iter().map(|key| theirs.key(key)).collect();
                let kept = keys[..durable].iter().map(|key| kept.key(key));
                limiter.check_many(&checks.into_iter().chain(kept).collect::<Vec<_>>()).await
            })
        };
        // All has been counted, and nothing was heard of it.
        tokio::task::block_in_place(|| {
            for (table, count) in [("ephemeral", ephemeral), ("durable", durable)] {
                until("all is counted", || match number(format!("SELECT count(*) FROM slidegate.{table}")) {
                    rows if rows == count => Ok(()),
                    rows => Err(format!("{rows} of {count}")),
                });
                let made_by = format!("SELECT count(DISTINCT xmin::text) FROM slidegate.{table}");
                assert_eq!(number(made_by), count.div_ceil(64), "{count} in {table}");
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

/// What has been answered is answered, whatever becomes of the rest.
#[tokio::test]
async fn a_batch_that_is_cut_off_keeps_the_answers_that_came() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen_over(1, proxy.address()).await;
    let policy = policy("1000000/1h");
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    // Of keys that are known there is more to say.
    assert!(limiter.check_many(&checks).await.iter().all(Result::is_ok));
    // Enough for the first answers of 64 keys and not for all of them.
    proxy.cut_reply_after(10_000);
    let decided = limiter.check_many(&checks).await;
    let answered = decided.iter().filter(|decision| decision.is_ok()).count();
    assert!((64..1000).contains(&answered) && answered % 64 == 0, "{answered}");
    for error in decided.iter().filter_map(|decision| decision.as_ref().err()) {
        assert!(error.may_have_counted(), "{error}");
    }
}

/// A large batch leaves room for others.
#[tokio::test]
async fn a_large_batch_turns_nobody_away() {
    let server = Postgres::start();
    let builder =
        PostgresStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20)).max_waiting(64);
    let limiter = Arc::new(Limiter::new(builder.connect().await.unwrap()));
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
async fn a_full_queue_refuses_at_once() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(5)).max_waiting(4);
    let limiter = Arc::new(Limiter::new(builder.connections(1).connect().await.unwrap()));
    let policy = Arc::new(policy("1000/1h"));
    proxy.stall();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    // Nobody else can be done yet.
    for _ in 0..90 {
        let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.is_transient() && !error.may_have_counted(), "{error}");
        assert_eq!(error.to_string(), "postgres: 4 calls wait already");
    }
    proxy.pass();
    let mut answered = 0;
    while let Some(answer) = callers.join_next().await {
        answered += u64::from(answer.unwrap().is_ok());
    }
    assert!((4..=10).contains(&answered), "{answered} of 100 found room");
}

/// Connections that belong to a transaction each: nothing that we do may need the same one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_in_front_that_keeps_no_session_is_no_obstacle() {
    let server = Postgres::start();
    let bouncer = PgBouncer::builder().setting("default_pool_size", "2").in_front_of(&server);
    let url = format!("{}?durable=true&sync=on", bouncer.url());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20)).connections(6);
    let clock = ManualClock::at(1_800_000_000_000);
    let limiter = Arc::new(Limiter::new(builder.time_from(clock).connect().await.unwrap()));
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
    // What a call sets for itself does not stay behind for whoever is next.
    for setting in ["statement_timeout", "lock_timeout", "synchronous_commit"] {
        let set = bouncer.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        let whole = server.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        assert_eq!(set, whole, "{setting}");
    }
}
