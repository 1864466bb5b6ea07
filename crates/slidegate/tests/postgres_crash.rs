//! What each table of the PostgreSQL store keeps when the server crashes, is replaced by its standby, or has no room.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use slidegate::{Check, Clock, Decision, Limiter, ManualClock, Policy, PostgresStore, SystemClock};
use slidegate_testkit::{Postgres, Standby, until};

/// A limiter whose clock stands still, so that what is spent stays spent.
async fn frozen(url: &str) -> Limiter<PostgresStore> {
    let builder = PostgresStore::builder(url).unwrap().budget(Duration::from_secs(2));
    Limiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy() -> Policy {
    Policy::parse("api", ["1000000/1h"]).unwrap()
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

/// How many were answered, and of how many nobody knows.
#[derive(Debug)]
struct Outcome {
    answered: u64,
    unknown: u64,
}

/// Ten tasks spend from one key until the server is killed among them. Whoever had to wait too long before that, because the
/// machine did, goes on.
async fn crash_under_load(server: &Postgres, limiter: &Arc<Limiter<PostgresStore>>) -> Outcome {
    let (policy, answered) = (Arc::new(policy()), Arc::new(AtomicU64::new(0)));
    let is_killed = Arc::new(AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (limiter, policy, answered) = (Arc::clone(limiter), Arc::clone(&policy), Arc::clone(&answered));
        let is_killed = Arc::clone(&is_killed);
        callers.spawn(async move {
            let mut unknown = 0;
            loop {
                match limiter.check(policy.key("a")).await {
                    Ok(_) => {
                        answered.fetch_add(1, Relaxed);
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
    while answered.load(Relaxed) < 500 {
        tokio::task::yield_now().await;
    }
    is_killed.store(true, Relaxed);
    server.kill();
    let unknown = callers.join_all().await.into_iter().sum();
    server.restart();
    Outcome { answered: answered.load(Relaxed), unknown }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_ephemeral_is_forgotten_by_a_crash_and_counted_anew() {
    let server = Postgres::start();
    let limiter = Arc::new(frozen(&server.url()).await);
    crash_under_load(&server, &limiter).await;
    assert_eq!(used(&limiter, policy().key("a")).await, 0);
    assert!(limiter.check(policy().key("a")).await.unwrap().is_allowed());
    assert_eq!(used(&limiter, policy().key("a")).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_durable_and_waited_for_survives_a_crash_to_the_last_answer() {
    for sync in ["local", "on"] {
        let server = Postgres::builder().durable().start();
        let limiter = Arc::new(frozen(&format!("{}?durable=true&sync={sync}", server.url())).await);
        let outcome = crash_under_load(&server, &limiter).await;
        let kept = used(&limiter, policy().key("a")).await;
        let most = outcome.answered + outcome.unknown;
        assert!((outcome.answered..=most).contains(&kept), "{kept} were kept, {outcome:?}, sync={sync}");
    }
}

/// Only what the server had not written yet: it does so three times a second at least.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_durable_and_not_waited_for_loses_no_more_than_was_not_written_yet() {
    let server = Postgres::builder().durable().start();
    let limiter = Arc::new(frozen(&format!("{}?durable=true", server.url())).await);
    for _ in 0..50 {
        assert!(limiter.check(policy().key("a")).await.unwrap().is_allowed());
    }
    let inserted = server.sql("SELECT pg_current_wal_insert_lsn()")[0][0].clone().unwrap();
    until("the server has written what it did", || {
        let rows = server
            .sql(&format!("SELECT pg_current_wal_flush_lsn() >= '{inserted}', pg_current_wal_flush_lsn()"));
        if rows[0][0].as_deref() == Some("t") { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    let outcome = crash_under_load(&server, &limiter).await;
    let kept = used(&limiter, policy().key("a")).await;
    let most = 50 + outcome.answered + outcome.unknown;
    assert!((50..=most).contains(&kept), "{kept} were kept, {outcome:?}");
}

/// The promise on a failover: what is durable and the standby had received counts on; what is ephemeral begins anew.
#[tokio::test]
async fn a_standby_that_is_promoted_goes_on_with_what_it_had_received() {
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
    // What follows never reaches the standby.
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

/// Whoever asks a standby alone is told that it may pass, and that nothing was counted.
#[tokio::test]
async fn a_standby_alone_is_refused_as_transient_until_it_is_promoted() {
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
async fn a_disk_that_is_full_is_told_as_such_and_denials_still_work() {
    let server = Postgres::builder().data_on_tmpfs(100).start();
    let limiter = frozen(&server.url()).await;
    let one = Policy::parse("one", ["1/1h"]).unwrap();
    assert!(limiter.check(one.key("a")).await.unwrap().is_allowed());
    server.fill_disk();
    // There is room left in the pages that it has.
    let mut refused = None;
    for key in 0..5000 {
        match limiter.check(one.key(&key.to_string())).await {
            Ok(decision) => assert!(decision.is_allowed()),
            Err(error) => {
                refused = Some((key, error));
                break;
            }
        }
    }
    let (key, error) = refused.unwrap();
    assert!(error.is_full() && error.is_transient() && !error.may_have_counted(), "{error}");
    assert!(!limiter.check(one.key("a")).await.unwrap().is_allowed());
    server.free_disk();
    // It was not counted.
    assert!(limiter.check(one.key(&key.to_string())).await.unwrap().is_allowed());
}
