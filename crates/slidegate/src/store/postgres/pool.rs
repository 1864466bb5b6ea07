//! The connections, and what all who use them share.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio_postgres::config::TargetSessionAttrs;

use super::failure::connect_error;
use super::invalidation::Subscriber;
use super::migration;
use super::settings::{PostgresStoreBuilder, Synchronous};
use super::tls;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;

/// A connection takes no longer to come about. Whoever wants a decision waits no longer than the budget.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the calls of a store share.
pub(super) struct Shared {
    pub(super) pool: Pool,
    pub(super) place: String,
    pub(super) schema: String,
    pub(super) synchronous: Synchronous,
    pub(super) budget: Duration,
    pub(super) connections: usize,
    pub(super) given_time: Option<Arc<dyn Clock>>,
    /// Of each table.
    pub(super) subscriber: [Arc<Subscriber>; 2],
    /// Why nothing can be decided yet: the schema has not been seen.
    unprepared: Mutex<Option<StoreError>>,
    is_reviving: Arc<AtomicBool>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever still tries to connect need not any more.
        self.pool.close();
    }
}

impl Shared {
    pub(super) fn new(builder: &PostgresStoreBuilder) -> Result<Self, StoreError> {
        let mut config = builder.config.clone();
        config.connect_timeout(PATIENCE);
        if config.get_hosts().len() > 1 {
            // Of several, one decides.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = tls::connector(builder.ca_pem.as_deref())?;
        // Whether a connection still works is seen when it is used; to ask would be another round trip.
        let manager =
            Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(builder.connections)
            .build()
            .map_err(|error| StoreError::permanent(format!("postgres: {error}")))?;
        Ok(Self {
            pool,
            place: place(&builder.config),
            schema: builder.schema.clone(),
            synchronous: builder.synchronous,
            budget: builder.budget,
            connections: builder.connections,
            given_time: builder.given_time.clone(),
            subscriber: Subscriber::of_tables(),
            unprepared: Mutex::default(),
            is_reviving: Arc::default(),
        })
    }

    /// Sees to it that the schema is there.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        migration::ensure(&*self.client().await?, &self.schema).await
    }

    pub(super) fn set_unprepared(&self, error: Option<StoreError>) {
        *self.unprepared.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn unprepared(&self) -> Option<StoreError> {
        self.unprepared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time to decide by, if it is not the server's.
    pub(super) fn given_ms(&self) -> Option<i64> {
        self.given_time.as_ref().map(|clock| clock.now_ms().cast_signed())
    }

    /// One that is idle, or a new one. Whoever gives up waiting for a new one leaves it to the next: it takes several
    /// round trips and may need more time than a decision has, and to start over each time would be never to get there.
    pub(super) async fn client(&self) -> Result<Object, StoreError> {
        let mut getting = Box::pin(get(self.pool.clone(), self.place.clone()));
        let got = match poll_fn(|context| Poll::Ready(getting.as_mut().poll(context))).await {
            Poll::Ready(client) => client,
            Poll::Pending => tokio::spawn(getting).await.unwrap_or_else(|error| {
                Err(StoreError::transient(format!("postgres at {}: {error}", self.place)))
            }),
        };
        if got.is_err() {
            self.revive();
        }
        got
    }

    /// Connects in the background until it succeeds. Who asks a server that was away, to see whether it is back, has less
    /// time than it takes to connect; to wait for that one would be to stay away for longer.
    fn revive(&self) {
        // There is none while it shuts down.
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_reviving.swap(true, Relaxed) {
            let (pool, place) = (self.pool.clone(), self.place.clone());
            let (connections, is_reviving) = (self.connections, Arc::clone(&self.is_reviving));
            runtime.spawn(async move {
                join_all((0..connections).map(|_| reconnect(&pool, &place))).await;
                is_reviving.store(false, Relaxed);
            });
        }
    }
}

async fn reconnect(pool: &Pool, place: &str) {
    let mut backoff = Backoff::default();
    while let Err(error) = get(pool.clone(), place.to_owned()).await {
        if pool.is_closed() || !error.is_transient() {
            return;
        }
        SystemClock::default().sleep(backoff.next_ms()).await;
    }
}

/// Sees to it that the schema is there, again and again until it is, or until nobody needs it any more.
pub(super) async fn prepare_at_last(shared: Weak<Shared>) {
    let (mut backoff, mut told) = (Backoff::default(), String::new());
    while let Some(prepared) = shared.upgrade() {
        let Err(error) = prepared.prepare().await else { return prepared.set_unprepared(None) };
        // Once for each reason, however many attempts it takes.
        if told != error.to_string() {
            tracing::warn!(%error, "postgres cannot be used yet");
            told = error.to_string();
        }
        prepared.set_unprepared(Some(error));
        drop(prepared);
        SystemClock::default().sleep(backoff.next_ms()).await;
    }
}

async fn get(pool: Pool, place: String) -> Result<Object, StoreError> {
    // Whoever accepts a connection need not answer on it.
    match tokio::time::timeout(PATIENCE, pool.get()).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(PoolError::Backend(error))) => Err(connect_error(&place, &error)),
        Ok(Err(error)) => Err(StoreError::transient(format!("postgres at {place}: {error}"))),
        Err(_) => Err(StoreError::transient(format!("postgres at {place}: no answer within {PATIENCE:?}"))),
    }
}

/// The hosts, for messages.
fn place(config: &tokio_postgres::Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let ports = config.get_ports().iter().copied().chain(std::iter::repeat(5432));
    hosts.zip(ports).map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",")
}

/// A connection that is not given back while a statement may still run on it.
pub(super) struct Cancelling<'a> {
    shared: &'a Shared,
    client: Option<Object>,
    pub(super) is_done: bool,
}

impl<'a> Cancelling<'a> {
    pub(super) async fn get(shared: &'a Shared) -> Result<Self, StoreError> {
        if let Some(error) = shared.unprepared() {
            return Err(error);
        }
        Ok(Self { shared, client: Some(shared.client().await?), is_done: false })
    }

    pub(super) fn client(&self) -> &tokio_postgres::Client {
        #[expect(clippy::expect_used, reason = "it is taken only when this is dropped")]
        self.client.as_ref().expect("a connection")
    }
}

impl Drop for Cancelling<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        if self.is_done && !client.is_closed() {
            return;
        }
        // Else the budget is over in the middle of a statement: the next caller gets another connection, and closing
        // this one lets the server notice that nobody waits.
        drop(Object::take(client));
        self.shared.revive();
    }
}
