//! Refunds, resets and forgets of one node end the cached denials of all other nodes.

#![cfg(all(feature = "resilience", feature = "redis", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;

use slidegate::resilience::DeniedCache;
use slidegate::store::{PostgresStore, RedisStore, Store, StoreLimiter};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, Source, SystemClock};
use slidegate_testkit::{FaultProxy, Flavour, Postgres, Server};

/// Longer than a node without an invalidation feed caches a denial.
const LONG_MS: u64 = 5000;

/// A node with a cache of denials, and the clock by which they age.
struct Node<S> {
    limiter: StoreLimiter<DeniedCache<S, ManualClock>>,
    clock: ManualClock,
}

impl<S: Store> Node<S> {
    fn over(store: S) -> Self {
        let clock = ManualClock::at(1_000_000);
        let cache = DeniedCache::builder(store).clock(clock.clone()).build().unwrap();
        Self { limiter: StoreLimiter::new(cache), clock }
    }

    async fn check(&self, check: Check<'_>) -> Decision {
        self.limiter.check(check).await.unwrap()
    }

    /// Gets a denial from the store and returns whether it is still cached after `LONG_MS`.
    async fn caches_for_long(&self, check: Check<'_>) -> bool {
        self.clock.advance(20_000);
        assert_eq!(self.check(check).await.source(), Source::Store);
        self.clock.advance(LONG_MS);
        let again = self.check(check).await;
        assert!(!again.is_allowed());
        again.source() == Source::Cache
    }

    /// Waits until the node's invalidation feed is connected.
    async fn wait_for_feed(&self, check: Check<'_>) {
        for _ in 0..1000 {
            if self.caches_for_long(check).await {
                return;
            }
            pause().await;
        }
        panic!("the invalidation feed never connected");
    }

    /// Waits until the check is allowed. All responses before come from the cache, so the denial ends by an
    /// invalidation from another node.
    async fn wait_for_invalidation(&self, check: Check<'_>) {
        // Without an invalidation the cached denial lasts 10 s.
        for _ in 0..500 {
            let decision = self.check(check).await;
            if decision.is_allowed() {
                return;
            }
            assert_eq!(decision.source(), Source::Cache);
            pause().await;
        }
        panic!("the cached denial survived the refund");
    }
}

/// Waits for another process; there is no event to wait for.
async fn pause() {
    SystemClock::default().sleep(10).await;
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// A refund, a reset and a forget on one node each end a cached denial on the other.
async fn refunds_and_resets_invalidate<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), StoreLimiter::new(elsewhere));
    for quota in ["1/1h", "1/1h token-bucket", "1/1h fixed-window", "1/1h sliding-log", "1/1h strict-window"]
    {
        let policy = policy(quota);
        let check = policy.key(quota);
        assert!(elsewhere.check(check).await.unwrap().is_allowed());
        here.wait_for_feed(check).await;
        let _ = elsewhere.refund(check).await.unwrap();
        here.wait_for_invalidation(check).await;

        here.wait_for_feed(check).await;
        let _ = elsewhere.reset(check).await.unwrap();
        here.wait_for_invalidation(check).await;

        here.wait_for_feed(check).await;
        let _ = elsewhere.forget(&policy).await.unwrap();
        here.wait_for_invalidation(check).await;
        let _ = elsewhere.reset(check).await.unwrap();
    }
}

/// A check under other quotas on another node invalidates the denial because it may change the remaining quota.
async fn other_quotas_invalidate<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), StoreLimiter::new(elsewhere));
    let changes: [(&[&str], &[&str]); 8] = [
        (&["1/1h token-bucket"], &["100/1h token-bucket"]),
        (&["1/1h sliding-log"], &["1/2h sliding-log"]),
        (&["1/1h sliding-log"], &["1/1ms sliding-log"]),
        (&["1/1h strict-window"], &["1/100ms strict-window"]),
        (&["1/1h"], &["9/2h"]),
        (&["1/1h fixed-window"], &["9/2h fixed-window"]),
        (&["9/1d", "1/1h"], &["9/1d", "9/1h fixed-window"]),
        (&["1/1h fixed-window"], &["1/1h sliding-log"]),
    ];
    for (number, (quotas, others)) in changes.into_iter().enumerate() {
        let parse = |quotas: &[&str]| Policy::parse("api", quotas.iter().copied()).unwrap();
        let (policy, other) = (parse(quotas), parse(others));
        let key = format!("{number}");
        assert!(here.check(policy.key(&key)).await.is_allowed());
        here.wait_for_feed(policy.key(&key)).await;
        // Outlasts the shortest windows.
        SystemClock::default().sleep(110).await;
        let _ = elsewhere.check(other.key(&key)).await.unwrap();
        // The store may deny it again, but the request must reach the store.
        for round in 0.. {
            if here.check(policy.key(&key)).await.source() == Source::Store {
                break;
            }
            // Without an invalidation the cached denial lasts 10 s.
            assert!(round < 500, "{quotas:?} to {others:?}: the request never reaches the store");
            pause().await;
        }
    }
}

/// A store keeps at most 16 unused versions of a policy. Dropping the version that denied a key ends the denial.
async fn dropped_versions_invalidate<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), StoreLimiter::new(elsewhere));
    let denied = policy("1/1h");
    let check = denied.key("forgotten");
    assert!(here.check(check).await.is_allowed());
    let many: Vec<String> = (1..=16).map(|hours| format!("9/{hours}h strict-window")).collect();
    let versions =
        [policy("9/1h fixed-window"), Policy::parse("api", many.iter().map(String::as_str)).unwrap()];
    for version in versions {
        let _ = elsewhere.check(version.key("forgotten")).await.unwrap();
    }
    here.wait_for_feed(check).await;
    // This makes 15 more versions unused, 17 in total.
    let _ = elsewhere.check(policy(&many[0]).key("forgotten")).await.unwrap();
    here.wait_for_invalidation(check).await;
}

/// A refund during an outage of the feed is not missed.
async fn a_feed_outage_ends_cached_denials<S: Store>(here: S, elsewhere: S, proxy: FaultProxy) {
    let (here, elsewhere) = (Node::over(here), StoreLimiter::new(elsewhere));
    let policy = policy("1/1h");
    let check = policy.key("a");
    assert!(elsewhere.check(check).await.unwrap().is_allowed());
    here.wait_for_feed(check).await;
    proxy.refuse_connections();
    proxy.cut();
    let _ = elsewhere.refund(check).await.unwrap();
    for round in 0.. {
        // From the cache or an error, and finally no more from the cache.
        match here.limiter.check(check).await {
            Ok(decision) => assert!(decision.source() == Source::Cache),
            Err(error) if error.is_transient() => break,
            Err(error) => panic!("{error}"),
        }
        // Without an invalidation the cached denial lasts 10 s.
        assert!(round < 300, "the cache still serves denials although the feed is down");
        pause().await;
    }
    proxy.pass();
    for round in 0.. {
        if here.limiter.check(check).await.is_ok_and(|decision| decision.is_allowed()) {
            break;
        }
        assert!(round < 300, "the cached denial survived the refund");
        pause().await;
    }
}

async fn redis(address: SocketAddr) -> RedisStore {
    RedisStore::connect(&format!("redis://{address}?budget_ms=5000")).await.unwrap()
}

async fn postgres(address: SocketAddr) -> PostgresStore {
    PostgresStore::connect(&format!("postgres://postgres@{address}/postgres?budget_ms=2000")).await.unwrap()
}

#[tokio::test]
async fn redis_invalidates_on_all_nodes() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let address = server.address();
        refunds_and_resets_invalidate(redis(address).await, redis(address).await).await;
        other_quotas_invalidate(redis(address).await, redis(address).await).await;
        dropped_versions_invalidate(redis(address).await, redis(address).await).await;
    }
}

#[tokio::test]
async fn an_unreachable_redis_ends_cached_denials() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let here = redis(proxy.address()).await;
    a_feed_outage_ends_cached_denials(here, redis(server.address()).await, proxy).await;
}

/// A user without permission to subscribe caches denials for a shorter time only.
#[tokio::test]
async fn a_user_without_subscribe_permission_gets_no_feed() {
    let server = Server::start(Flavour::Redis);
    server.command(&["ACL", "SETUSER", "deaf", "on", ">hush", "~*", "&*", "+@all", "-subscribe"]).ok();
    let url = server.url().replace("redis://", "redis://deaf:hush@");
    let node = Node::over(RedisStore::connect(&url).await.unwrap());
    let policy = policy("1/1h");
    assert!(node.check(policy.key("a")).await.is_allowed());
    for _ in 0..20 {
        assert!(!node.caches_for_long(policy.key("a")).await);
        pause().await;
    }
}

#[tokio::test]
async fn postgres_invalidates_on_all_nodes() {
    let server = Postgres::start();
    let address = server.address();
    refunds_and_resets_invalidate(postgres(address).await, postgres(address).await).await;
    other_quotas_invalidate(postgres(address).await, postgres(address).await).await;
    dropped_versions_invalidate(postgres(address).await, postgres(address).await).await;
}

#[tokio::test]
async fn an_unreachable_postgres_ends_cached_denials() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let here = postgres(proxy.address()).await;
    a_feed_outage_ends_cached_denials(here, postgres(server.address()).await, proxy).await;
}

/// A crash drops the unlogged counts without an invalidation.
#[tokio::test]
async fn a_postgres_crash_ends_cached_denials() {
    let server = Postgres::start();
    let node = Node::over(postgres(server.address()).await);
    let policy = policy("1/1h");
    let check = policy.key("a");
    assert!(node.check(check).await.is_allowed());
    node.wait_for_feed(check).await;
    server.kill();
    server.restart();
    for round in 0.. {
        match node.limiter.check(check).await {
            Ok(decision) if decision.is_allowed() => break,
            Ok(decision) => assert_eq!(decision.source(), Source::Cache),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        // Without an invalidation the cached denial lasts 10 s.
        assert!(round < 300, "the cached denial survived the crash");
        pause().await;
    }
}

/// Durable counts have tables of their own, and a feed table of their own.
#[tokio::test]
async fn durable_counts_invalidate_on_all_nodes() {
    let server = Postgres::start();
    let url = format!("postgres://postgres@{}/postgres?budget_ms=2000&durable=true", server.address());
    let connect = || async { PostgresStore::connect(&url).await.unwrap() };
    refunds_and_resets_invalidate(connect().await, connect().await).await;
    assert_eq!(
        server.sql("SELECT count(*) > 1 FROM slidegate.invalidation_durable")[0][0].as_deref(),
        Some("t")
    );
    assert_eq!(
        server.sql("SELECT count(*) FROM slidegate.invalidation_ephemeral")[0][0].as_deref(),
        Some("0")
    );
}
