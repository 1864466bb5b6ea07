//! State that all calls of a store share.

use std::sync::{Mutex, PoisonError};

use super::migration;
use super::pool::{ConnectionGuard, ConnectionPool};
use super::settings::{PostgresStoreBuilder, Synchronous};
use crate::error::StoreError;
use crate::store::remote::RemoteSettings;

/// Connections and settings that the calls of a store share.
pub(super) struct Shared {
    pub(super) pool: ConnectionPool,
    pub(super) settings: RemoteSettings,
    pub(super) schema: String,
    pub(super) synchronous: Synchronous,
    /// Error of all requests until the schema is known to exist.
    unprepared: Mutex<Option<StoreError>>,
}

impl Shared {
    pub(super) fn new(builder: &PostgresStoreBuilder) -> Result<Self, StoreError> {
        Ok(Self {
            pool: ConnectionPool::new(builder)?,
            settings: builder.remote.clone(),
            schema: builder.schema.clone(),
            synchronous: builder.synchronous,
            unprepared: Mutex::default(),
        })
    }

    /// Creates or migrates the schema if necessary.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        migration::ensure(&*self.pool.client().await?, &self.schema).await
    }

    pub(super) fn set_unprepared(&self, error: Option<StoreError>) {
        *self.unprepared.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn unprepared(&self) -> Option<StoreError> {
        self.unprepared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the time to decide by; `None` for the server's time.
    pub(super) fn given_ms(&self) -> Option<i64> {
        self.settings.given_moment().map(|given| given.now_ms().cast_signed())
    }

    /// Returns an idle connection or a new one, or the error of an unprepared schema.
    pub(super) async fn connection(&self) -> Result<ConnectionGuard<'_>, StoreError> {
        match self.unprepared() {
            Some(error) => Err(error),
            None => ConnectionGuard::get(&self.pool).await,
        }
    }
}
