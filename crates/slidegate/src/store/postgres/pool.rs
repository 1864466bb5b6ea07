//! Connection pool.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio_postgres::config::TargetSessionAttrs;

use super::failure::connect_error;
use super::settings::PostgresStoreBuilder;
use super::tls;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;

/// Timeout of a connection attempt. A request waits for it no longer than its budget.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections of a store.
pub(super) struct ConnectionPool {
    pool: Pool,
    /// Addresses of the servers, for messages.
    pub(super) server: String,
    pub(super) max_connections: usize,
    is_reconnecting: Arc<AtomicBool>,
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        // Ends the connection attempts in the background.
        self.pool.close();
    }
}

impl ConnectionPool {
    pub(super) fn new(builder: &PostgresStoreBuilder) -> Result<Self, StoreError> {
        let mut config = builder.config.clone();
        config.connect_timeout(CONNECT_TIMEOUT);
        if config.get_hosts().len() > 1 {
            // Only the primary decides.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = tls::connector(builder.remote.ca_pem.as_deref())?;
        // A connection is not tested before its use: that would take another round trip.
        let manager =
            Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(builder.connections)
            .build()
            .map_err(|error| StoreError::permanent(format!("postgres: {error}")))?;
        Ok(Self {
            pool,
            server: server_addresses(&builder.config),
            max_connections: builder.connections,
            is_reconnecting: Arc::default(),
        })
    }

    /// Returns an idle connection or a new one.
    ///
    /// A caller that gives up leaves its connection attempt to the next caller. An attempt takes several round trips, which
    /// may exceed the budget of a request, so that attempts that end with their caller might never succeed.
    pub(super) async fn client(&self) -> Result<Object, StoreError> {
        let mut attempt = Box::pin(get(self.pool.clone(), self.server.clone()));
        let client = match poll_fn(|context| Poll::Ready(attempt.as_mut().poll(context))).await {
            Poll::Ready(client) => client,
            Poll::Pending => tokio::spawn(attempt).await.unwrap_or_else(|error| {
                Err(StoreError::transient(format!("postgres at {}: {error}", self.server)))
            }),
        };
        if client.is_err() {
            self.reconnect();
        }
        client
    }

    /// Connects in the background until all connections are open. The budget of a request may be too short to connect, so
    /// after an outage a connection has to be ready before the next request.
    fn reconnect(&self) {
        // The runtime is gone during its shutdown.
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_reconnecting.swap(true, Relaxed) {
            let (pool, server) = (self.pool.clone(), self.server.clone());
            let (connections, is_reconnecting) = (self.max_connections, Arc::clone(&self.is_reconnecting));
            runtime.spawn(async move {
                join_all((0..connections).map(|_| open_connection(&pool, &server))).await;
                is_reconnecting.store(false, Relaxed);
            });
        }
    }
}

/// Connects, with a backoff between attempts, until that succeeds or cannot succeed.
async fn open_connection(pool: &Pool, server: &str) {
    let mut backoff = Backoff::default();
    while let Err(error) = get(pool.clone(), server.to_owned()).await {
        if pool.is_closed() || !error.is_transient() {
            return;
        }
        SystemClock::default().sleep(backoff.next_ms()).await;
    }
}

async fn get(pool: Pool, server: String) -> Result<Object, StoreError> {
    // The driver's own timeout covers only the TCP connection; a server may accept it and never reply.
    match tokio::time::timeout(CONNECT_TIMEOUT, pool.get()).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(PoolError::Backend(error))) => Err(connect_error(&server, &error)),
        Ok(Err(error)) => Err(StoreError::transient(format!("postgres at {server}: {error}"))),
        Err(_) => Err(StoreError::transient(format!(
            "postgres at {server}: no connection within {CONNECT_TIMEOUT:?}"
        ))),
    }
}

/// Formats the addresses of the servers.
fn server_addresses(config: &tokio_postgres::Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let ports = config.get_ports().iter().copied().chain(std::iter::repeat(5432));
    hosts.zip(ports).map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
}

/// Connection that returns to the pool when it is dropped, unless a statement may still run on it.
pub(super) struct ConnectionGuard<'a> {
    pool: &'a ConnectionPool,
    client: Option<Object>,
    /// Whether no statement runs any more.
    pub(super) is_reusable: bool,
}

impl<'a> ConnectionGuard<'a> {
    pub(super) async fn get(pool: &'a ConnectionPool) -> Result<Self, StoreError> {
        Ok(Self { pool, client: Some(pool.client().await?), is_reusable: false })
    }

    pub(super) fn client(&self) -> &tokio_postgres::Client {
        #[expect(clippy::expect_used, reason = "only `drop` takes the connection")]
        self.client.as_ref().expect("a connection")
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        if self.is_reusable && !client.is_closed() {
            return;
        }
        // The connection is broken, or the budget ran out during a statement. Closing the connection lets the server notice
        // that its reply is no longer awaited.
        drop(Object::take(client));
        self.pool.reconnect();
    }
}
