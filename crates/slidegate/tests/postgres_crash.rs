//! Counts of each PostgreSQL table after a server crash, a failover to the standby and on a full disk.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use slidegate::store::{PostgresStore, StoreLimiter};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, SystemClock};
use slidegate_testkit::{Postgres, Standby, until};

/// Connects a limiter with a frozen clock, so that nothing expires.
async fn frozen(url: &str) -> StoreLimiter<PostgresStore> {
    let builder = PostgresStore::builder(url).unwrap().budget(Duration::from_secs(2));
    StoreLimiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy() -> Policy {
    Policy::parse("api", ["1000000/1h"]).unwrap()
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

/// Number of decided requests, and of requests that may have been counted.
#[derive(Debug)]
struct Outcome {
    decided: u64,
    unknown: u64,
}

/// Spends from one key in 10 tasks and kills the server meanwhile. Timeouts of a busy machine before the kill do not
/// end a task.
async fn crash_under_load(server: &Postgres, limiter: &Arc<StoreLimiter<PostgresStore>>) -> Outcome {
    let (policy, decided) = (Arc::new(policy()), Arc::new(AtomicU64::new(0)));
    let is_killed = Arc::new(AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (limiter, policy, decided) = (Arc::clone(limiter), Arc::clone(&policy), Arc::clone(&decided));
        let is_killed = Arc::clone(&is_killed);
        callers.spawn(async move {
            let mut unknown = 0;
            loop {
                match limiter.check(policy.key("a")).await {
                    Ok(_) => {
                        decided.fetch_add(1, Relaxed);
                    }
                    Err(error) => {
                        assert!(error.is_transient(), "{error}");
                        unknown += u64::from(error.may_have_counted());
                        if is_killed.load(Relaxed) {
                            return unknown;
                        }
                    }
                }
            }
        });
    }
    while decided.load(Relaxed) < 500 {
        tokio::task::yield_now().await;
    }
    is_killed.store(true, Relaxed);
    server.kill();
    let unknown = callers.join_all().await.into_iter().sum();
    server.restart();
    Outcome { decided: decided.load(Relaxed), unknown }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_resets_ephemeral_counts() {
    let server = Postgres::start();
    let limiter = Arc::new(frozen(&server.url()).await);
    crash_under_load(&server, &limiter).await;
    assert_eq!(used(&limiter, policy().key("a")).await, 0);
    assert!(limiter.check(policy().key("a")).await.unwrap().is_allowed());
    assert_eq!(used(&limiter, policy().key("a")).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synchronous_durable_counts_survive_a_crash_up_to_the_last_response() {
    for sync in ["local", "on"] {
        let server = Postgres::builder().durable().start();
        let limiter = Arc::new(frozen(&format!("{}?durable=true&sync={sync}", server.url())).await);
        let outcome = crash_under_load(&server, &limiter).await;
        let kept = used(&limiter, policy().key("a")).await;
        let most = outcome.decided + outcome.unknown;
        assert!((outcome.decided..=most).contains(&kept), "{kept} units were kept, {outcome:?}, sync={sync}");
    }
}

/// A crash loses only unflushed writes. The server flushes at least three times per second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asynchronous_durable_counts_lose_only_unflushed_writes() {
    let server = Postgres::builder().durable().start();
    let limiter = Arc::new(frozen(&format!("{}?durable=true", server.url())).await);
    for _ in 0..50 {
        assert!(limiter.check(policy().key("a")).await.unwrap().is_allowed());
    }
    let inserted = server.sql("SELECT pg_current_wal_insert_lsn()")[0][0].clone().unwrap();
    until("the server has flushed its log", || {
        let rows = server
            .sql(&format!("SELECT pg_current_wal_flush_lsn() >= '{inserted}', pg_current_wal_flush_lsn()"));
        if rows[0][0].as_deref() == Some("t") { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    let outcome = crash_under_load(&server, &limiter).await;
    let kept = used(&limiter, policy().key("a")).await;
    let most = 50 + outcome.decided + outcome.unknown;
    assert!((50..=most).contains(&kept), "{kept} units were kept, {outcome:?}");
}

/// Guarantee of a failover: replicated durable counts survive, and ephemeral counts restart at zero.
#[tokio::test]
async fn a_promoted_standby_keeps_the_replicated_counts() {
    let primary = Postgres::start();
    let standby = Standby::of(&primary);
    let hosts = format!("postgres://postgres@{},{}/postgres", primary.address(), standby.address());
    let durable = frozen(&format!("{hosts}?durable=true")).await;
    let ephemeral = frozen(&hosts).await;
    let policy = policy();
    for _ in 0..30 {
        assert!(durable.check(policy.key("a")).await.unwrap().is_allowed());
        assert!(ephemeral.check(policy.key("a")).await.unwrap().is_allowed());
    }
    standby.wait_in_sync(&primary);
    // Further writes never reach the standby.
    standby.stop_signal();
    for _ in 0..10 {
        assert!(durable.check(policy.key("a")).await.unwrap().is_allowed());
    }
    primary.kill();
    standby.continue_signal();
    let error = durable.check(policy.key("b")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    standby.promote();
    assert!(eventually(&durable, policy.key("b")).await.is_allowed());
    let kept = used(&durable, policy.key("a")).await;
    assert!((30..=40).contains(&kept), "30 were replicated, 10 were not: {kept}");
    assert_eq!(used(&ephemeral, policy.key("a")).await, 0);
}

/// A standby without a primary returns a transient error and counts nothing.
#[tokio::test]
async fn a_standby_returns_transient_errors_until_its_promotion() {
    let primary = Postgres::start();
    let url = |server: &Postgres| format!("{}?durable=true", server.url());
    let on_primary = frozen(&url(&primary)).await;
    let policy = policy();
    assert!(on_primary.check(policy.key("a")).await.unwrap().is_allowed());
    let standby = Standby::of(&primary);
    let limiter = frozen(&url(&standby)).await;
    assert_eq!(limiter.peek(policy.key("a")).await.unwrap().quotas()[0].used, 1);
    let error = limiter.check(policy.key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
    primary.kill();
    standby.promote();
    assert_eq!(eventually(&limiter, policy.key("a")).await.quotas()[0].used, 2);
}

#[tokio::test]
async fn a_full_disk_is_reported_as_full_and_denials_still_work() {
    let server = Postgres::builder().data_on_tmpfs(100).start();
    let limiter = frozen(&server.url()).await;
    let one = Policy::parse("one", ["1/1h"]).unwrap();
    assert!(limiter.check(one.key("a")).await.unwrap().is_allowed());
    server.fill_disk();
    // The allocated pages still have free space.
    let mut failure = None;
    for key in 0..5000 {
        match limiter.check(one.key(&key.to_string())).await {
            Ok(decision) => assert!(decision.is_allowed()),
            Err(error) => {
                failure = Some((key, error));
                break;
            }
        }
    }
    let (key, error) = failure.unwrap();
    assert!(error.is_full() && error.is_transient() && !error.may_have_counted(), "{error}");
    assert!(!limiter.check(one.key("a")).await.unwrap().is_allowed());
    server.free_disk();
    // The failed check was not counted.
    assert!(limiter.check(one.key(&key.to_string())).await.unwrap().is_allowed());
}
