//! Start of a store by its builder, and maintenance of a schema without a store.

use std::sync::{Arc, Weak};

use super::invalidation::Subscriber;
use super::settings::PostgresStoreBuilder;
use super::shared::Shared;
use super::{PostgresStore, batcher, clean, migration};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::key_hash::KeyHasher;
use crate::store::remote;
use crate::store::supervise::supervise;

impl PostgresStoreBuilder {
    /// Connects, and creates or migrates the schema if necessary.
    pub async fn connect(self) -> Result<PostgresStore, StoreError> {
        let shared = Arc::new(Shared::new(&self)?);
        shared.prepare().await?;
        Ok(self.start(shared))
    }

    /// Connects in the background, and creates or migrates the schema as [`connect`](Self::connect) does. Must be called
    /// within a tokio runtime. Until the schema is ready, requests fail at once.
    pub fn connect_lazily(self) -> Result<PostgresStore, StoreError> {
        let shared = Arc::new(Shared::new(&self)?);
        shared.set_unprepared(Some(StoreError::transient(format!(
            "postgres at {}: no connection yet",
            shared.pool.server
        ))));
        let weak = Arc::downgrade(&shared);
        supervise("postgres migration task", move || prepare_until_done(weak.clone()));
        Ok(self.start(shared))
    }

    fn start(self, shared: Arc<Shared>) -> PostgresStore {
        let (queue, receiver) = remote::queue(self.remote.max_waiting);
        batcher::start(receiver, Arc::clone(&shared));
        PostgresStore {
            key_hasher: KeyHasher::new(self.remote.secret.as_deref()),
            queue,
            shared,
            subscribers: Subscriber::per_table(),
            is_durable: self.is_durable,
            durability: self.durability,
            clock: self.remote.clock(),
        }
    }

    /// Returns the SQL that creates the schema, see [`PostgresStore::migration`].
    pub fn migration(&self) -> String {
        migration::script(&self.schema)
    }

    /// Creates the schema or migrates it to this version. The role has to own the schema, or have the permission to create
    /// it.
    pub async fn migrate(self) -> Result<(), StoreError> {
        let shared = Shared::new(&self)?;
        migration::migrate(&*shared.pool.client().await?, &shared.schema).await
    }

    /// Removes expired keys, see [`PostgresStore::clean`], without creating the schema.
    pub async fn clean(self) -> Result<u64, StoreError> {
        clean::clean(&Shared::new(&self)?).await
    }
}

/// Creates or migrates the schema, with a backoff between attempts, until that succeeds or the store is dropped.
async fn prepare_until_done(shared: Weak<Shared>) {
    let (mut backoff, mut logged) = (Backoff::default(), String::new());
    while let Some(store) = shared.upgrade() {
        let Err(error) = store.prepare().await else { return store.set_unprepared(None) };
        // One warning per error, not per attempt.
        if logged != error.to_string() {
            tracing::warn!(%error, "postgres is not ready; trying again");
            logged = error.to_string();
        }
        store.set_unprepared(Some(error));
        drop(store);
        SystemClock::default().sleep(backoff.next_ms()).await;
    }
}
