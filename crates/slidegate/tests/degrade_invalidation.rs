//! What one node gives back counts on all others, although they remember denials for longer than a second.

#![cfg(all(feature = "degrade", feature = "redis", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;

use slidegate::degrade::DeniedCache;
use slidegate::{
    Check, Clock, Decision, Limiter, ManualClock, Policy, PostgresStore, RedisStore, Source, Store,
    SystemClock,
};
use slidegate_testkit::{FaultProxy, Flavour, Postgres, Server};

/// Longer than a denial is remembered by a node that hears nothing.
const LONG_MS: u64 = 5000;

/// A node that remembers denials, and the clock by which they age.
struct Node<S> {
    limiter: Limiter<DeniedCache<S, ManualClock>>,
    clock: ManualClock,
}

impl<S: Store> Node<S> {
    fn over(store: S) -> Self {
        let clock = ManualClock::at(1_000_000);
        let cache = DeniedCache::builder(store).clock(clock.clone()).build().unwrap();
        Self { limiter: Limiter::new(cache), clock }
    }

    async fn check(&self, check: Check<'_>) -> Decision {
        self.limiter.check(check).await.unwrap()
    }

    /// Gets a denial from the store and says whether it is still told after a long time.
    async fn remembers(&self, check: Check<'_>) -> bool {
        self.clock.advance(20_000);
        assert_eq!(self.check(check).await.source(), Source::Store);
        self.clock.advance(LONG_MS);
        let again = self.check(check).await;
        assert!(!again.is_allowed());
        again.source() == Source::Cache
    }

    /// Waits until it hears from its store.
    async fn hears(&self, check: Check<'_>) {
        for _ in 0..1000 {
            if self.remembers(check).await {
                return;
            }
            pause().await;
        }
        panic!("it never hears from its store");
    }

    /// Waits until somebody is allowed, without another answer than a denial that is remembered on the way: whatever ends
    /// the denial here has come from elsewhere.
    async fn is_told(&self, check: Check<'_>) {
        // By itself the store is asked after ten seconds.
        for _ in 0..500 {
            let decision = self.check(check).await;
            if decision.is_allowed() {
                return;
            }
            assert_eq!(decision.source(), Source::Cache);
            pause().await;
        }
        panic!("it is denied what was given back");
    }
}

/// Another process has to get something done, and there is nothing to wait upon.
async fn pause() {
    SystemClock::default().sleep(10).await;
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Each of two nodes gives back what the other one is denied.
async fn giving_back_counts_everywhere<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), Limiter::new(elsewhere));
    for quota in ["1/1h", "1/1h token-bucket", "1/1h fixed-window", "1/1h sliding-log", "1/1h strict-window"]
    {
        let policy = policy(quota);
        let check = policy.key(quota);
        assert!(elsewhere.check(check).await.unwrap().is_allowed());
        here.hears(check).await;
        let _ = elsewhere.refund(check).await.unwrap();
        here.is_told(check).await;

        here.hears(check).await;
        let _ = elsewhere.reset(check).await.unwrap();
        here.is_told(check).await;

        here.hears(check).await;
        let _ = elsewhere.forget(&policy).await.unwrap();
        here.is_told(check).await;
        let _ = elsewhere.reset(check).await.unwrap();
    }
}

/// Where another node has other windows, or another rate, what is left may be less.
async fn another_limit_counts_everywhere<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), Limiter::new(elsewhere));
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
        here.hears(policy.key(&key)).await;
        // So that what was counted is older than the shortest windows.
        SystemClock::default().sleep(110).await;
        let _ = elsewhere.check(other.key(&key)).await.unwrap();
        // The store may deny it all the same; but it is asked.
        for round in 0.. {
            if here.check(policy.key(&key)).await.source() == Source::Store {
                break;
            }
            // By itself it is asked after ten seconds.
            assert!(round < 500, "{quotas:?} to {others:?}: the store is never asked");
            pause().await;
        }
    }
}

/// Of versions that are not in use no more than sixteen are remembered; who was denied by another one is let in again.
async fn what_is_forgotten_counts_everywhere<S: Store>(here: S, elsewhere: S) {
    let (here, elsewhere) = (Node::over(here), Limiter::new(elsewhere));
    let denied = policy("1/1h");
    let check = denied.key("forgotten");
    assert!(here.check(check).await.is_allowed());
    let many: Vec<String> = (1..=16).map(|hours| format!("9/{hours}h strict-window")).collect();
    let versions =
        [policy("9/1h fixed-window"), Policy::parse("api", many.iter().map(String::as_str)).unwrap()];
    for version in versions {
        let _ = elsewhere.check(version.key("forgotten")).await.unwrap();
    }
    here.hears(check).await;
    // Fifteen more of them are in use no longer, which makes seventeen.
    let _ = elsewhere.check(policy(&many[0]).key("forgotten")).await.unwrap();
    here.is_told(check).await;
}

/// What is given back while nothing can be heard is not missed.
async fn silence_is_not_taken_for_peace<S: Store>(here: S, elsewhere: S, proxy: FaultProxy) {
    let (here, elsewhere) = (Node::over(here), Limiter::new(elsewhere));
    let policy = policy("1/1h");
    let check = policy.key("a");
    assert!(elsewhere.check(check).await.unwrap().is_allowed());
    here.hears(check).await;
    proxy.refuse();
    proxy.cut();
    let _ = elsewhere.refund(check).await.unwrap();
    for round in 0.. {
        // From memory or not at all, and some day not from memory any more.
        match here.limiter.check(check).await {
            Ok(decision) => assert!(decision.source() == Source::Cache),
            Err(error) if error.is_transient() => break,
            Err(error) => panic!("{error}"),
        }
        // By itself the store is asked after ten seconds.
        assert!(round < 300, "it is served from memory although nothing is heard");
        pause().await;
    }
    proxy.pass();
    for round in 0.. {
        if here.limiter.check(check).await.is_ok_and(|decision| decision.is_allowed()) {
            break;
        }
        assert!(round < 300, "it is denied what was given back");
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
async fn redis_tells_everybody() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let address = server.address();
        giving_back_counts_everywhere(redis(address).await, redis(address).await).await;
        another_limit_counts_everywhere(redis(address).await, redis(address).await).await;
        what_is_forgotten_counts_everywhere(redis(address).await, redis(address).await).await;
    }
}

#[tokio::test]
async fn nobody_relies_on_a_redis_that_is_not_heard() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let here = redis(proxy.address()).await;
    silence_is_not_taken_for_peace(here, redis(server.address()).await, proxy).await;
}

/// Who may count but not listen remembers denials for less time, and that is all.
#[tokio::test]
async fn a_user_who_may_not_listen_hears_nothing() {
    let server = Server::start(Flavour::Redis);
    server.command(&["ACL", "SETUSER", "deaf", "on", ">hush", "~*", "&*", "+@all", "-subscribe"]).ok();
    let url = server.url().replace("redis://", "redis://deaf:hush@");
    let node = Node::over(RedisStore::connect(&url).await.unwrap());
    let policy = policy("1/1h");
    assert!(node.check(policy.key("a")).await.is_allowed());
    for _ in 0..20 {
        assert!(!node.remembers(policy.key("a")).await);
        pause().await;
    }
}

#[tokio::test]
async fn postgres_is_asked_by_everybody() {
    let server = Postgres::start();
    let address = server.address();
    giving_back_counts_everywhere(postgres(address).await, postgres(address).await).await;
    another_limit_counts_everywhere(postgres(address).await, postgres(address).await).await;
    what_is_forgotten_counts_everywhere(postgres(address).await, postgres(address).await).await;
}

#[tokio::test]
async fn nobody_relies_on_a_postgres_that_is_not_heard() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let here = postgres(proxy.address()).await;
    silence_is_not_taken_for_peace(here, postgres(server.address()).await, proxy).await;
}

/// A crash forgets what is counted, and nobody has given anything back.
#[tokio::test]
async fn a_postgres_that_has_forgotten_everything_is_asked() {
    let server = Postgres::start();
    let node = Node::over(postgres(server.address()).await);
    let policy = policy("1/1h");
    let check = policy.key("a");
    assert!(node.check(check).await.is_allowed());
    node.hears(check).await;
    server.kill();
    server.restart();
    for round in 0.. {
        match node.limiter.check(check).await {
            Ok(decision) if decision.is_allowed() => break,
            Ok(decision) => assert_eq!(decision.source(), Source::Cache),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        // By itself the store is asked after ten seconds.
        assert!(round < 300, "it is denied by what nobody counts any more");
        pause().await;
    }
}

/// Counts that must survive have tables of their own, and so has the word about them.
#[tokio::test]
async fn durable_counts_are_told_of_as_well() {
    let server = Postgres::start();
    let url = format!("postgres://postgres@{}/postgres?budget_ms=2000&durable=true", server.address());
    let connect = || async { PostgresStore::connect(&url).await.unwrap() };
    giving_back_counts_everywhere(connect().await, connect().await).await;
    assert_eq!(server.sql("SELECT count(*) > 1 FROM slidegate.news_durable")[0][0].as_deref(), Some("t"));
    assert_eq!(server.sql("SELECT count(*) FROM slidegate.news_ephemeral")[0][0].as_deref(), Some("0"));
}
