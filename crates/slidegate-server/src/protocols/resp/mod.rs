//! RESP, the protocol of Redis: `CL.THROTTLE` as the module redis-cell has it, with `DEL`, `EXISTS` and `TTL` for its keys,
//! `THROTTLE` as throttlecrab has it, `SLIDEGATE.CHECK` and its relatives, and what clients say before they get to the point.
//!
//! [`frame`] finds a command in what was read, [`command`] says what it means, [`session`] answers what needs no store,
//! [`connection`] puts them together, [`wire`] reads and writes.

mod check;
mod command;
mod connection;
mod decided;
mod forget;
mod frame;
mod inline;
mod keys;
mod quotas;
mod reply;
mod session;
mod throttle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Store;
use tokio::io::{AsyncRead, AsyncWrite};

use self::connection::Connection;
use crate::app::App;
use crate::authenticator::Authenticator;
use crate::net::cork::Cork;
use crate::net::stop::Stop;
use slidegate_config::Limits;

/// What all connections have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Tokens are the passwords where there is no header to put them into.
    passwords: Option<Arc<Authenticator>>,
    connections: AtomicU64,
}

impl Shared {
    pub(crate) fn new(passwords: Option<Arc<Authenticator>>) -> Self {
        Self { passwords, ..Self::default() }
    }
}

/// Commands and answers on one connection, until it ends or there is a `stop` and nothing has begun.
pub(crate) async fn converse<I, S>(
    stream: I,
    app: &App<S>,
    shared: &Shared,
    limits: &Limits,
    stop: Stop,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Cork + Unpin,
    S: Store,
{
    let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let connection = Connection::new(stream, app, shared, number, limits);
    connection.run(stop).await.map_err(|error| error.to_string())
}
