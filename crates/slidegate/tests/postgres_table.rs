//! Rows of the PostgreSQL store: locking, updates and cleaning.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{Operation, PostgresStore, PostgresStoreBuilder, Store, StoreLimiter};
use slidegate::{ManualClock, Policy, Verb};
use slidegate_testkit::{Postgres, until};

const NOW_MS: u64 = 1_800_000_000_000;

fn builder(server: &Postgres, clock: &ManualClock) -> PostgresStoreBuilder {
    let builder = PostgresStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20));
    builder.time_from(clock.clone())
}

async fn connect(server: &Postgres, clock: &ManualClock) -> PostgresStore {
    builder(server, clock).connect().await.unwrap()
}

/// Connects with a single connection, so that a batch is one statement.
async fn connect_once(server: &Postgres, clock: &ManualClock) -> PostgresStore {
    builder(server, clock).connections(1).connect().await.unwrap()
}

fn number(server: &Postgres, sql: &str) -> u64 {
    server.sql(sql)[0][0].as_ref().unwrap().parse().unwrap()
}

fn rows(server: &Postgres) -> u64 {
    number(server, "SELECT count(*) FROM slidegate.ephemeral")
}

/// Returns a column of the server's statistics for the table. Connections report when they close, so the store must be
/// dropped before.
fn statistic(server: &Postgres, column: &str) -> u64 {
    number(server, &format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = 'ephemeral'"))
}

/// Batches with many common keys, new and reset ones among them, from independent stores never deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_batches_never_deadlock() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let policy = Arc::new(Policy::parse("api", ["1000000/1h"]).unwrap());
    let mut callers = tokio::task::JoinSet::new();
    for caller in 1..=6_u64 {
        let (store, policy) = (connect(&server, &clock).await, Arc::clone(&policy));
        callers.spawn(async move {
            let mut random = caller.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut below = |bound: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % bound
            };
            for _ in 0..150 {
                let keys: Vec<String> = (0..20).map(|_| below(60).to_string()).collect();
                let operations: Vec<_> = keys
                    .iter()
                    .map(|key| {
                        Operation::new(if below(5) == 0 { Verb::Reset } else { Verb::Check }, policy.key(key))
                    })
                    .collect();
                for response in store.execute(&operations).await {
                    assert!(response.unwrap().is_allowed());
                }
                if below(10) == 0 {
                    assert!(store.forget(&policy).await.is_ok());
                }
            }
        });
    }
    let _ = callers.join_all().await;
    assert_eq!(number(&server, "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"), 0);
    assert!(!server.log().contains("deadlock"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_updated_row_stays_in_its_page_and_leaves_no_dead_rows() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    {
        let limiter = StoreLimiter::new(connect(&server, &clock).await);
        let keys: Vec<String> = (0..50).map(|key| key.to_string()).collect();
        let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
        for _ in 0..300 {
            for decision in limiter.check_many(&checks).await {
                assert!(decision.unwrap().is_allowed());
            }
        }
    }
    until("the connections have reported their statistics", || {
        let updates = statistic(&server, "n_tup_upd");
        if updates == 299 * 50 { Ok(()) } else { Err(format!("{updates} updates")) }
    });
    let hot = statistic(&server, "n_tup_hot_upd");
    assert!(hot * 100 >= 299 * 50 * 95, "only {hot} of {} stayed in their page", 299 * 50);
    let bytes = number(&server, "SELECT pg_relation_size('slidegate.ephemeral')");
    assert!(bytes <= 50 * 8192, "50 rows take {bytes} bytes after 15,000 decisions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_writes_nothing() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let quotas = ["2/1h", "2/2h strict-window", "2/3h sliding-log", "2/4h fixed-window", "2/5h token-bucket"];
    let several = Policy::parse("several", quotas).unwrap();
    let one = Policy::parse("one", ["2/1h"]).unwrap();
    {
        let limiter = StoreLimiter::new(connect(&server, &clock).await);
        for policy in [&one, &several] {
            assert!(limiter.check(policy.key("a").cost(2)).await.unwrap().is_allowed());
            for _ in 0..20 {
                assert!(!limiter.check(policy.key("a")).await.unwrap().is_allowed());
                // Advances over several windows, while the previous one still counts.
                clock.advance(100_000);
            }
            assert!(!limiter.check(policy.key("new").cost(3)).await.unwrap().is_allowed());
        }
    }
    assert_eq!(rows(&server), 2);
    until("the connections have reported their statistics", || {
        let inserts = statistic(&server, "n_tup_ins");
        if inserts == 2 { Ok(()) } else { Err(format!("{inserts} inserts")) }
    });
    assert_eq!(statistic(&server, "n_tup_upd"), 0);
}

#[tokio::test]
async fn decisions_clean_expired_rows_and_keep_live_ones() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let limiter = StoreLimiter::new(connect(&server, &clock).await);
    let [retired, lasting, busy] = [("retired", "1/1s"), ("lasting", "1/1h"), ("busy", "1/1m")]
        .map(|(name, quota)| Policy::parse(name, [quota]).unwrap());
    let keys: Vec<String> = (0..600).map(|key| key.to_string()).collect();
    for decision in limiter.check_many(&keys.iter().map(|key| retired.key(key)).collect::<Vec<_>>()).await {
        assert!(decision.unwrap().is_allowed());
    }
    assert!(limiter.check(lasting.key("a")).await.unwrap().is_allowed());
    assert_eq!(rows(&server), 601);
    // The retired policy gets no more requests; another policy gets new keys.
    clock.advance(2000);
    for key in &keys {
        assert!(limiter.check(busy.key(key)).await.unwrap().is_allowed());
    }
    let left = rows(&server) - 601;
    assert!(left < 60, "{left} of 600 expired rows remain");
    assert!(!limiter.check(lasting.key("a")).await.unwrap().is_allowed());
    for key in &keys {
        assert!(!limiter.check(busy.key(key)).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn cleaning_removes_all_expired_rows_and_no_others() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let store = connect(&server, &clock).await;
    let [short, long] = ["1/1s", "1/1h"].map(|quota| Policy::parse(quota, [quota]).unwrap());
    let keys: Vec<String> = (0..3000).map(|key| key.to_string()).collect();
    let operations: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(place, key)| {
            Operation::new(Verb::Check, if place % 3 == 0 { long.key(key) } else { short.key(key) })
        })
        .collect();
    for response in store.execute(&operations).await {
        assert!(response.unwrap().is_allowed());
    }
    assert_eq!(store.clean().await.unwrap(), 0);
    // The window and the following one.
    clock.advance(2000);
    assert_eq!(store.clean().await.unwrap(), 2000);
    assert_eq!(store.clean().await.unwrap(), 0);
    for (operation, response) in operations.iter().zip(store.execute(&operations).await) {
        let is_live = operation.check.policy.name() == "1/1h";
        assert_eq!(response.unwrap().is_allowed(), !is_live);
    }
}

/// A policy with a changed window or rate counts units longer than the version that wrote them.
#[tokio::test]
async fn cleaning_keeps_counts_of_a_changed_policy() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let limiter = StoreLimiter::new(connect(&server, &clock).await);
    let store = connect(&server, &clock).await;
    for (name, before, after, spent) in [
        // The next allowed check carries the count over to the longer window.
        ("sliding", "2/400ms", "2/1h", [1, 1]),
        ("fixed", "2/400ms fixed-window", "2/1h fixed-window", [1, 1]),
        ("strict", "2/400ms strict-window", "2/1h strict-window", [2, 0]),
        ("log", "2/400ms sliding-log", "2/1h sliding-log", [2, 0]),
        ("bucket", "2/400ms token-bucket", "2/1h token-bucket", [2, 0]),
        ("rate", "200/400ms token-bucket burst=2", "2/1h token-bucket burst=2", [2, 0]),
    ] {
        let [before, after] = [before, after].map(|quota| Policy::parse(name, [quota]).unwrap());
        assert!(limiter.check(before.key("a").cost(spent[0])).await.unwrap().is_allowed());
        assert!(limiter.check(after.key("a").cost(spent[1])).await.unwrap().is_allowed());
        assert!(!limiter.check(after.key("a")).await.unwrap().is_allowed());
        clock.advance(10_000);
        assert_eq!(store.clean().await.unwrap(), 0, "{name}");
        assert!(!limiter.check(after.key("a")).await.unwrap().is_allowed(), "{name}");
    }
    clock.advance(3 * 3_600_000);
    assert_eq!(store.clean().await.unwrap(), 6);
}

#[tokio::test]
async fn a_full_log_fails_only_its_own_key() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let limiter = StoreLimiter::new(connect_once(&server, &clock).await);
    let log = Policy::parse("log", ["100000/366d sliding-log"]).unwrap();
    assert!(limiter.check(log.key("a")).await.unwrap().is_allowed());
    // The state after 32,768 requests.
    server.sql(
        "UPDATE slidegate.ephemeral SET state = state[1:2] || 65536::bigint ||
           ARRAY(SELECT n FROM generate_series(1, 32768) i,
             LATERAL (VALUES (1800000000000 - 40000 + i), (1)) v (n))",
    );
    clock.advance(1);
    let checks = [log.key("b"), log.key("a"), log.key("c")];
    let responses = limiter.check_many(&checks).await;
    assert!(responses[0].as_ref().unwrap().is_allowed() && responses[2].as_ref().unwrap().is_allowed());
    let error = responses[1].as_ref().unwrap_err();
    assert!(error.is_full() && !error.may_have_counted(), "{error}");
    assert_eq!(limiter.peek(log.key("a")).await.unwrap().quotas()[0].used, 32_768);
}

/// Under an algorithm that validates the record, and under one with a set-based statement.
#[tokio::test]
async fn an_invalid_record_fails_only_its_own_key() {
    let server = Postgres::start();
    let limiter = StoreLimiter::new(connect_once(&server, &ManualClock::at(NOW_MS)).await);
    let (strict, sliding) = ("10/1h strict-window", "10/1h");
    for (quota, invalid) in [
        (strict, "{2}"),
        (strict, "{2,3600000}"),
        (strict, "{2,3600000,2}"),
        (strict, "{2,3600000,2,1}"),
        (strict, "{2,3600000,2,1,-1}"),
        (strict, "{2,3600000,2,1800000000000,NULL}"),
        (strict, "{2,3600000,NULL,1800000000000,1}"),
        (strict, "{2,3600000,-3}"),
        (sliding, "{1,3600000,3}"),
        (sliding, "{1,3600000,3,1799999999999,0}"),
        (sliding, "{1,3600000,2,1799999999999,0}"),
        (sliding, "{1,3600000,3,NULL,0,1}"),
        (sliding, "{1,3600000,3,1799999999999,NULL,1}"),
        (sliding, "{1,3600000,3,1799999999999,0,NULL}"),
        (sliding, "{1,3600000,3,1799999999999,0,-1}"),
        (sliding, "{NULL,3600000,3,1799999999999,0,1}"),
    ] {
        let policy = Policy::parse("api", [quota]).unwrap();
        assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        server.sql(&format!("UPDATE slidegate.ephemeral SET state = '{invalid}'"));
        let responses = limiter.check_many(&[policy.key("b"), policy.key("a"), policy.key("c")]).await;
        assert!(responses[0].as_ref().unwrap().is_allowed(), "{invalid}");
        let error = responses[1].as_ref().unwrap_err();
        assert!(!error.is_full() && !error.is_transient(), "{invalid}: {error}");
        assert!(responses[2].as_ref().unwrap().is_allowed(), "{invalid}");
        // A reset repairs the key.
        for key in ["a", "b", "c"] {
            let _ = limiter.reset(policy.key(key)).await.unwrap();
        }
        assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed(), "{invalid}");
        let _ = limiter.reset(policy.key("a")).await.unwrap();
    }
}

/// In a large batch with responses before and after: all other requests are decided once, in order.
#[tokio::test]
async fn an_invalid_record_fails_only_its_own_key_in_a_large_batch() {
    let server = Postgres::start();
    let limiter = StoreLimiter::new(connect_once(&server, &ManualClock::at(NOW_MS)).await);
    for quota in ["10/1h strict-window", "10/1h"] {
        let policy = Policy::parse("api", [quota]).unwrap();
        assert!(limiter.check(policy.key("invalid")).await.unwrap().is_allowed());
        server.sql("UPDATE slidegate.ephemeral SET state = '{2,3600000,-3}'");
        let keys: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        // The other keys occur twice, which places them in separate statements unless the batch groups them.
        let mut checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
        checks.insert(100, policy.key("invalid"));
        checks.extend(keys.iter().map(|key| policy.key(key).cost(2)));
        let responses = limiter.check_many(&checks).await;
        for (place, (check, response)) in checks.iter().zip(responses).enumerate() {
            match response {
                Ok(decision) => {
                    let used = if place > 300 { 3 } else { 1 };
                    assert_eq!(decision.quotas()[0].used, used, "{quota}: {check:?}");
                    assert_ne!(check.key, b"invalid");
                }
                Err(error) => {
                    assert!(check.key == b"invalid" && !error.is_transient(), "{check:?}: {error}");
                }
            }
        }
        // The connection still works.
        assert_eq!(limiter.peek(policy.key("0")).await.unwrap().quotas()[0].used, 3, "{quota}");
        let _ = server.sql("TRUNCATE slidegate.ephemeral");
    }
}

/// A policy may have changed its table, so a forget covers both. Other schemas are not affected.
#[tokio::test]
async fn a_policy_is_forgotten_in_both_tables_of_its_schema() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    let stores = [
        connect(&server, &clock).await,
        builder(&server, &clock).durable(true).connect().await.unwrap(),
        builder(&server, &clock).schema("elsewhere").unwrap().connect().await.unwrap(),
    ]
    .map(StoreLimiter::new);
    for limiter in &stores {
        for key in 0..5_u8 {
            assert!(limiter.check(policy.key(&[key])).await.unwrap().is_allowed());
        }
    }
    assert_eq!(stores[0].forget(&policy).await.unwrap(), Some(10));
    for (place, limiter) in stores.iter().enumerate() {
        for key in 0..5_u8 {
            assert_eq!(limiter.peek(policy.key(&[key])).await.unwrap().is_allowed(), place < 2);
        }
    }
    // The partitions of the feed still spread the keys of one policy.
    let partitions =
        number(&server, "SELECT count(*) FROM slidegate.invalidation_ephemeral WHERE partition >= 0");
    assert!(partitions >= 4, "{partitions}");
}
