//! PostgreSQL in the fault suite, and the behaviour of this store only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{PostgresStore, PostgresStoreBuilder, StoreLimiter};
use slidegate::{ManualClock, Policy, StoreError};
use slidegate_testkit::{FaultProxy, PgBouncer, Postgres, until};

use crate::backend::{Backend, Settings};
use crate::scenarios::policy;

impl Backend for Postgres {
    type Store = PostgresStore;

    const NAME: &'static str = "postgres";
    const PARTS_OF_REPLY: [usize; 4] = [0, 1, 7, 100];
    const PART_OF_REPLIES: usize = 10_000;
    const MAX_ACCEPTED: usize = 10;

    fn start() -> Self {
        Self::start()
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_at(address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/postgres")
    }

    fn stop(&self) {
        self.stop_signal();
    }

    fn resume(&self) {
        self.continue_signal();
    }

    fn kill(&self) {
        self.kill();
    }

    fn restart(&self) {
        self.restart();
    }

    fn keys(&self) -> usize {
        self.sql("SELECT count(*) FROM slidegate.ephemeral")[0][0].as_ref().unwrap().parse().unwrap()
    }

    fn clear(&self) {
        let _ = self.sql("TRUNCATE slidegate.ephemeral");
    }

    async fn connect(url: &str, settings: Settings) -> Result<PostgresStore, StoreError> {
        builder(url, settings).connect().await
    }

    fn connect_lazily(url: &str, settings: Settings) -> PostgresStore {
        builder(url, settings).connect_lazily().unwrap()
    }
}

fn builder(url: &str, settings: Settings) -> PostgresStoreBuilder {
    let builder = PostgresStore::builder(url).unwrap().budget(settings.budget).time_from(settings.clock);
    let builder = builder.connections(settings.connections);
    match settings.max_waiting {
        Some(max_waiting) => builder.max_waiting(max_waiting),
        None => builder,
    }
}

crate::scenarios::suite!(Postgres);

/// No part of a batch waits for the response to another part, in either table, and few keys form one transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_two_tables_takes_one_round_trip() {
    let server = Postgres::start();
    let proxy = FaultProxy::start(server.address());
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20));
    let builder = builder.policy_durable("durable", true);
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let number = |sql: String| server.sql(&sql)[0][0].as_ref().unwrap().parse::<usize>().unwrap();
    for (ephemeral, durable) in [(2, 0), (64, 0), (3, 3), (1000, 0), (500, 500)] {
        proxy.mute();
        let batch = {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let policies = ["api", "durable"].map(|name| Policy::parse(name, ["1000000/1h"]).unwrap());
                let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
                let [ephemeral_policy, durable_policy] = &policies;
                let checks: Vec<_> = keys[..ephemeral].iter().map(|key| ephemeral_policy.key(key)).collect();
                let durable_checks = keys[..durable].iter().map(|key| durable_policy.key(key));
                limiter.check_many(&checks.into_iter().chain(durable_checks).collect::<Vec<_>>()).await
            })
        };
        // All requests are counted, and no response has arrived.
        tokio::task::block_in_place(|| {
            for (table, count) in [("ephemeral", ephemeral), ("durable", durable)] {
                until("all is counted", || match number(format!("SELECT count(*) FROM slidegate.{table}")) {
                    rows if rows == count => Ok(()),
                    rows => Err(format!("{rows} of {count}")),
                });
                let transactions = format!("SELECT count(DISTINCT xmin::text) FROM slidegate.{table}");
                assert_eq!(number(transactions), count.div_ceil(64), "{count} in {table}");
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

/// A pool in transaction mode: no two statements may depend on the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_works_behind_a_transaction_pool() {
    let server = Postgres::start();
    let bouncer = PgBouncer::builder().setting("default_pool_size", "2").in_front_of(&server);
    let url = format!("{}?durable=true&sync=on", bouncer.url());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20)).connections(6);
    let clock = ManualClock::at(1_800_000_000_000);
    let limiter = Arc::new(StoreLimiter::new(builder.time_from(clock).connect().await.unwrap()));
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
    // Settings of a call do not leak to the next one.
    for setting in ["statement_timeout", "lock_timeout", "synchronous_commit"] {
        let set = bouncer.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        let default = server.sql(&format!("SHOW {setting}"))[0][0].clone().unwrap();
        assert_eq!(set, default, "{setting}");
    }
}
