//! Start of a store by its builder, and maintenance of a schema without a store.

use std::sync::Arc;

use super::invalidation::Subscriber;
use super::pool::{self, Shared};
use super::settings::PostgresStoreBuilder;
use super::{PostgresStore, batcher, clean, migration};
use crate::error::StoreError;
use crate::store::key_hash::KeyHasher;
use crate::store::remote::{self, RemoteStore};
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
            shared.server
        ))));
        let weak = Arc::downgrade(&shared);
        supervise("postgres migration task", move || pool::prepare_until_done(weak.clone()));
        Ok(self.start(shared))
    }

    fn start(self, shared: Arc<Shared>) -> PostgresStore {
        let (queue, receiver) = remote::queue(PostgresStore::NAME, self.remote.max_waiting);
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
        migration::migrate(&*shared.client().await?, &shared.schema).await
    }

    /// Removes expired keys, see [`PostgresStore::clean`], without creating the schema.
    pub async fn clean(self) -> Result<u64, StoreError> {
        clean::clean(&Shared::new(&self)?).await
    }
}
