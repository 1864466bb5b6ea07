//! The common implementation: a transaction of five statements in which the application decides.

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio_postgres::{Config, NoTls};

use super::callers::{LIMIT, Subject, WINDOW_MS};
use super::rig::Rig;
use crate::traffic::key;

/// Same storage options as Slidegate's table: unlogged, with free space in each page.
const TABLE: &str = "CREATE UNLOGGED TABLE limits (
  name text PRIMARY KEY, start_ms bigint NOT NULL, prev bigint NOT NULL, cur bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)";
const ENSURE: &str = "INSERT INTO limits VALUES ($1, 0, 0, 0) ON CONFLICT DO NOTHING";
const LOCK: &str = "SELECT start_ms, prev, cur, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
  FROM limits WHERE name = $1 FOR UPDATE";
const KEEP: &str = "INSERT INTO limits VALUES ($1, $2, $3, $4)
  ON CONFLICT (name) DO UPDATE SET start_ms = excluded.start_ms, prev = excluded.prev, cur = excluded.cur";

/// Pool of the same kind and size as Slidegate's. Statements are prepared once per connection.
#[derive(Clone)]
pub(crate) struct Transaction {
    pool: Pool,
}

impl Transaction {
    pub(crate) fn new(rig: &Rig, connections: usize) -> Self {
        rig.server.sql(TABLE);
        let config: Config = rig.server.url().parse().expect("a valid address");
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, NoTls, manager);
        Self { pool: Pool::builder(manager).max_size(connections).build().expect("a pool") }
    }

    async fn decide(&self, key: &str) -> Result<bool, tokio_postgres::Error> {
        let mut client = self.pool.get().await.expect("a connection");
        let ensure = client.prepare_cached(ENSURE).await?;
        let lock = client.prepare_cached(LOCK).await?;
        let keep = client.prepare_cached(KEEP).await?;
        let transaction = client.transaction().await?;
        transaction.execute(&ensure, &[&key]).await?;
        let row = transaction.query_one(&lock, &[&key]).await?;
        let (mut start, mut prev, mut cur): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let now_ms: i64 = row.get(3);
        let age = now_ms - start;
        if age >= WINDOW_MS {
            start = now_ms - now_ms % WINDOW_MS;
            prev = if age < 2 * WINDOW_MS { cur } else { 0 };
            cur = 0;
        }
        let left_ms = WINDOW_MS - (now_ms - start);
        let used = (prev * left_ms + WINDOW_MS - 1) / WINDOW_MS + cur;
        let is_allowed = used < LIMIT;
        if is_allowed {
            transaction.execute(&keep, &[&key, &start, &prev, &(cur + 1)]).await?;
        }
        transaction.commit().await?;
        Ok(is_allowed)
    }
}

impl Subject for Transaction {
    async fn check(&self, number: u32) {
        let is_allowed = self.decide(&key(number as usize)).await.expect("a response");
        assert!(is_allowed, "nothing is denied");
    }
}
