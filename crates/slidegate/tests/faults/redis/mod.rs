//! Redis and Valkey in the fault suite, and the behaviour of this store only.

mod failover;
mod scripts;

use std::net::SocketAddr;
use std::time::Duration;

use slidegate::StoreError;
use slidegate::store::{RedisStore, RedisStoreBuilder, StoreLimiter};
use slidegate_testkit::{FaultProxy, Flavour, Replica, Sentinels, Server};

use crate::backend::{self, Backend, Settings, connect_within};
use crate::scenarios::{eventually, pause, policy, wait_for_unsent_error};

/// Budget of the tests that exceed it.
const BUDGET: Duration = Duration::from_millis(200);

/// A server of one flavour.
struct RedisServer<const IS_VALKEY: bool>(Server);

type Redis = RedisServer<false>;
type Valkey = RedisServer<true>;

impl<const IS_VALKEY: bool> Backend for RedisServer<IS_VALKEY> {
    type Store = RedisStore;

    const NAME: &'static str = "redis";
    const PARTS_OF_REPLY: [usize; 4] = [0, 1, 7, 20];
    const PART_OF_REPLIES: usize = 4000;
    const MAX_ACCEPTED: usize = 16;

    fn start() -> Self {
        Self(Server::start(if IS_VALKEY { Flavour::Valkey } else { Flavour::Redis }))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn url_at(address: SocketAddr) -> String {
        format!("redis://{address}")
    }

    fn urls_of_topologies(address: SocketAddr) -> Vec<String> {
        vec![
            Self::url_at(address),
            format!("redis+sentinel://{address},{address}/main"),
            format!("redis+cluster://{address},{address}"),
        ]
    }

    fn stop(&self) {
        self.0.stop_signal();
    }

    fn resume(&self) {
        self.0.continue_signal();
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn restart(&self) {
        self.0.restart();
    }

    fn keys(&self) -> usize {
        usize::try_from(self.0.command(&["DBSIZE"]).int()).unwrap()
    }

    fn clear(&self) {
        self.0.command(&["FLUSHDB"]);
    }

    async fn connect(url: &str, settings: Settings) -> Result<RedisStore, StoreError> {
        builder(url, settings).connect().await
    }

    fn connect_lazily(url: &str, settings: Settings) -> RedisStore {
        builder(url, settings).connect_lazily()
    }
}

fn builder(url: &str, settings: Settings) -> RedisStoreBuilder {
    let builder = RedisStore::builder(url).unwrap().budget(settings.budget).time_from(settings.clock);
    match settings.max_waiting {
        Some(max_waiting) => builder.max_waiting(max_waiting),
        None => builder,
    }
}

mod on_redis {
    crate::scenarios::suite!(super::Redis);
}

mod on_valkey {
    crate::scenarios::suite!(super::Valkey);
}

async fn connect(url: &str) -> StoreLimiter<RedisStore> {
    backend::connect::<Redis>(url).await
}

/// The store has detected that the server is unreachable, and fails requests without a round trip.
#[tokio::test]
async fn a_stopped_server_is_sent_no_further_requests() {
    let server = Redis::start();
    let limiter = connect_within::<Redis>(BUDGET, &server.url()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.stop();
    wait_for_unsent_error(&limiter, policy.key("a")).await;
    server.resume();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
}

#[tokio::test]
async fn an_idle_connection_that_is_cut_is_replaced_before_the_next_request() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = connect(&proxy.url()).await;
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

/// A sentinel that stalls during the exchange, while a second one is available.
#[tokio::test]
async fn a_silent_sentinel_does_not_block_callers() {
    let server = Server::start(Flavour::Redis);
    let _replica = Replica::of(&server);
    let sentinels = Sentinels::start(&server, "main");
    let proxy = FaultProxy::start(sentinels.addresses()[0]);
    let rest = sentinels.addresses()[1];
    proxy.stall();
    let url = format!("redis+sentinel://{},{rest}/main", proxy.address());
    let limiter = connect_within::<Redis>(BUDGET, &url).await;
    assert!(eventually(&limiter, policy("10/1h").key("a")).await.is_allowed());
}

#[tokio::test]
async fn out_of_memory_is_reported_as_full_and_denials_still_work() {
    let server = Server::start(Flavour::Redis);
    let limiter = connect(&server.url()).await;
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
    let limiter = connect(&server.url()).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let name = server.command(&["KEYS", "sg:*"]).array()[0].text();
    for overwrite in
        [&["SADD", &name, "x"][..], &["SET", &name, "nonsense"], &["SET", &name, "\u{1}nonsense!!"]]
    {
        server.command(&["DEL", &name]);
        server.command(overwrite);
        let responses = limiter.check_many(&[policy.key("b"), policy.key("a"), policy.key("c")]).await;
        assert!(responses[0].as_ref().unwrap().is_allowed());
        let error = responses[1].as_ref().unwrap_err();
        assert!(!error.is_transient(), "{overwrite:?}: {error}");
        assert!(responses[2].as_ref().unwrap().is_allowed());
    }
    // A reset repairs the key.
    let _ = limiter.reset(policy.key("a")).await.unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
}
