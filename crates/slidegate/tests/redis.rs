//! Conformance suite for the Redis store, on Redis and on Valkey.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use conformance::{Random, START, Subject, operation};
use slidegate::store::{KeyStyle, Operation, RedisStore, Store, StoreLimiter};
use slidegate::{Clock, ManualClock, Policy, SystemClock, Verb};
use slidegate_testkit::{Flavour, Server};

/// Connects to the shared server with a key prefix of its own.
async fn subject(server: &Server) -> Subject<RedisStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = RedisStore::builder(&server.url()).unwrap().prefix(&prefix).unwrap();
    let store = builder.time_from(clock.clone()).budget(Duration::from_secs(20)).connect().await.unwrap();
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 50 }
}

mod on_redis {
    use super::*;

    static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(Flavour::Redis));

    conformance::suite!(subject(&SERVER).await);
}

mod on_valkey {
    use super::*;

    static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(Flavour::Valkey));

    conformance::suite!(subject(&SERVER).await);
}

/// Policies with all algorithms, several quotas and changing quotas, in windows much longer than the test.
fn long_policies() -> Vec<Policy> {
    let parse = |(name, quotas): (&str, &[&str])| Policy::parse(name, quotas.iter().copied()).unwrap();
    let changing: [&[&str]; 6] = [
        &["10/1h"],
        &["10/3h"],
        &["10/1h strict-window"],
        &["8/2h token-bucket"],
        &["9/4h sliding-log", "7/1h fixed-window"],
        &["10/1h", "12/3h", "8/1h token-bucket"],
    ];
    let alone: [(&str, &[&str]); 9] = [
        ("sliding", &["10/1h"]),
        ("uncommon", &["10/3601s"]),
        ("large", &["200000/1h"]),
        ("anchored", &["7/1h anchor=first-request"]),
        ("strict", &["10/1h strict-window"]),
        ("log", &["10/1h sliding-log"]),
        ("fixed", &["10/1h fixed-window"]),
        ("bucket", &["10/1h token-bucket burst=20"]),
        ("all", &["9/1h", "12/2h strict-window", "14/3h sliding-log", "16/4h fixed-window"]),
    ];
    alone.into_iter().chain(changing.map(|quotas| ("changing", quotas))).map(parse).collect()
}

/// A record lives while it counts anything, after any operation. A store with a given clock adds an hour.
#[tokio::test]
async fn a_record_expires_shortly_after_its_last_count() {
    const SLACK_MS: u64 = 3_600_000;
    // Two windows of four hours, or a bucket of twice its limit.
    const LONGEST_MS: u64 = 8 * 3_600_000;
    let server = Server::start(Flavour::Redis);
    let (clock, real) = (ManualClock::at(START), SystemClock::default());
    let begun_ms = real.now_ms();
    let builder = RedisStore::builder(&server.url()).unwrap().key_style(KeyStyle::Plain);
    let store = builder.time_from(clock.clone()).budget(Duration::from_secs(20)).connect().await.unwrap();
    let (policies, keys) = (long_policies(), ["k".to_owned()]);
    let (mut random, mut counting) = (Random(0x2545_F491_4F6C_DD1D), 0);
    for step in 0..4000 {
        clock.advance(*random.pick(&[0, 0, 0, 1, 10_000, 500_000, 3_600_000]));
        let mut operation = operation(&mut random, &policies, &keys);
        if operation.verb == Verb::Charge {
            // An unbounded debt would outlast the calendar.
            operation.check.cost = operation.check.cost.min(7);
        }
        let policy = operation.check.policy;
        let _ = store.execute(&[operation]).await.into_single().unwrap();
        let left = store.execute(&[Operation::new(Verb::Peek, policy.key("k"))]).await.into_single().unwrap();
        if left.quotas().iter().all(|quota| quota.used == 0) {
            continue;
        }
        counting += 1;
        let reset_ms = left.quotas().iter().map(|quota| quota.reset_after_ms).max().unwrap();
        let names = server.command(&["KEYS", &format!("sg:*:{}:k", policy.name())]).array();
        let [name] = names.as_slice() else { panic!("one key: {names:?}") };
        let life_ms = server.command(&["PTTL", &name.text()]).int().cast_unsigned();
        // The server's own clock advances meanwhile.
        let passed_ms = real.now_ms() - begun_ms + 10;
        assert!(
            life_ms + passed_ms >= reset_ms + SLACK_MS,
            "step {step}: {operation:?}: {life_ms} of {reset_ms}, after {passed_ms}"
        );
        assert!(life_ms <= LONGEST_MS + SLACK_MS, "step {step}: {operation:?}: {life_ms}");
    }
    assert!(counting > 2000, "{counting}");
}

/// Concurrent checks are sent as batches, without a timer, so the server runs few calls.
#[tokio::test]
async fn checks_of_many_callers_are_batched() {
    let server = Server::start(Flavour::Redis);
    let builder = RedisStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20));
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(Policy::parse("api", ["10/1h"]).unwrap());
    let check = |number: usize| {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        tokio::spawn(async move { limiter.check(policy.key(&number.to_string())).await })
    };
    let before = server.calls_of("evalsha");
    let callers: Vec<_> = (0..100).map(check).collect();
    for caller in callers {
        assert!(caller.await.unwrap().unwrap().is_allowed());
    }
    let calls = server.calls_of("evalsha") - before;
    assert!((2..=20).contains(&calls), "{calls} calls for a hundred");
}
