//! Primaries that are none any more.

use std::sync::{Arc, Mutex};

use slidegate_testkit::{FaultProxy, Flavour, Replica, Sentinels, Server};

use crate::{eventually, frozen, policy};

#[tokio::test]
async fn a_primary_that_was_demoted_is_refused_as_transient() {
    let server = Server::start(Flavour::Redis);
    let other = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let error = limiter.check(policy.key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
}

/// The promise on a failover: what the replica had received counts on, the rest is forgotten. So at most as much is
/// admitted again as was not replicated.
#[tokio::test]
async fn a_failover_forgets_no_more_than_was_not_replicated() {
    for flavour in Flavour::ALL {
        let primary = Server::start(flavour);
        let link = FaultProxy::start(primary.address());
        let replica = Replica::through_proxy(&link, &primary);
        let policy = policy("100/1h");
        let limiter = frozen(&primary.url()).await;
        for _ in 0..60 {
            assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        }
        replica.wait_in_sync(&primary);
        // What follows never reaches the replica. Only then is there a sentinel, which would have it follow the primary
        // directly after some seconds.
        link.stall();
        let sentinels = Sentinels::start_many(1, &primary, "main");
        let limiter = frozen(&format!("redis+sentinel://{}/main", sentinels.addresses()[0])).await;
        for _ in 0..15 {
            assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        }
        // While it is stalled: what it holds goes with the connection.
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

/// A primary that was cut off and may not write without its replicas is left as soon as the sentinels know better.
#[tokio::test]
async fn a_primary_that_has_lost_its_replicas_is_not_the_one_to_ask() {
    let former = Server::start(Flavour::Redis);
    let newer = Server::start(Flavour::Redis);
    let sentinels = Sentinels::start_many(1, &former, "main");
    let limiter = frozen(&format!("redis+sentinel://{}/main", sentinels.addresses()[0])).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let sentinel = &sentinels.sentinels()[0];
    sentinel.command(&["SENTINEL", "REMOVE", "main"]).ok();
    sentinel.command(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &newer.port().to_string(), "1"]).ok();
    former.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).ok();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    assert_eq!(newer.command(&["DBSIZE"]).int(), 1);
}

/// What the store has logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn times(&self, words: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(words)).count()
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

/// Once wrong: a replica answers whoever is denied, which was taken for a server that is back, again and again.
#[tokio::test]
async fn a_server_that_only_denies_is_not_back() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let (server, other) = (Server::start(Flavour::Redis), Server::start(Flavour::Redis));
    let limiter = frozen(&server.url()).await;
    let policy = policy("1/1h");
    assert!(limiter.check(policy.key("denied")).await.unwrap().is_allowed());
    // As one who hears from nobody, it keeps what it has.
    other.kill();
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).ok();
    for _ in 0..5 {
        assert!(!eventually(&limiter, policy.key("denied")).await.is_allowed());
        assert!(limiter.check(policy.key("new")).await.unwrap_err().is_transient());
    }
    assert_eq!((log.times("redis is away"), log.times("redis is back")), (1, 0));
    server.command(&["REPLICAOF", "NO", "ONE"]).ok();
    assert!(eventually(&limiter, policy.key("new")).await.is_allowed());
    // The answer is handed out before it is said.
    assert!(!eventually(&limiter, policy.key("new")).await.is_allowed());
    assert_eq!((log.times("redis is away"), log.times("redis is back")), (1, 1));
}
