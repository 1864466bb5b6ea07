//! Stores whose clock may lag, in injected time: all stores with clocks of any grain, and the remote ones with the server's own
//! clock, which rounds down to a millisecond. All decisions equal the core's.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg_attr(not(all(feature = "redis", feature = "postgres")), allow(unused_imports))]

#[allow(dead_code, unused_imports, unused_macros, reason = "only the random trace runs here")]
mod conformance;

use std::time::Duration;

use conformance::{START, Subject, decides_like_the_core_within};
use slidegate::store::MemoryStore;
use slidegate::{Clock, ManualClock, Sleep};

/// A clock that the test sets, with a grain.
struct GrainClock {
    clock: ManualClock,
    grain_ms: u64,
}

impl Clock for GrainClock {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn grain_ms(&self) -> u64 {
        self.grain_ms
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        self.clock.sleep(ms)
    }
}

/// Grains of given clocks, in milliseconds.
const GRAINS_MS: [u64; 5] = [0, 1, 4, 10, 700];

#[tokio::test]
async fn the_memory_store_decides_like_the_core_for_any_grain() {
    for grain_ms in GRAINS_MS {
        let clock = ManualClock::at(START);
        let store =
            MemoryStore::builder().clock(GrainClock { clock: clock.clone(), grain_ms }).build().unwrap();
        let subject = Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 40 };
        decides_like_the_core_within(subject, grain_ms).await;
    }
}

#[cfg(feature = "redis")]
mod redis {
    use slidegate::store::RedisStore;
    use slidegate_testkit::{Flavour, Server};

    use super::*;

    #[tokio::test]
    async fn redis_and_valkey_decide_like_the_core_by_a_given_clock_of_any_grain() {
        for flavour in Flavour::ALL {
            let server = Server::start(flavour);
            for grain_ms in GRAINS_MS {
                let clock = ManualClock::at(START);
                let builder = RedisStore::builder(&server.url()).unwrap();
                let builder = builder.prefix(&format!("grain{grain_ms}")).unwrap();
                let builder = builder.time_from(GrainClock { clock: clock.clone(), grain_ms });
                let store = builder.budget(Duration::from_secs(20)).connect().await.unwrap();
                let subject =
                    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 4 };
                decides_like_the_core_within(subject, grain_ms).await;
            }
        }
    }

    /// Not on Valkey: it counts microseconds by a monotonic clock, which the test cannot stop.
    #[tokio::test]
    async fn redis_decides_like_the_core_by_its_own_clock() {
        let server = Server::builder(Flavour::Redis).faketime("+0s").start();
        server.set_time_us(1000 * START);
        let store = RedisStore::builder(&server.url()).unwrap();
        let store = store.budget(Duration::from_secs(20)).connect().await.unwrap();
        let set_now = move |now_ms| server.set_time_us(1000 * now_ms + now_ms % 1000);
        decides_like_the_core_within(Subject { store, set_now: Box::new(set_now), effort: 2 }, 1).await;
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use slidegate::store::PostgresStore;
    use slidegate_testkit::Postgres;

    use super::*;

    /// Puts a function of the same name before the server's `clock_timestamp()`, in all functions of the store.
    fn fake_clock(server: &Postgres) {
        server.sql("CREATE SCHEMA fake");
        server.sql("CREATE UNLOGGED TABLE fake.clock (us bigint NOT NULL)");
        server.sql(&format!("INSERT INTO fake.clock VALUES ({})", 1000 * START));
        server.sql(
            "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
             'SELECT timestamptz ''epoch'' + us * interval ''1 microsecond'' FROM fake.clock'",
        );
        server.sql(
            "DO $$ DECLARE f regprocedure; BEGIN \
             FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'slidegate' AND p.proconfig IS NOT NULL LOOP \
             EXECUTE format('ALTER FUNCTION %s SET search_path = fake, pg_catalog, pg_temp', f); END LOOP; END $$",
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres_decides_like_the_core_by_a_given_clock_of_any_grain() {
        let server = Postgres::start();
        for grain_ms in GRAINS_MS {
            let clock = ManualClock::at(START);
            let builder = PostgresStore::builder(&server.url()).unwrap();
            let builder = builder.schema(&format!("grain{grain_ms}")).unwrap().connections(1);
            let builder = builder.time_from(GrainClock { clock: clock.clone(), grain_ms });
            let store = builder.budget(Duration::from_secs(20)).connect().await.unwrap();
            let subject = Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 2 };
            decides_like_the_core_within(subject, grain_ms).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres_decides_like_the_core_by_its_own_clock() {
        let server = Postgres::start();
        let store = PostgresStore::builder(&server.url()).unwrap();
        let store = store.budget(Duration::from_secs(20)).connections(1).connect().await.unwrap();
        fake_clock(&server);
        let session = std::sync::Mutex::new(server.connect().unwrap());
        let set_now = move |now_ms: u64| {
            let us = 1000 * now_ms + now_ms % 1000;
            session.lock().unwrap().sql(&format!("UPDATE fake.clock SET us = {us}")).unwrap();
        };
        decides_like_the_core_within(Subject { store, set_now: Box::new(set_now), effort: 1 }, 1).await;
    }
}
