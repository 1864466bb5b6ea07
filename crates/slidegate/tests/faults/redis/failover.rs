//! Primaries that were demoted, failed over or cut off.

use std::sync::{Arc, Mutex};

use slidegate_testkit::{FaultProxy, Flavour, Replica, Sentinels, Server};

use super::connect;
use crate::scenarios::{eventually, policy};

#[tokio::test]
async fn a_demoted_primary_is_a_transient_error() {
    let server = Server::start(Flavour::Redis);
    let other = Server::start(Flavour::Redis);
    let limiter = connect(&server.url()).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let error = limiter.check(policy.key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
}

/// Guarantee of a failover: replicated counts survive and the others are lost. At most the unreplicated units are
/// admitted again.
#[tokio::test]
async fn a_failover_loses_only_unreplicated_counts() {
    for flavour in Flavour::ALL {
        let primary = Server::start(flavour);
        let link = FaultProxy::start(primary.address());
        let replica = Replica::through_proxy(&link, &primary);
        let policy = policy("100/1h");
        let limiter = connect(&primary.url()).await;
        for _ in 0..60 {
            assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        }
        replica.wait_in_sync(&primary);
        // Further writes never reach the replica. The sentinel starts only now, because it would reconnect the replica
        // to the primary directly after a few seconds.
        link.stall();
        let sentinels = Sentinels::start_many(1, &primary, "main");
        let limiter = connect(&format!("redis+sentinel://{}/main", sentinels.addresses()[0])).await;
        for _ in 0..15 {
            assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        }
        // Cuts during the stall, which drops the buffered writes.
        link.cut();
        primary.kill();
        sentinels.wait_failover(primary.address());

        let mut admitted = u64::from(eventually(&limiter, policy.key("a")).await.is_allowed());
        while limiter.check(policy.key("a")).await.unwrap().is_allowed() {
            admitted += 1;
        }
        assert_eq!(admitted, 40, "60 were replicated, 15 were not, on {flavour:?}");
    }
}

/// The store leaves a primary that was cut off from its replicas as soon as the sentinels name another one.
#[tokio::test]
async fn a_primary_without_replicas_is_replaced_by_the_sentinels_primary() {
    let former = Server::start(Flavour::Redis);
    let newer = Server::start(Flavour::Redis);
    let sentinels = Sentinels::start_many(1, &former, "main");
    let limiter = connect(&format!("redis+sentinel://{}/main", sentinels.addresses()[0])).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let sentinel = &sentinels.sentinels()[0];
    sentinel.command(&["SENTINEL", "REMOVE", "main"]).ok();
    sentinel.command(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &newer.port().to_string(), "1"]).ok();
    former.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).ok();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    assert_eq!(newer.command(&["DBSIZE"]).int(), 1);
}

/// Log messages of the store.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn times(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Regression: a replica still returns denials, and the store took each as the server's recovery.
#[tokio::test]
async fn a_denial_does_not_count_as_recovery() {
    let log = Log::default();
    // With a single subscriber, another thread that logs a line first turns the line off for all threads. Two prevent that.
    let _second = tracing::Dispatch::new(Log::default());
    let _logging = tracing::subscriber::set_default(log.clone());
    let (server, other) = (Server::start(Flavour::Redis), Server::start(Flavour::Redis));
    let limiter = connect(&server.url()).await;
    let policy = policy("1/1h");
    assert!(limiter.check(policy.key("denied")).await.unwrap().is_allowed());
    // A replica of an unreachable primary keeps its data.
    other.kill();
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).ok();
    for _ in 0..5 {
        assert!(!eventually(&limiter, policy.key("denied")).await.is_allowed());
        assert!(limiter.check(policy.key("new")).await.unwrap_err().is_transient());
    }
    assert_eq!((log.times("redis is unavailable"), log.times("redis is available again")), (1, 0));
    server.command(&["REPLICAOF", "NO", "ONE"]).ok();
    assert!(eventually(&limiter, policy.key("new")).await.is_allowed());
    // The log message follows the response, so a second request waits for it.
    assert!(!eventually(&limiter, policy.key("new")).await.is_allowed());
    assert_eq!((log.times("redis is unavailable"), log.times("redis is available again")), (1, 1));
}
